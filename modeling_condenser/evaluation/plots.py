"""The pictures of reports and studies: bars and curves with intervals, and maps of vectors.

The first system, the baseline, is grey; a system has the same colour in every picture.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from modeling_condenser.publishing.pictures import (
    FONT_SIZE,
    add_legend,
    as_png,
    line_styles,
    make_panels,
)

_SPREAD = 0.1  # of the systems' intervals around a tick, so that they do not hide each other

Figures = Mapping[str, Mapping[str, Any]]
"""System -> its `mean`, and the bounds of its `interval`, which may be None."""


def draw_report(content: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Draw the pictures of a report into a folder: name -> file name."""
    results = content["results"]
    figures: dict[str, Figure] = {}
    if content["breakdowns"]:
        figures["means"] = plot_bars(results)
    for by, groups in content["breakdowns"].items():
        figures[by] = plot_bars(
            {f"{name} ({group['n_queries']:,})": group["systems"] for name, group in groups.items()}
        )
    curves = {}
    for family in ("R@", "Hit@"):
        depths = sorted(int(m.removeprefix(family)) for m in results if m.startswith(family))
        if len(depths) > 1:
            curves[f"{family}k"] = {f"{depth:,}": results[f"{family}{depth}"] for depth in depths}
    if curves:
        figures["recall"] = plot_curves(curves, x_label="k, passages")
    files = {name: f"{name.replace(' ', '_')}.png" for name in figures}
    for name, figure in figures.items():
        (folder / files[name]).write_bytes(as_png(figure))
    return files


def plot_bars(panels: Mapping[str, Figures]) -> Figure:
    """Draw each system's mean and interval as a bar, in panels (title -> figures)."""
    names = list(next(iter(panels.values())))
    height, styles = 0.5 + 0.25 * len(names), line_styles(names, grey=names[0])
    figure, axes = make_panels(list(panels), height=height, sharex=True, sharey=True)
    for panel, systems in zip(axes, panels.values(), strict=True):
        means, errors = _read(list(systems.values()))
        colours = [styles[name]["color"] for name in names]
        bars = panel.barh(names, means, xerr=errors, color=colours)
        panel.bar_label(bars, fmt="%.3f", padding=4, fontsize=FONT_SIZE)
        panel.margins(x=0.25)
        panel.set_xticks([])
    axes[0].invert_yaxis()  # which all panels share
    return figure


def plot_curves(panels: Mapping[str, Mapping[str, Figures]], *, x_label: str) -> Figure:
    """Draw each system's means and intervals over groups (title -> group -> figures)."""
    figure, axes = make_panels(list(panels))
    for panel, groups in zip(axes, panels.values(), strict=True):
        systems = list(next(iter(groups.values())))
        styles = line_styles(systems, grey=systems[0])
        shifts = np.linspace(-_SPREAD, _SPREAD, len(systems) + 2)[1:-1]
        for system, shift in zip(systems, shifts, strict=True):
            means, errors = _read([figures[system] for figures in groups.values()])
            places = np.arange(len(groups)) + shift
            panel.errorbar(places, means, errors, label=system, **styles[system])
        panel.set_xticks(range(len(groups)), list(groups))
        panel.set_xlabel(x_label, fontsize=FONT_SIZE)
        panel.grid(alpha=0.3)
    add_legend(figure)
    return figure


def plot_map(vectors: Mapping[str, np.ndarray], topics: Mapping[str, Sequence[int]]) -> Figure:
    """Draw the vectors of passages in two dimensions by t-SNE.

    Args:
        vectors: title of a panel -> (N, D), the passages of all topics one after the other.
        topics: topic -> its passages.
    """
    from sklearn.manifold import TSNE  # takes a second

    ends = np.cumsum([len(rows) for rows in topics.values()])
    figure, axes = make_panels(list(vectors))
    styles = line_styles(list(topics))
    for panel, found in zip(axes, vectors.values(), strict=True):
        units = found / np.linalg.norm(found, axis=1, keepdims=True).clip(min=1e-12)
        init = "pca" if np.ptp(units, axis=0).any() else "random"  # equal vectors end the process
        perplexity = min(30, (len(found) - 1) / 3)
        places = TSNE(perplexity=perplexity, init=init, random_state=0).fit_transform(units)
        for topic, own in zip(topics, np.split(places, ends[:-1]), strict=True):
            style = styles[topic] | {"linestyle": "none"}
            panel.plot(own[:, 0], own[:, 1], label=topic[:30], **style)
        panel.set_xticks([])
        panel.set_yticks([])
    add_legend(figure)
    return figure


def _read(figures: list[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Means, (N,), and how far their intervals reach below and above them, (2, N)."""
    means = np.array([own["mean"] for own in figures])
    bounds = np.array([own["interval"] or [np.nan] * 2 for own in figures])
    return means, abs(bounds.T - means)
