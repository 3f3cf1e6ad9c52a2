"""Pictures: what is drawn, read back from the figures."""

from matplotlib.colors import to_hex

from modeling_condenser.evaluation.plots import plot_bars, plot_curves


def test_bars_have_values_and_intervals_in_a_panel_each() -> None:
    bm25, ours = ({"mean": 0.2, "interval": [0.125, 0.3]}, {"mean": 0.5, "interval": [0.25, 0.75]})
    without = {"bm25": {"mean": 0.8, "interval": None}, "ours": {"mean": 0.9, "interval": None}}
    left, right = plot_bars({"MRR@10": {"bm25": bm25, "ours": ours}, "R@100": without}).axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("MRR@10", "R@100")
    assert [bar.get_width() for bar in left.patches] == [0.2, 0.5]
    assert [to_hex(bar.get_facecolor()) for bar in left.patches] == ["#808080", "#1f77b4"]
    (intervals,) = left.collections
    bounds = [line[:, 0].tolist() for line in intervals.get_segments()]
    assert bounds == [[0.125, 0.3], [0.25, 0.75]]
    assert [text.get_text() for text in right.texts] == ["0.800", "0.900"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["bm25", "ours"]


def test_curves_are_in_order_and_keep_the_colours_of_the_systems() -> None:
    [axes] = plot_curves([100, 20], {"bm25": [0.7, 0.5], "ours": [0.9, 0.6]}, y_label="R@k").axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.5, 0.7], [0.6, 0.9]]
    assert [to_hex(line.get_color()) for line in axes.lines] == ["#808080", "#1f77b4"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["20", "100"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["bm25", "ours"]
