"""The pictures of a report: bars with intervals, and recall over the depth.

The first system, the baseline, is grey; a system has the same colour in every picture.
"""

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_COLOURS = ["grey", *(f"C{number}" for number in range(10))]
_FONT_SIZE = 8


def draw_report(content: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Draw all pictures that a report has figures for: name -> file in the folder."""
    results = content["results"]
    figures: dict[str, Figure] = {}
    if content["breakdowns"]:
        figures["means"] = plot_bars(results)
    for by, groups in content["breakdowns"].items():
        figures[by] = plot_bars(
            {f"{name} ({group['n_queries']:,})": group["systems"] for name, group in groups.items()}
        )
    for family in ("R@", "Hit@"):
        depths = {int(m.removeprefix(family)): m for m in results if m.startswith(family)}
        if len(depths) > 1:
            by_depth = {depth: results[measure] for depth, measure in depths.items()}
            figures["recall"] = plot_curves(by_depth, y_label=f"{family}k")
    files = {name: f"{name.replace(' ', '_')}.png" for name in figures}
    for name, figure in figures.items():
        figure.savefig(folder / files[name], dpi=150)
    return files


def plot_bars(panels: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Figure:
    """Draw each system's mean and interval as a bar, in panels (title -> system -> figures)."""
    n_systems = len(next(iter(panels.values())))
    figure, axes = _figure(len(panels), height=0.75 + 0.3 * n_systems)
    for panel, (title, systems) in zip(axes, panels.items(), strict=False):
        means = np.array([values["mean"] for values in systems.values()])
        bounds = np.array([values["interval"] or [np.nan] * 2 for values in systems.values()])
        bars = panel.barh(list(systems), means, xerr=abs(bounds.T - means), color=_COLOURS)
        panel.bar_label(bars, fmt="%.3f", padding=4, fontsize=_FONT_SIZE)
        panel.set_title(title, fontsize=_FONT_SIZE, loc="left")
        panel.margins(x=0.25)
        panel.set_xticks([])
    axes[0].invert_yaxis()  # which all panels share
    return figure


def plot_curves(by_depth: Mapping[int, Mapping[str, Mapping[str, Any]]], *, y_label: str) -> Figure:
    """Draw each system's `mean` over the depths (depth -> system), on a logarithmic scale."""
    figure, [axes] = _figure(1, height=3.0)
    depths = sorted(by_depth)
    for system, colour in zip(by_depth[depths[0]], cycle(_COLOURS), strict=False):
        means = [by_depth[depth][system]["mean"] for depth in depths]
        axes.plot(depths, means, marker="o", color=colour, label=system)
    axes.set_xscale("log")
    axes.set_xticks(depths, [f"{depth:,}" for depth in depths])
    axes.minorticks_off()
    axes.set_xlabel("k, passages", fontsize=_FONT_SIZE)
    axes.set_ylabel(y_label, fontsize=_FONT_SIZE)
    axes.legend(fontsize=_FONT_SIZE)
    return figure


def _figure(n_panels: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with panels in rows of `height` inches."""
    columns = min(n_panels, 3)
    rows = -(-n_panels // columns)
    figure = Figure(figsize=(1.2 + 3.0 * columns, rows * height), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=_FONT_SIZE)
    for panel in panels[n_panels:]:
        panel.set_visible(False)
    return figure, panels
