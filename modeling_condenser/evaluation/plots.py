"""The pictures of a report: bars with intervals, and points or curves over a scale.

The baseline is grey, and a system has the same colour in every picture.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

_GREY, _INK = "#9a9a9a", "#333333"
# Okabe & Ito's colours, which colour-blind readers can tell apart, without yellow.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5d3a9b", "#000000")
_SMALL, _NORMAL = 8, 9
_PANELS_A_ROW = 3


class Estimate(NamedTuple):
    """A mean with its 95 % interval, if there is one."""

    value: float
    interval: tuple[float, float] | None = None


def colours_of(systems: Sequence[str], baseline: str | None) -> dict[str, str]:
    """A colour for each system; grey for the baseline."""
    others = [system for system in systems if system != baseline]
    colours = {s: _COLOURS[i % len(_COLOURS)] for i, s in enumerate(others)}
    return {system: colours.get(system, _GREY) for system in systems}


def plot_bars(
    panels: Mapping[str, Mapping[str, Estimate]], out: Path, *, baseline: str | None
) -> Path:
    """Draw the values of each system as bars, in a panel for each measure or group of queries.

    Args:
        panels: title -> system -> mean and interval; the same systems in every panel.
        out: picture to write, .png or .svg.
        baseline: the grey system.
    """
    systems = list(next(iter(panels.values())))
    colours = colours_of(systems, baseline)
    figure, axes = _figure(len(panels), height=0.75 + 0.3 * len(systems))
    highest = max(
        max(e.value, e.interval[1] if e.interval else 0.0)
        for estimates in panels.values()
        for e in estimates.values()
    )
    for panel, (title, estimates) in zip(axes, panels.items(), strict=False):
        values = [estimates[system].value for system in systems]
        panel.barh(range(len(systems)), values, height=0.62, color=[colours[s] for s in systems])
        for place, (value, interval) in enumerate(estimates[system] for system in systems):
            if interval is not None:
                panel.plot(interval, (place, place), color=_INK, linewidth=1.2)
            end = max(value, interval[1]) if interval else value
            _label(panel, f"{value:.3f}", (end, place))
        panel.set_title(title, fontsize=_NORMAL, loc="left", color=_INK)
        panel.set_yticks(range(len(systems)), [_short(s) for s in systems], fontsize=_NORMAL)
        panel.set_ylim(len(systems) - 0.5, -0.5)
        panel.set_xlim(0, 1.25 * highest or 1)
        panel.set_xticks([])
        panel.spines["bottom"].set_visible(False)
    return _save(figure, out)


def plot_points(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    out: Path,
    *,
    y_label: str,
    baseline: str | None,
    is_logarithmic: bool = False,
) -> Path:
    """Draw each system's points, connected by a line, in a panel for each horizontal scale.

    Args:
        panels: label of the horizontal scale -> system -> (x, y) of its points.
        out: picture to write, .png or .svg.
        y_label: label of the vertical scale.
        baseline: the grey system.
        is_logarithmic: whether the horizontal scale is logarithmic.
    """
    figure, axes = _figure(len(panels), height=3.0)
    for panel, (x_label, points) in zip(axes, panels.items(), strict=False):
        colours = colours_of(list(points), baseline)
        for system, pairs in points.items():
            xs, ys = zip(*sorted(pairs), strict=True)
            panel.plot(xs, ys, marker="o", markersize=5, color=colours[system])
            _label(panel, _short(system), (xs[-1], ys[-1]))
        if is_logarithmic:
            panel.set_xscale("log")
            ticks = sorted({x for pairs in points.values() for x, _ in pairs})
            panel.set_xticks(ticks, [f"{x:,.0f}" for x in ticks])
            panel.minorticks_off()
        panel.margins(x=0.25, y=0.15)
        panel.set_xlabel(x_label, fontsize=_SMALL, color=_INK)
        panel.tick_params(labelsize=_SMALL)
    axes[0].set_ylabel(y_label, fontsize=_NORMAL, color=_INK)
    return _save(figure, out)


def _figure(n_panels: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with at least `n_panels` panels in rows of `height` inches."""
    columns = min(n_panels, _PANELS_A_ROW)
    rows = -(-n_panels // columns)
    figure = Figure(figsize=(1.2 + 3.0 * columns, rows * height), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[n_panels:]:
        panel.set_visible(False)
    return figure, panels


def _label(panel: Axes, text: str, place: tuple[float, float]) -> None:
    """Write a text to the right of a point."""
    panel.annotate(
        text,
        place,
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=_SMALL,
        color=_INK,
    )


def _short(system: str) -> str:
    return system if len(system) <= 28 else f"{system[:13]}…{system[-14:]}"


def _save(figure: Figure, out: Path) -> Path:
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a "$" in a name is not a formula
    figure.savefig(out, dpi=150)
    return out
