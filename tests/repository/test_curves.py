"""Training curves of runs."""

import matplotlib
import pytest
from matplotlib.figure import Figure

from modeling_condenser.repository.curves import draw_curves


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


def test_each_run_is_a_line_over_the_tokens_seen(figures: list[Figure]) -> None:
    runs = {
        "mlm": make_log(late_loss=[5.0, 4.0, 3.0]),
        "condenser": make_log(late_loss=[5.0, 4.5], head_loss=[6.0, 5.5], swap_cost=[0.0, 0.1]),
    }
    assert draw_curves(runs).startswith(b"\x89PNG\r\n")
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


def test_only_measures_that_occur_have_a_panel(figures: list[Figure]) -> None:
    assert b"<svg" in draw_curves({"mlm": make_log(late_loss=[5.0])}, kind=".svg")
    assert titles(figures[0]) == ["late MLM loss"]


def test_runs_too_short_to_log_leave_an_empty_panel(figures: list[Figure]) -> None:
    draw_curves({"mlm": make_log(late_loss=[])})
    assert titles(figures[0]) == ["late MLM loss"]
    assert figures[0].axes[0].lines[:] == []


@pytest.mark.parametrize("kind", [".png", ".svg"])
def test_the_same_logs_give_the_same_bytes(kind: str) -> None:
    runs = {"a": make_log(late_loss=[5.0, 4.0], head_loss=[6.0, 5.0])}
    first = draw_curves(runs, kind=kind)
    assert first == draw_curves(runs, kind=kind)
    assert matplotlib.__version__.encode() not in first
