"""Pictures: what is drawn, read back from the figures that are saved."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from modeling_condenser.evaluation.plots import (
    Estimate,
    colours_of,
    plot_breakdown,
    plot_costs,
    plot_differences,
    plot_means,
    plot_recall,
)
from modeling_condenser.measures.breakdown import break_down
from tests.evaluation.making import make_cost


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_the_baseline_is_grey_and_a_system_keeps_its_colour() -> None:
    first = colours_of(["bm25", "a", "b"], "bm25")
    second = colours_of(["a", "b", "bm25"], "bm25")
    assert first == second
    assert first["bm25"] == "#9a9a9a"
    assert len({*colours_of([f"s{i}" for i in range(9)], "s0").values()}) == 9


def test_means_are_bars_with_intervals_in_a_panel_a_measure(
    tmp_path: Path, figures: list[Figure]
) -> None:
    means = {
        "bm25": {"MRR@10": Estimate(0.2, (0.1, 0.3)), "R@100": Estimate(0.8, (0.7, 0.9))},
        "ours": {"MRR@10": Estimate(0.4, (0.35, 0.45)), "R@100": Estimate(0.9, None)},
    }
    out = plot_means(means, tmp_path / "means.png", baseline="bm25")
    assert out.read_bytes().startswith(b"\x89PNG\r\n")
    assert [file.name for file in tmp_path.iterdir()] == ["means.png"]
    left, right = figures[0].axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("MRR@10", "R@100")
    assert [bar.get_width() for bar in left.patches] == [0.2, 0.4]
    assert [list(line.get_xdata()) for line in left.lines] == [[0.1, 0.3], [0.35, 0.45]]
    assert [list(line.get_xdata()) for line in right.lines] == [[0.7, 0.9]]
    assert texts(right) == ["0.800", "0.900"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["bm25", "ours"]
    assert to_hex(left.patches[0].get_facecolor()) == "#9a9a9a"


def test_differences_are_sorted_and_counted(tmp_path: Path, figures: list[Figure]) -> None:
    plot_differences(
        {"ours": [0.0, -0.5, 1.0, 0.25, 0.0]}, tmp_path / "d.svg", measure="MRR@10", baseline="bm25"
    )
    [axes] = figures[0].axes
    [steps] = axes.patches
    assert list(steps.get_data().values) == [1.0, 0.25, 0.0, 0.0, -0.5]
    assert texts(axes) == ["better on 2", "equal on 2", "worse on 1"]
    assert axes.get_ylabel() == "MRR@10 minus bm25's"
    assert "<svg" in (tmp_path / "d.svg").read_text()


def test_breakdowns_are_grouped_bars_and_triangles_mark_what_differs(
    tmp_path: Path, figures: list[Figure]
) -> None:
    ids = [f"q{i}" for i in range(20)]
    base = dict.fromkeys([*ids, "one"], 0.25)
    good, bad = {**base, **dict.fromkeys(ids, 1.0)}, {**base, **dict.fromkeys(ids, 0.0)}
    breakdown = break_down(
        {"base": base, "good": good, "bad": bad},
        {"number": ids, "human": ["one"]},
        by="answer type",
        measure="MRR@10",
        baseline="base",
    )
    plot_breakdown(breakdown, tmp_path / "types.png")
    [axes] = figures[0].axes
    assert [bar.get_height() for bar in axes.patches] == [0.25, 0.25, 1.0, 0.25, 0.0, 0.25]
    assert texts(axes) == [".25", ".25", "▲\n1.00", ".25", "▼\n.00", ".25"]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["number\n20 queries", "human\n1 query"]
    [legend] = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["base", "good", "bad"]


def test_costs_are_points_of_quality_over_time_and_memory_a_row_a_device(
    tmp_path: Path, figures: list[Figure]
) -> None:
    plot_costs(
        {
            "bm25": [],
            "small": [make_cost("cpu", 50, 100)],
            "large": [make_cost("cpu", 200, None), make_cost("cuda", 4, 500)],
        },
        {"bm25": 0.2, "small": 0.3, "large": 0.4},
        tmp_path / "costs.png",
        measure="MRR@10",
        baseline="bm25",
    )
    points = [
        sorted(tuple(c.get_offsets()[0]) for c in axes.collections) for axes in figures[0].axes
    ]
    assert points == [[(50, 0.3), (200, 0.4)], [(100, 0.3)], [(4, 0.4)], [(500, 0.4)]]
    time, memory, gpu_time, _ = figures[0].axes
    assert time.get_title(loc="left") == "CPU: a machine"
    assert gpu_time.get_title(loc="left") == "GPU: a machine"
    assert time.get_xlabel() == "milliseconds a step of 8 texts of 64 tokens"
    assert (texts(time), texts(memory)) == (["small", "large"], ["small"])


def test_recall_is_a_line_through_the_measured_cutoffs(
    tmp_path: Path, figures: list[Figure]
) -> None:
    recall = {"bm25": {100: 0.7, 20: 0.5}, "ours": {20: 0.6, 100: 0.7}}
    plot_recall(recall, tmp_path / "recall.png", name="R@k", baseline="bm25")
    [axes] = figures[0].axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [
        [[20, 0.5], [100, 0.7]],
        [[20, 0.6], [100, 0.7]],
    ]
    assert texts(axes) == ["bm25 0.700", "ours 0.700"]
    heights = [text.xy[1] for text in axes.texts]
    assert heights[1] > heights[0]  # names do not cover each other where lines end together


def test_names_are_no_formulas_and_long_ones_keep_both_ends(
    tmp_path: Path, figures: list[Figure]
) -> None:
    long = "sentence-transformers__all-MiniLM-L6-v2-mean"
    estimates = {"MRR@10": Estimate(0.5)}
    plot_means({"a$b$c": estimates, long: estimates}, tmp_path / "n.png", baseline=None)
    [axes] = figures[0].axes
    labels = axes.get_yticklabels()
    assert [label.get_text() for label in labels] == ["a$b$c", "sentence-tran…iLM-L6-v2-mean"]
    assert not labels[0].get_parse_math()


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_one_system_on_one_query_can_be_drawn(tmp_path: Path, value: float) -> None:
    plot_means({"only": {"MRR@10": Estimate(value)}}, tmp_path / "m.png", baseline=None)
    found = break_down(
        {"only": {"q": value}}, {"number": ["q"]}, by="x", measure="P@1", baseline=None
    )
    plot_breakdown(found, tmp_path / "b.png")
    plot_differences({"only": [0.0]}, tmp_path / "d.png", measure="P@1", baseline="b")
    assert {file.name for file in tmp_path.iterdir()} == {"m.png", "b.png", "d.png"}
