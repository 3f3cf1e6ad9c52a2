"""Pictures: what is drawn, read back from the figures."""

from matplotlib.colors import to_hex

from modeling_condenser.evaluation.plots import plot_bars, plot_points


def test_bars_have_values_and_intervals_in_a_panel_each() -> None:
    figure = plot_bars(
        {
            "MRR@10": {
                "bm25": {"mean": 0.2, "interval": [0.125, 0.3]},
                "ours": {"mean": 0.5, "interval": [0.25, 0.75]},
            },
            "R@100": {
                "bm25": {"mean": 0.8, "interval": None},
                "ours": {"mean": 0.9, "interval": None},
            },
        }
    )
    left, right = figure.axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("MRR@10", "R@100")
    assert [bar.get_width() for bar in left.patches] == [0.2, 0.5]
    assert [to_hex(bar.get_facecolor()) for bar in left.patches] == ["#808080", "#1f77b4"]
    (intervals,) = left.collections
    assert [line[:, 0].tolist() for line in intervals.get_segments()] == [
        [0.125, 0.3],
        [0.25, 0.75],
    ]
    assert [text.get_text() for text in right.texts] == ["0.800", "0.900"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["bm25", "ours"]


def test_points_are_connected_in_order_and_keep_the_colours_of_the_systems() -> None:
    points = {"bm25": [(100, 0.7), (20, 0.5)], "ours": [(20, 0.6), (100, 0.9)]}
    [axes] = plot_points(points, x_label="k", y_label="R@k").axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.5, 0.7], [0.6, 0.9]]
    assert [to_hex(line.get_color()) for line in axes.lines] == ["#808080", "#1f77b4"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["20", "100"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["bm25", "ours"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("k", "R@k")
