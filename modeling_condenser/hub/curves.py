"""Draw training curves and readiness from logs as PNG files; a log always gives the same bytes."""

import io
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .training_log import FEW_SHOT, PREFIX, ZERO_SHOT, Entry

Log = Sequence[Entry]
# Run and measure -> x and y; the lines of a run have one colour.
_Lines = dict[tuple[str, str], tuple[Sequence[float], Sequence[float]]]

_LOSSES = {
    "late_loss": "late MLM loss (nats a masked token)",
    "head_loss": "head MLM loss (nats a masked token)",
    "swap_cost": "swap cost (nats a masked token)",
    "bow_loss": "bag-of-words loss (nats a block)",
    "contrastive_loss": "contrastive loss (nats a text)",
}
_READINESS = {  # title -> name -> label
    "head's loss rises by (nats a masked token)": {
        f"{PREFIX}zero_cost": "zero cost",
        f"{PREFIX}swap_cost": "swap cost",
    },
    "CLS attention entropy (nats)": {f"{PREFIX}entropy": ""},
    "alignment (lower: pairs are closer)": {f"{PREFIX}alignment": ""},
    "uniformity (lower: more even)": {f"{PREFIX}uniformity": ""},
}
_TOKENS = "num_input_tokens_seen"
_STYLES = ("-", "--", ":", "-.")
_FONT = 9


def has_curves(log: Log) -> bool:
    """Whether a log holds losses of pre-training."""
    return bool((_LOSSES.keys() - {"swap_cost"}) & _names([log]))


def draw_curves(runs: Mapping[str, Log]) -> bytes:
    """Draw losses and swap cost over the tokens seen.

    Args:
        runs: label -> entries of its log, as `thin_log` returns them.
    """
    logged = _names(runs.values())
    # A run shorter than its logging interval has no entries: its picture has one empty panel.
    names = [name for name in _LOSSES if name in logged] or ["late_loss"]
    return _draw_logs(runs, {_LOSSES[name]: {name: ""} for name in names})


def draw_readiness(runs: Mapping[str, Log]) -> bytes:
    """Draw readiness over the tokens seen, or over the steps where tokens were not counted.

    Args:
        runs: label -> entries of its log, as `readiness_entries` returns them.
    """
    logged = _names(runs.values())
    panels = {title: dict(lines) for title, lines in _READINESS.items()}
    for prefix, label in ((ZERO_SHOT, "no labels"), (FEW_SHOT, "few labels")):
        for name in sorted(name for name in logged if name.startswith(prefix)):
            title = f"{name.removeprefix(prefix)} on a small collection"
            panels.setdefault(title, {})[name] = label
    shown = {title: lines for title, lines in panels.items() if logged & lines.keys()}
    return _draw_logs(runs, shown)


def draw_entropies(
    panels: Mapping[str, Mapping[str, Sequence[float]]], *, even: float | None = None
) -> bytes:
    """Draw CLS attention entropy over the layers, as in Figure 2 of Gao & Callan (2021).

    Args:
        panels: title -> label -> entropy of each layer, in nats, from the first to the last. A
            label has one colour in all panels.
        even: entropy of a row that attends to all tokens alike; None not to draw it.
    """
    drawn = {}
    for title, lines in panels.items():
        layers = range(1, max(map(len, lines.values())) + 1)
        shown: _Lines = {(label, ""): (layers[: len(y)], y) for label, y in lines.items()}
        if even is not None:
            shown["even attention", ""] = (layers, [even] * len(layers))
        drawn[f"{title}\nCLS attention entropy (nats)".strip()] = shown
    return _draw(drawn, "layer")


def _names(logs: Iterable[Log]) -> set[str]:
    return {name for log in logs for entry in log for name in entry}


def _draw_logs(runs: Mapping[str, Log], panels: Mapping[str, Mapping[str, str]]) -> bytes:
    """Draw panels (title -> name -> label) of all runs over tokens or steps."""
    counts_tokens = all(_TOKENS in entry for log in runs.values() for entry in log)
    over, scale = (_TOKENS, 1e6) if counts_tokens else ("step", 1)
    drawn: dict[str, _Lines] = {title: {} for title in panels}
    for title, names in panels.items():
        for run, log in runs.items():
            for name, label in names.items():
                if found := [entry for entry in log if name in entry and over in entry]:
                    x = [entry[over] / scale for entry in found]
                    drawn[title][run, label] = (x, [entry[name] for entry in found])
    return _draw(drawn, "tokens seen (millions)" if counts_tokens else "steps")


def _draw(panels: Mapping[str, _Lines], xlabel: str) -> bytes:
    """Draw at most three panels in a row."""
    n_columns = min(len(panels), 3)
    n_rows = -(-len(panels) // n_columns)
    figure = Figure(figsize=(4.2 * n_columns, 3.3 * n_rows), layout="constrained")
    runs = list(dict.fromkeys(run for lines in panels.values() for run, _ in lines))
    for number, (title, lines) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(n_rows, n_columns, number)
        labels = list(dict.fromkeys(label for _, label in lines))
        for (run, label), (x, y) in lines.items():
            style = _STYLES[labels.index(label) % len(_STYLES)]
            text = f"{run}, {label}" if label else run
            axes.plot(x, y, style, color=f"C{runs.index(run) % 10}", label=text, marker=".")
        axes.set_title(title, fontsize=_FONT)
        axes.set_xlabel(xlabel, fontsize=_FONT)
        if xlabel == "layer":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(fontsize=_FONT - 1)
    stream = io.BytesIO()
    # Without the library's version, so that an unchanged picture is not committed again.
    figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return stream.getvalue()
