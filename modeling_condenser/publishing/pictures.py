"""The look of all pictures: their colours, panels and legends.

A picture is read at the width of a README, so it has at most two panels in a row. Colours are those
of Okabe & Ito (2008), which colour-blind people can distinguish; more lines than colours also
differ in dashes and markers.
"""

import io
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

FONT_SIZE = 8
GREY = "#7f7f7f"  # of what the others are compared with
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = {"-": "o", "--": "s", ":": "^", "-.": "D"}  # and their markers
_WIDTHS = {1: 5.5, 2: 8.0}  # panels in a row -> inches
_LETTER, _KEY, _LINE = 0.065, 0.7, 0.17  # inches of a legend: width of both, height of a line

Points = Sequence[tuple[float, float]]


def line_styles(labels: Sequence[str], *, grey: str = "") -> dict[str, dict[str, Any]]:
    """A distinct style for each label, up to 24, as arguments of `plot`; that of `grey` is grey."""
    styles = [
        {"color": colour, "linestyle": dash, "marker": marker, "markersize": 3}
        for (dash, marker), colour in product(_DASHES.items(), _COLOURS)
    ]
    others = [label for label in labels if label != grey]
    chosen = {label: styles[i % len(styles)] for i, label in enumerate(others)}
    return {grey: {**styles[0], "color": GREY}, **chosen}


def make_panels(
    titles: Sequence[str], *, height: float = 3.0, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel of this height, in inches, for each title."""
    n_columns = min(len(titles), 2)
    n_rows = -(-len(titles) // n_columns)
    figure = Figure(figsize=(_WIDTHS[n_columns], height * n_rows), layout="constrained")
    panels: list[Axes] = list(figure.subplots(n_rows, n_columns, squeeze=False, **shared).flat)
    for panel, title in zip(panels, titles, strict=False):
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=FONT_SIZE)
        panel.set_title(title, fontsize=FONT_SIZE)
    for panel in panels[len(titles) :]:
        panel.remove()
    return figure, panels[: len(titles)]


def add_legend(figure: Figure) -> None:
    """Put one legend for all panels below them, if there is more than one label."""
    found = [panel.get_legend_handles_labels() for panel in figure.axes]
    handles = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
    if len(handles) < 2:
        return
    width, height = figure.get_size_inches()
    n_columns = max(int(width / (_KEY + _LETTER * max(map(len, handles)))), 1)
    n_rows = -(-len(handles) // n_columns)
    figure.set_size_inches(width, height + _LINE * n_rows)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=n_columns,
        fontsize=FONT_SIZE,
        frameon=False,
        handlelength=3,
    )


def draw_lines(
    panels: Mapping[str, Mapping[str, Points]], *, x_label: str, grey: str = "", **ticks: Any
) -> bytes:
    """Draw a panel for each title, with a line for each label, as a PNG file.

    `ticks` are arguments of matplotlib's `locator_params` for the x-axis.
    """
    figure, axes = make_panels(list(panels))
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    styles = line_styles(labels, grey=grey)
    for panel, lines in zip(axes, panels.values(), strict=True):
        for label, points in lines.items():
            if points:
                panel.plot(*zip(*points, strict=True), label=label, **styles[label])
        panel.set_xlabel(x_label, fontsize=FONT_SIZE)
        panel.locator_params("x", **ticks)
        panel.grid(alpha=0.3)
    add_legend(figure)
    return as_png(figure)


def as_png(figure: Figure) -> bytes:
    """The same bytes for the same figure, so that an unchanged picture is not committed again."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # dollar signs in a name enclose no formula
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})  # no version
    return stream.getvalue()
