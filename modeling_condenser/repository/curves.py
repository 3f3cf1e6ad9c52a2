"""Draw training curves and readiness from logs; the same log gives the same bytes."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .readiness import FEW_SHOT, PREFIX, ZERO_SHOT, Entry

Log = Sequence[Mapping[str, float]]

_LOSSES = {
    "late_loss": "late MLM loss (nats a masked token)",
    "head_loss": "head MLM loss (nats a masked token)",
    "swap_cost": "swap cost (nats a masked token)",
    "bow_loss": "bag-of-words loss (nats a block)",
    "contrastive_loss": "contrastive loss (nats a text)",
}
_READINESS = {  # title -> name -> label
    "head's loss rises by (nats a masked token)": {
        f"{PREFIX}zero_cost": "CLS zeroed",
        f"{PREFIX}swap_cost": "CLS swapped",
    },
    "CLS attention entropy (nats)": {f"{PREFIX}entropy": "mean over layers"},
    "alignment (lower: pairs are closer)": {f"{PREFIX}alignment": ""},
    "uniformity (lower: more even)": {f"{PREFIX}uniformity": ""},
}
_TOKENS = "num_input_tokens_seen"
_EVEN = "even attention"
# Without date and version, so that an unchanged picture is not committed again.
_NO_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
}
_STYLES = ("-", "--", ":", "-.")
_FONT = 9


class _Line(NamedTuple):
    """A line of a picture; the lines of a run have one colour."""

    run: str
    label: str
    x: Sequence[float]
    y: Sequence[float]


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
    logged = {name for log in runs.values() for entry in log for name in entry}
    # A run shorter than its logging interval has no entries: its picture has one empty panel.
    names = [name for name in _LOSSES if name in logged] or ["late_loss"]
    return _draw_logs(runs, {_LOSSES[name]: {name: ""} for name in names}, kind)


def draw_readiness(runs: Mapping[str, Sequence[Entry]], *, kind: str = ".png") -> bytes:
    """Draw readiness over the tokens seen, or over the steps where tokens were not counted.

    Args:
        runs: label -> entries of its log, as `readiness_entries` returns them.
        kind: ".png" or ".svg".
    """
    logged = {name for log in runs.values() for entry in log for name in entry}
    panels = {title: dict(lines) for title, lines in _READINESS.items()}
    for prefix, label in ((ZERO_SHOT, "no labels"), (FEW_SHOT, "few labels")):
        for name in sorted(name for name in logged if name.startswith(prefix)):
            title = f"{name.removeprefix(prefix)} on a small collection"
            panels.setdefault(title, {})[name] = label
    shown = {title: lines for title, lines in panels.items() if logged & lines.keys()}
    return _draw_logs(runs, shown, kind)


def draw_entropies(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    even: float | None = None,
    kind: str = ".png",
) -> bytes:
    """Draw CLS attention entropy over the layers, as in Figure 2 of Gao & Callan (2021).

    Args:
        panels: title -> label -> entropy of each layer, in nats, from the first to the last. A
            label has one colour in all panels.
        even: entropy of a row that attends to all tokens alike; None not to draw it.
        kind: ".png" or ".svg".
    """
    drawn = {}
    for title, lines in panels.items():
        layers = range(1, max(map(len, lines.values())) + 1)
        drawn[f"{title}\nCLS attention entropy (nats)".strip()] = [
            *(_Line(label, label, layers[: len(y)], y) for label, y in lines.items()),
            *([_Line(_EVEN, _EVEN, layers, [even] * len(layers))] if even is not None else []),
        ]
    return _draw(drawn, "layer", kind)


def _draw_logs(
    runs: Mapping[str, Log], panels: Mapping[str, Mapping[str, str]], kind: str
) -> bytes:
    """Draw panels (title -> name -> label) of all runs over tokens or steps."""
    counts_tokens = all(_TOKENS in entry for log in runs.values() for entry in log)
    over, scale = (_TOKENS, 1e6) if counts_tokens else ("step", 1)
    drawn: dict[str, list[_Line]] = {title: [] for title in panels}
    for title, names in panels.items():
        for run, log in runs.items():
            for name, label in names.items():
                if found := [entry for entry in log if name in entry and over in entry]:
                    x = [entry[over] / scale for entry in found]
                    labelled = f"{run}, {label}" if len(names) > 1 else run
                    drawn[title].append(_Line(run, labelled, x, [e[name] for e in found]))
    return _draw(drawn, "tokens seen (millions)" if counts_tokens else "steps", kind)


def _draw(panels: Mapping[str, Sequence[_Line]], xlabel: str, kind: str) -> bytes:
    """At most three panels in a row, as a .png or .svg file."""
    n_columns = min(len(panels), 3)
    n_rows = -(-len(panels) // n_columns)
    figure = Figure(figsize=(4.2 * n_columns, 3.3 * n_rows), layout="constrained")
    all_axes: list[Axes] = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    runs = list(dict.fromkeys(line.run for lines in panels.values() for line in lines))
    for axes in all_axes[len(panels) :]:
        axes.remove()
    for axes, (title, lines) in zip(all_axes, panels.items(), strict=False):
        for line in lines:
            number = [other for other in lines if other.run == line.run].index(line)
            color, style = f"C{runs.index(line.run) % 10}", _STYLES[number % len(_STYLES)]
            axes.plot(line.x, line.y, style, color=color, label=line.label, marker=".")
        axes.set_title(title, fontsize=_FONT)
        axes.set_xlabel(xlabel, fontsize=_FONT)
        if xlabel == "layer":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(fontsize=_FONT - 1)
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "condenser"}):
        figure.savefig(stream, format=kind[1:], dpi=150, metadata=_NO_METADATA[kind])
    return stream.getvalue()
