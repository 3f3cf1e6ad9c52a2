"""Pictures of readiness: entries of logs in, PNG bytes out, the same for the same entries.

The entropy of the CLS row of attention over the layers is drawn as in Figure 2 of Gao & Callan
(2021): a line before, a line after; the other measures are drawn over the tokens seen.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .curves import save_figure
from .readiness_log import FEW_SHOT, PREFIX, ZERO_SHOT, Entry

_SMALL, _NORMAL = 8, 9
_PANELS = (
    (("zero_cost", "swap_cost"), "head's loss rises by (nats a masked token)"),
    (("entropy",), "CLS attention entropy (nats)"),
    (("alignment",), "alignment (lower: pairs are closer)"),
    (("uniformity",), "uniformity (lower: more even)"),
)
_SAID = {"zero_cost": "CLS zeroed", "swap_cost": "CLS swapped", "entropy": "mean over layers"}
_STYLES = ("-", "--", ":", "-.")
_MARKERS = "os^Dv<>Ph*X"


def draw_entropies(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    even: float | None = None,
    kind: str = ".png",
) -> bytes:
    """Draw CLS attention entropy over the layers, a line for each model.

    Args:
        panels: title -> label -> entropy of each layer, in nats, from the first to the last. Lines
            of one label are alike in all panels.
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
        axes.set_xlabel("layer", fontsize=_NORMAL)
        axes.set_title(title, fontsize=_NORMAL)
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("entropy of the CLS row (nats)", fontsize=_NORMAL)
    all_axes[-1].legend(fontsize=_SMALL)
    figure.suptitle("CLS attention entropy, mean over heads and texts", fontsize=_NORMAL + 1)
    return save_figure(figure, kind)


def draw_readiness(runs: Mapping[str, Sequence[Entry]], *, kind: str = ".png") -> bytes:
    """Draw the measures over the tokens seen (or the steps, where tokens were not counted).

    Args:
        runs: label -> entries of its log, as `readiness_entries` gives them.
        kind: ".png" or ".svg".
    """
    entries = [entry for run in runs.values() for entry in run]
    has_tokens = all("num_input_tokens_seen" in entry for entry in entries)
    over = "num_input_tokens_seen" if has_tokens else "step"
    panels = _panels(entries)
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
    all_axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (names, title) in zip(all_axes, panels, strict=False):
        for number, (label, run) in enumerate(runs.items()):
            _draw_lines(axes, run, names, over=over, colour=f"C{number % 10}", label=label)
        axes.set_title(title, fontsize=_NORMAL)
        axes.set_xlabel("tokens seen (millions)" if has_tokens else "steps", fontsize=_NORMAL)
        axes.grid(alpha=0.3)
        if len(axes.lines) > 1:
            axes.legend(fontsize=_SMALL)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    return save_figure(figure, kind)


def _panels(entries: Sequence[Entry]) -> list[tuple[list[str], str]]:
    """Names of the measures in each panel that has something to show, and its title."""
    present = {name for entry in entries for name in entry}
    panels = [([f"{PREFIX}{name}" for name in names], title) for names, title in _PANELS]
    measures = dict.fromkeys(
        name.removeprefix(prefix)
        for prefix in (ZERO_SHOT, FEW_SHOT)
        for name in sorted(present)
        if name.startswith(prefix)
    )
    panels += [
        ([f"{ZERO_SHOT}{m}", f"{FEW_SHOT}{m}"], f"{m} on a small collection") for m in measures
    ]
    kept = [([name for name in names if name in present], title) for names, title in panels]
    return [(names, title) for names, title in kept if names]


def _draw_lines(
    axes: Axes, run: Sequence[Entry], names: Sequence[str], *, over: str, colour: str, label: str
) -> None:
    scale = 1e6 if over != "step" else 1
    for name, style in zip(names, _STYLES, strict=False):
        told = [entry for entry in run if name in entry and over in entry]
        if not told:
            continue
        said = f"{label}, {_say(name)}" if len(names) > 1 else label
        x = [entry[over] / scale for entry in told]
        y = [entry[name] for entry in told]
        axes.plot(x, y, style, color=colour, label=said, marker="o", markersize=3)


def _say(name: str) -> str:
    if name.startswith(ZERO_SHOT):
        return "no labels"
    return "few labels" if name.startswith(FEW_SHOT) else _SAID[name.removeprefix(PREFIX)]
