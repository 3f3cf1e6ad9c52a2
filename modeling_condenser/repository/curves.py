"""Draw training curves and readiness from logs; the same log gives the same bytes."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .readiness import FEW_SHOT, PREFIX, ZERO_SHOT, Entry

Log = Sequence[Mapping[str, float]]
Panel = tuple[str, dict[str, str]]  # title, and name in the log -> label

_LOSSES: dict[str, str] = {
    "late_loss": "late MLM loss (nats a masked token)",
    "head_loss": "head MLM loss (nats a masked token)",
    "swap_cost": "swap cost (nats a masked token)",
    "bow_loss": "bag-of-words loss (nats a block)",
    "contrastive_loss": "contrastive loss (nats a text)",
}
_READINESS: dict[str, dict[str, str]] = {
    "head's loss rises by (nats a masked token)": {
        "zero_cost": "CLS zeroed",
        "swap_cost": "CLS swapped",
    },
    "CLS attention entropy (nats)": {"entropy": "mean over layers"},
    "alignment (lower: pairs are closer)": {"alignment": ""},
    "uniformity (lower: more even)": {"uniformity": ""},
}
_TOKENS = "num_input_tokens_seen"
# Without date and version, so that an unchanged picture is not committed again.
_NO_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
}
_STYLES = ("-", "--", ":", "-.")
_MARKERS = "os^Dv<>Ph*X"
_FONT = 9


def has_curves(log: Log) -> bool:
    """Whether a log holds losses of pre-training."""
    losses = {"head_loss", "late_loss", "bow_loss", "contrastive_loss"}
    return any(not losses.isdisjoint(entry) for entry in log)


def draw_curves(runs: Mapping[str, Log], *, kind: str = ".png") -> bytes:
    """Draw losses and swap cost over the tokens seen, a line for each run.

    Args:
        runs: label -> entries of its log, named as in `training_log.py`.
        kind: ".png" or ".svg".
    """
    logged = _names(runs)
    # A run shorter than its logging interval has no entries: its picture has one empty panel.
    names = [name for name in _LOSSES if name in logged] or ["late_loss"]
    return _draw(runs, [(_LOSSES[name], {name: ""}) for name in names], columns=5, kind=kind)


def draw_readiness(runs: Mapping[str, Sequence[Entry]], *, kind: str = ".png") -> bytes:
    """Draw readiness over the tokens seen, or over the steps where tokens were not counted.

    Args:
        runs: label -> entries of its log, as `readiness_entries` returns them.
        kind: ".png" or ".svg".
    """
    logged = _names(runs)
    panels = {
        title: {f"{PREFIX}{name}": label for name, label in lines.items()}
        for title, lines in _READINESS.items()
    }
    for prefix, label in ((ZERO_SHOT, "no labels"), (FEW_SHOT, "few labels")):
        for name in sorted(name for name in logged if name.startswith(prefix)):
            title = f"{name.removeprefix(prefix)} on a small collection"
            panels.setdefault(title, {})[name] = label
    shown = [
        (title, {name: label for name, label in lines.items() if name in logged})
        for title, lines in panels.items()
    ]
    return _draw(runs, [panel for panel in shown if panel[1]], columns=3, kind=kind, marker="o")


def _names(runs: Mapping[str, Log]) -> set[str]:
    return {name for log in runs.values() for entry in log for name in entry}


def _draw(
    runs: Mapping[str, Log],
    panels: Sequence[Panel],
    *,
    columns: int,
    kind: str,
    marker: str | None = None,
) -> bytes:
    counts_tokens = all(_TOKENS in entry for log in runs.values() for entry in log)
    over, scale = (_TOKENS, 1e6) if counts_tokens else ("step", 1)
    columns = min(columns, len(panels))
    n_rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.3 * n_rows), layout="constrained")
    all_axes: list[Axes] = list(figure.subplots(n_rows, columns, squeeze=False).flat)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, lines) in zip(all_axes, panels, strict=False):
        for number, (run, log) in enumerate(runs.items()):
            for (name, label), style in zip(lines.items(), _STYLES, strict=False):
                if found := [entry for entry in log if name in entry and over in entry]:
                    axes.plot(
                        [entry[over] / scale for entry in found],
                        [entry[name] for entry in found],
                        style,
                        color=f"C{number % 10}",
                        label=f"{run}, {label}" if len(lines) > 1 else run,
                        marker="o" if len(found) == 1 else marker,
                        markersize=3,
                    )
        axes.set_title(title, fontsize=_FONT)
        axes.set_xlabel("tokens seen (millions)" if counts_tokens else "steps", fontsize=_FONT)
        axes.grid(alpha=0.3)
        if len(axes.lines) > 1:
            axes.legend(fontsize=_FONT - 1)
    return _save(figure, kind)


def draw_entropies(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    even: float | None = None,
    kind: str = ".png",
) -> bytes:
    """Draw CLS attention entropy over the layers, as in Figure 2 of Gao & Callan (2021).

    Args:
        panels: title -> label -> entropy of each layer, in nats, from the first to the last. A
            label has one colour and marker in all panels.
        even: entropy of a row that attends to all tokens alike; None not to draw it.
        kind: ".png" or ".svg".
    """
    figure = Figure(figsize=(1.4 + 3.6 * len(panels), 3.6), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    for axes, (title, lines) in zip(all_axes, panels.items(), strict=True):
        for label, entropies in lines.items():
            place = labels.index(label)
            axes.plot(
                range(1, len(entropies) + 1),
                entropies,
                label=label,
                color=f"C{place % 10}",
                marker=_MARKERS[place % len(_MARKERS)],
                markersize=4,
            )
        if even is not None:
            axes.axhline(even, color="0.6", linestyle=":", label="even attention")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("layer", fontsize=_FONT)
        axes.set_title(title, fontsize=_FONT)
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("entropy of the CLS row (nats)", fontsize=_FONT)
    all_axes[-1].legend(fontsize=_FONT - 1)
    figure.suptitle("CLS attention entropy, mean over heads and texts", fontsize=_FONT + 1)
    return _save(figure, kind)


def _save(figure: Figure, kind: str) -> bytes:
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "condenser"}):
        figure.savefig(stream, format=kind[1:], dpi=150, metadata=_NO_METADATA[kind])
    return stream.getvalue()
