"""Draw training curves and readiness from logs as PNG files; a log always gives the same bytes."""

import io
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from .training_log import Entry, titled_measures

Log = Sequence[Entry]
Lines = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # label -> x and y

_LOSSES = {
    "late_loss": "late MLM loss (nats a masked token)",
    "head_loss": "head MLM loss (nats a masked token)",
    "swap_cost": "swap cost (nats a masked token)",
    "bow_loss": "bag-of-words loss (nats a block)",
    "contrastive_loss": "contrastive loss (nats a text)",
}
_TOKENS = "num_input_tokens_seen"
_FONT = 9


def has_curves(log: Log) -> bool:
    """Whether a log holds losses of pre-training."""
    return any(name in entry for entry in log for name in _LOSSES if name != "swap_cost")


def draw_curves(runs: Mapping[str, Log]) -> bytes:
    """Draw losses and swap cost over the tokens seen.

    Args:
        runs: label -> entries of its log, as `thin_log` returns them.
    """
    logged = {name for log in runs.values() for entry in log for name in entry}
    # A run shorter than its logging interval has no entries: its picture has one empty panel.
    names = [name for name in _LOSSES if name in logged] or ["late_loss"]
    return _draw_logs(runs, {name: _LOSSES[name] for name in names})


def draw_readiness(runs: Mapping[str, Log]) -> bytes:
    """Draw each measure over the tokens seen, or over the steps where tokens were not counted.

    Args:
        runs: label -> entries of its log, as `readiness_entries` returns them.
    """
    return _draw_logs(runs, titled_measures([entry for log in runs.values() for entry in log]))


def draw_entropies(
    panels: Mapping[str, Mapping[str, Sequence[float]]], *, even: float | None = None
) -> bytes:
    """Draw CLS attention entropy over the layers, as in Figure 2 of Gao & Callan (2021).

    Args:
        panels: title -> label -> entropy of each layer, in nats, from the first to the last. A
            label has one colour in all panels.
        even: entropy of a row that attends to all tokens alike; None not to draw it.
    """
    drawn: dict[str, Lines] = {}
    for title, lines in panels.items():
        layers = range(1, max(map(len, lines.values())) + 1)
        shown = {label: (layers[: len(y)], y) for label, y in lines.items()}
        if even is not None:
            shown["even attention"] = (layers, [even] * len(layers))
        drawn[f"{title}\nCLS attention entropy (nats)".strip()] = shown
    return _draw(drawn, "layer")


def _draw_logs(runs: Mapping[str, Log], titles: Mapping[str, str]) -> bytes:
    """Draw a panel for each measure (name -> title), with a line for each run that has it."""
    counts_tokens = all(_TOKENS in entry for log in runs.values() for entry in log)
    over, scale = (_TOKENS, 1e6) if counts_tokens else ("step", 1)
    drawn: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for name, title in titles.items():
        drawn[title] = {}
        for run, log in runs.items():
            if found := [entry for entry in log if name in entry and over in entry]:
                x = [entry[over] / scale for entry in found]
                drawn[title][run] = (x, [entry[name] for entry in found])
    return _draw(drawn, "tokens seen (millions)" if counts_tokens else "steps")


def _draw(panels: Mapping[str, Lines], xlabel: str) -> bytes:
    """Draw at most three panels in a row."""
    n_columns = min(len(panels), 3)
    n_rows = -(-len(panels) // n_columns)
    figure = Figure(figsize=(4.2 * n_columns, 3.3 * n_rows), layout="constrained")
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    for number, (title, lines) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(n_rows, n_columns, number)
        for label, (x, y) in lines.items():
            axes.plot(x, y, color=f"C{labels.index(label) % 10}", label=label, marker=".")
        axes.set_title(title, fontsize=_FONT)
        axes.set_xlabel(xlabel, fontsize=_FONT)
        axes.locator_params("x", integer=xlabel == "layer")
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(fontsize=_FONT - 1)
    stream = io.BytesIO()
    # Without the library's version, so that an unchanged picture is not committed again.
    figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return stream.getvalue()
