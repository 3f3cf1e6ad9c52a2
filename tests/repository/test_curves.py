"""Training curves of runs."""

from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from modeling_condenser.repository.curves import plot_curves


def make_log(**measures: list[float]) -> list[dict[str, float]]:
    return [
        {
            "loss": 1.0,
            "step": 10 * (i + 1),
            "num_input_tokens_seen": 500_000 * (i + 1),
            **dict(zip(measures, values, strict=True)),
        }
        for i, values in enumerate(zip(*measures.values(), strict=True))
    ]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title().partition(" (")[0] for axes in figure.axes]


def test_each_run_is_a_line_over_the_tokens_seen(tmp_path: Path, figures: list[Figure]) -> None:
    runs = {
        "mlm": make_log(late_loss=[5.0, 4.0, 3.0]),
        "condenser": make_log(late_loss=[5.0, 4.5], head_loss=[6.0, 5.5], swap_cost=[0.0, 0.1]),
    }
    out = plot_curves(runs, tmp_path / "curves.png")
    assert out.read_bytes().startswith(b"\x89PNG\r\n")
    [figure] = figures
    assert titles(figure) == ["late MLM loss", "head MLM loss", "swap cost"]
    drawn = [
        {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
        for axes in figure.axes
    ]
    assert drawn == [
        {
            "mlm": [[0.5, 5.0], [1.0, 4.0], [1.5, 3.0]],
            "condenser": [[0.5, 5.0], [1.0, 4.5]],
        },
        {"condenser": [[0.5, 6.0], [1.0, 5.5]]},
        {"condenser": [[0.5, 0.0], [1.0, 0.1]]},
    ]


def test_only_measures_that_occur_have_a_panel(tmp_path: Path, figures: list[Figure]) -> None:
    plot_curves({"mlm": make_log(late_loss=[5.0])}, tmp_path / "curves.svg")
    assert titles(figures[0]) == ["late MLM loss"]
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_runs_too_short_to_log_leave_an_empty_panel(tmp_path: Path, figures: list[Figure]) -> None:
    plot_curves({"mlm": make_log(late_loss=[])}, tmp_path / "curves.png")
    assert titles(figures[0]) == ["late MLM loss"]
    assert figures[0].axes[0].lines[:] == []


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_same_logs_give_the_same_bytes(tmp_path: Path, ending: str) -> None:
    runs = {"a": make_log(late_loss=[5.0, 4.0], head_loss=[6.0, 5.0])}
    first, second = tmp_path / f"1.{ending}", tmp_path / f"2.{ending}"
    plot_curves(runs, first)
    with matplotlib.rc_context({"svg.hashsalt": None}):
        plot_curves(runs, second)
    assert first.read_bytes() == second.read_bytes()
    assert matplotlib.__version__.encode() not in first.read_bytes()
    plot_curves({"a": make_log(late_loss=[5.0, 3.0], head_loss=[6.0, 5.0])}, second)
    assert first.read_bytes() != second.read_bytes()


def test_a_run_that_counted_no_tokens_is_drawn_over_its_steps(
    tmp_path: Path, figures: list[Figure]
) -> None:
    log = [
        {"step": entry["step"], "late_loss": entry["late_loss"]}
        for entry in make_log(late_loss=[5.0, 4.0])
    ]
    plot_curves({"a": log}, tmp_path / "curves.png")
    [axes] = figures[0].axes
    assert axes.get_xlabel() == "steps"
    assert axes.lines[0].get_xydata().tolist() == [[10.0, 5.0], [20.0, 4.0]]
