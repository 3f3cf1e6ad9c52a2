"""Pictures of a report: values of several systems in, one PNG or SVG out for each question.

The baseline is grey in every picture, and a system keeps its colour through all of them. Values
stand beside what they belong to, so that a picture can be read without its table.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.text import Text

from modeling_condenser.measures.breakdown import Breakdown

from .cost import EncodingCost

_GREY = "#9a9a9a"
# Okabe & Ito's colours, which colour-blind readers can tell apart, without yellow.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5d3a9b", "#000000")
_INK, _FAINT = "#333333", "#dddddd"
_SMALL, _NORMAL = 8, 9
_DPI = 150
_PANELS_A_ROW = 3
_DEVICES = {"cpu": "CPU", "cuda": "GPU"}


class Estimate(NamedTuple):
    """A mean with its 95 % interval; without one where it cannot be had (one query)."""

    value: float
    interval: tuple[float, float] | None = None


def colours_of(systems: Sequence[str], baseline: str | None) -> dict[str, str]:
    """A colour for each system: grey for the baseline."""
    others = [system for system in systems if system != baseline]
    colours = {s: _COLOURS[i % len(_COLOURS)] for i, s in enumerate(others)}
    return {system: colours.get(system, _GREY) for system in systems}


def plot_means(
    means: Mapping[str, Mapping[str, Estimate]], out: Path, *, baseline: str | None
) -> Path:
    """Draw each system's means as bars with intervals, a panel for each measure.

    Args:
        means: system -> measure -> mean and interval; the same measures for all.
        out: picture to write, .png or .svg.
        baseline: the system that is grey.

    Returns:
        `out`.
    """
    systems = list(means)
    measures = list(means[systems[0]])
    colours = colours_of(systems, baseline)
    columns = len(measures) if len(measures) <= 4 else _PANELS_A_ROW
    rows = -(-len(measures) // columns)
    figure = _figure(1.2 + 2.5 * columns, rows * (0.75 + 0.3 * len(systems)))
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axes, measure in zip(panels, measures, strict=False):
        _draw_bars(axes, {s: means[s][measure] for s in systems}, colours)
        axes.set_title(measure, fontsize=_NORMAL, loc="left", color=_INK)
    for axes in panels[len(measures) :]:
        axes.set_visible(False)
    return _save(figure, out)


def _draw_bars(axes: Axes, estimates: Mapping[str, Estimate], colours: Mapping[str, str]) -> None:
    """Horizontal bars from top to bottom, each with its value behind the interval."""
    places = np.arange(len(estimates))
    axes.barh(
        places,
        [estimate.value for estimate in estimates.values()],
        height=0.62,
        color=[colours[system] for system in estimates],
        alpha=0.85,  # so that the interval is seen on the bar
    )
    ends = []
    for place, (value, interval) in zip(places, estimates.values(), strict=True):
        if interval is not None:
            axes.plot(interval, (place, place), color=_INK, linewidth=1.2, solid_capstyle="butt")
        ends.append(max(value, interval[1] if interval else value))
        axes.annotate(
            f"{value:.3f}",
            (ends[-1], place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=_SMALL,
            color=_INK,
        )
    axes.set_xlim(
        min(0.0, *(e.value for e in estimates.values())), 1.22 * max(ends) if max(ends) > 0 else 1
    )
    axes.set_yticks(places, [_short(system) for system in estimates], fontsize=_NORMAL)
    axes.set_ylim(len(estimates) - 0.5, -0.5)
    axes.set_xticks([])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(_GREY)
    axes.tick_params(length=0)


def plot_differences(
    differences: Mapping[str, Sequence[float]], out: Path, *, measure: str, baseline: str
) -> Path:
    """Draw each system's difference from the baseline, query by query, the greatest gain first.

    Args:
        differences: system -> system minus baseline for each query, in any order.
        out: picture to write.
        measure: whose differences these are.
        baseline: name of what is subtracted.

    Returns:
        `out`.
    """
    colours = colours_of([baseline, *differences], baseline)
    most = max(abs(value) for values in differences.values() for value in values) or 1.0
    columns = min(_PANELS_A_ROW, len(differences))
    rows = -(-len(differences) // columns)
    figure = _figure(1.0 + 2.9 * columns, 0.4 + 2.3 * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for place, (axes, (system, values)) in enumerate(
        zip(panels, differences.items(), strict=False)
    ):
        ordered = np.sort(np.asarray(values, dtype=np.float64))[::-1]
        ends = np.arange(len(ordered) + 1)
        axes.stairs(ordered, ends, baseline=0, fill=True, color=colours[system], linewidth=0)
        axes.axhline(0, color=_INK, linewidth=0.6)
        better, worse = int((ordered > 1e-9).sum()), int((ordered < -1e-9).sum())
        axes.set_title(_short(system), fontsize=_NORMAL, loc="left", color=_INK)
        inside = {"fontsize": _SMALL, "color": _INK, "transform": axes.transAxes}
        axes.text(0.98, 0.95, f"better on {better:,}", ha="right", va="top", **inside)
        equal = len(ordered) - better - worse
        axes.text(0.98, 0.86, f"equal on {equal:,}", ha="right", va="top", **inside)
        axes.text(0.02, 0.05, f"worse on {worse:,}", ha="left", va="bottom", **inside)
        axes.set_xlim(0, len(ordered))
        axes.set_ylim(-1.06 * most, 1.06 * most)
        axes.set_xlabel("queries, in order of the difference", fontsize=_SMALL, color=_INK)
        if place % columns == 0:
            axes.set_ylabel(f"{measure} minus {_short(baseline)}'s", fontsize=_SMALL, color=_INK)
        _plain(axes)
    for axes in panels[len(differences) :]:
        axes.set_visible(False)
    return _save(figure, out)


def plot_breakdown(breakdown: Breakdown, out: Path) -> Path:
    """Draw grouped bars: the means of all systems in each group of queries.

    A triangle marks a bar that differs significantly from the baseline's, in the direction in which
    it points.

    Returns:
        `out`.
    """
    groups = breakdown.groups
    systems = list(groups[0].means)
    colours = colours_of(systems, breakdown.baseline)
    width = 0.8 / len(systems)
    figure = _figure(max(4.5, 0.8 + len(groups) * (0.55 + 0.28 * len(systems))), 3.1)
    axes = figure.subplots()
    for number, system in enumerate(systems):
        places = np.arange(len(groups)) + (number - (len(systems) - 1) / 2) * width
        values = [group.means[system] for group in groups]
        axes.bar(places, values, width=width * 0.92, color=colours[system])
        for place, value, group in zip(places, values, groups, strict=True):
            contrast = group.contrasts.get(system)
            mark = ""
            if contrast is not None and contrast.is_significant:
                mark = "▲\n" if contrast.difference > 0 else "▼\n"
            axes.annotate(
                f"{mark}{value:.2f}".replace("0.", "."),
                (place, max(value, 0.0)),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=_SMALL - 1,
                linespacing=0.9,
                color=_INK,
            )
    names = [f"{group.name}\n{_count(group.n_queries)}" for group in groups]
    axes.set_xticks(np.arange(len(groups)), names, fontsize=_SMALL)
    highest = max(value for group in groups for value in group.means.values())
    axes.set_ylim(0, 1.15 * highest if highest > 0 else 1)
    axes.set_xlim(-0.55, len(groups) - 0.45)
    axes.set_ylabel(breakdown.measure, fontsize=_NORMAL, color=_INK)
    _plain(axes)
    axes.tick_params(axis="x", length=0)
    _name_colours(figure, colours)
    return _save(figure, out)


def plot_costs(
    costs: Mapping[str, Sequence[EncodingCost]],
    quality: Mapping[str, float],
    out: Path,
    *,
    measure: str,
    baseline: str | None = None,
) -> Path:
    """Draw quality over time and over memory of an encoding step, as after the thesis's Figure 4.2.

    Args:
        costs: system -> its costs, one for each device; systems without any are not drawn.
        quality: system -> mean of the measure.
        out: picture to write.
        measure: name of the quality.
        baseline: the system that is grey.

    Returns:
        `out`.
    """
    colours = colours_of(list(costs), baseline)
    by_device = {
        device: {s: c for s, found in costs.items() for c in found if c.device == device}
        for device in _DEVICES
    }
    by_device = {device: found for device, found in by_device.items() if found}
    figure = _figure(7.2, 2.9 * len(by_device), between=0.06)
    rows = figure.subplots(len(by_device), 2, squeeze=False, sharey=True)
    for (left, right), (device, found) in zip(rows, by_device.items(), strict=True):
        milliseconds = {s: c.seconds_per_step * 1e3 for s, c in found.items()}
        megabytes = {s: c.peak_memory_bytes / 1e6 for s, c in found.items() if c.peak_memory_bytes}
        one = next(iter(found.values()))
        step = f"{one.batch_size} texts of {one.length} tokens"
        _draw_points(left, milliseconds, quality, colours)
        _draw_points(right, megabytes, quality, colours)
        left.set_title(
            f"{_DEVICES[device]}: {one.hardware}", fontsize=_NORMAL, loc="left", color=_INK
        )
        left.set_xlabel(f"milliseconds a step of {step}", fontsize=_SMALL, color=_INK)
        right.set_xlabel("peak memory of weights and step (MB)", fontsize=_SMALL, color=_INK)
        left.set_ylabel(measure, fontsize=_SMALL, color=_INK)
    return _save(figure, out)


def _draw_points(
    axes: Axes,
    values: Mapping[str, float],
    quality: Mapping[str, float],
    colours: Mapping[str, str],
) -> None:
    heights = [quality[system] for system in values] or [0.0, 1.0]
    margin = max(0.3 * (max(heights) - min(heights)), 0.01)
    labels = _apart({system: quality[system] for system in values}, step=0.28 * margin)
    axes.set_ylim(min(heights) - margin, max(heights + list(labels.values())) + margin)
    highest = max(values.values(), default=1.0)
    axes.set_xlim(0, highest * 1.15)
    for system, value in values.items():
        axes.scatter(value, quality[system], s=42, color=colours[system], zorder=3)
        left = value > 0.6 * highest  # the name stands on the side where there is room
        axes.annotate(
            _short(system),
            (value, labels[system]),
            xytext=(-7 if left else 7, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            fontsize=_SMALL,
            color=_INK,
        )
    _plain(axes)
    axes.grid(color=_FAINT, linewidth=0.6)


def plot_recall(
    recall: Mapping[str, Mapping[int, float]], out: Path, *, name: str, baseline: str | None
) -> Path:
    """Draw recall over the number of passages, for the cut-offs that were measured.

    Args:
        recall: system -> cut-off -> mean.
        out: picture to write.
        name: of the measure, such as "R@k".
        baseline: the system that is grey.

    Returns:
        `out`.
    """
    colours = colours_of(list(recall), baseline)
    figure = _figure(5.2, 3.2)
    axes = figure.subplots()
    for system, points in recall.items():
        cutoffs = sorted(points)
        values = [points[k] for k in cutoffs]
        axes.plot(cutoffs, values, color=colours[system], marker="o", markersize=4, linewidth=1.6)
    axes.set_xscale("log")
    cutoffs = sorted({k for points in recall.values() for k in points})
    axes.set_xticks(cutoffs, [f"{k:,}" for k in cutoffs], fontsize=_SMALL)
    axes.minorticks_off()
    ends = {system: points[max(points)] for system, points in recall.items()}
    low, high = axes.get_ylim()
    labels = _apart(ends, step=0.06 * (high - low))
    axes.set_ylim(low, max(high, *labels.values()))
    for system, height in labels.items():
        axes.annotate(
            f"{_short(system)} {ends[system]:.3f}",
            (cutoffs[-1], height),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=_SMALL,
            color=colours[system],
            annotation_clip=False,
        )
    axes.set_xlabel("k, passages", fontsize=_SMALL, color=_INK)
    axes.set_ylabel(name, fontsize=_NORMAL, color=_INK)
    _plain(axes)
    return _save(figure, out)


def _apart(heights: Mapping[str, float], *, step: float) -> dict[str, float]:
    """Where names can stand: at their heights, or a step above the one below."""
    places: dict[str, float] = {}
    last = -np.inf
    for system in sorted(heights, key=lambda s: heights[s]):
        last = places[system] = max(heights[system], last + step)
    return places


def _name_colours(figure: Figure, colours: Mapping[str, str]) -> None:
    """Name the systems above the picture, each beside a square of its colour."""
    squares = [Patch(color=colour) for colour in colours.values()]
    figure.legend(
        squares,
        [_short(system) for system in colours],
        loc="outside upper left",
        ncols=min(len(colours), 4),
        frameon=False,
        fontsize=_SMALL,
        handlelength=1,
        handleheight=1,
        columnspacing=1.4,
    )


def _figure(width: float, height: float, *, between: float = 0.02) -> Figure:
    """A figure in inches; `between` its panels, a share of the whole is left free."""
    layout = ConstrainedLayoutEngine(hspace=between, wspace=between)
    return Figure(figsize=(width, height), layout=layout)


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GREY)
    axes.tick_params(labelsize=_SMALL, color=_GREY, labelcolor=_INK)


def _short(system: str) -> str:
    return system if len(system) <= 28 else f"{system[:13]}…{system[-14:]}"


def _count(n: int) -> str:
    return f"{n:,} {'query' if n == 1 else 'queries'}"


def _save(figure: Figure, out: Path) -> Path:
    """Write a picture whole or not at all. A "$" in a name is no formula."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    partial = out.with_name(f".{out.name}.partial")
    figure.savefig(partial, dpi=_DPI, format=out.suffix.removeprefix("."))
    partial.replace(out)
    return out
