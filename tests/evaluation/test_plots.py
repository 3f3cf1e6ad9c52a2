"""Pictures: what is drawn, read back from the figures that are saved."""

from pathlib import Path

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from modeling_condenser.evaluation.plots import Estimate, colours_of, plot_bars, plot_points


def test_the_baseline_is_grey_and_a_system_keeps_its_colour() -> None:
    first = colours_of(["bm25", "a", "b"], "bm25")
    assert first == colours_of(["a", "b", "bm25"], "bm25")
    assert first["bm25"] == "#9a9a9a"
    assert len({*colours_of([f"s{i}" for i in range(9)], "s0").values()}) == 9


def test_bars_have_values_and_intervals_in_a_panel_each(
    tmp_path: Path, figures: list[Figure]
) -> None:
    panels = {
        "MRR@10": {"bm25": Estimate(0.2, (0.1, 0.3)), "ours": Estimate(0.4, (0.35, 0.45))},
        "R@100": {"bm25": Estimate(0.8, (0.7, 0.9)), "ours": Estimate(0.9)},
    }
    out = plot_bars(panels, tmp_path / "means.png", baseline="bm25")
    assert out.read_bytes().startswith(b"\x89PNG\r\n")
    left, right = figures[0].axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("MRR@10", "R@100")
    assert [bar.get_width() for bar in left.patches] == [0.2, 0.4]
    assert [list(line.get_xdata()) for line in left.lines] == [[0.1, 0.3], [0.35, 0.45]]
    assert [list(line.get_xdata()) for line in right.lines] == [[0.7, 0.9]]
    assert [text.get_text() for text in right.texts] == ["0.800", "0.900"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["bm25", "ours"]
    assert to_hex(left.patches[0].get_facecolor()) == "#9a9a9a"


def test_points_are_connected_in_order_and_named(tmp_path: Path, figures: list[Figure]) -> None:
    points = {"bm25": [(100, 0.7), (20, 0.5)], "a $model$": [(20, 0.6), (100, 0.9)]}
    plot_points(
        {"k": points}, tmp_path / "r.svg", y_label="R@k", baseline="bm25", is_logarithmic=True
    )
    [axes] = figures[0].axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.5, 0.7], [0.6, 0.9]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["20", "100"]
    assert [text.get_text() for text in axes.texts] == ["bm25", "a $model$"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("k", "R@k")
    assert to_hex(axes.lines[0].get_color()) == "#9a9a9a"
