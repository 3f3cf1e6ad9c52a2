"""Training curves, readiness in logs, and their pictures and tables."""

from matplotlib.figure import Figure

from modeling_condenser.hub.curves import draw_curves, draw_entropies, draw_readiness
from modeling_condenser.hub.training_log import (
    layer_entropies,
    readiness_entries,
    readiness_table,
)


def make_log(**measures: list[float]) -> list[dict[str, float]]:
    rows = [dict(zip(measures, row, strict=True)) for row in zip(*measures.values(), strict=True)]
    return [
        {"step": 10 * i, "num_input_tokens_seen": 500_000 * i, "loss": 1.0, **row}
        for i, row in enumerate(rows, start=1)
    ]


def entry(step: int, **measures: float) -> dict[str, float]:
    named = {f"readiness/{name.replace('__', '@')}": value for name, value in measures.items()}
    return {"step": step, "num_input_tokens_seen": 1000 * step, "epoch": 0.5, **named}


def drawn(figure: Figure) -> list[dict[str, list]]:
    """Label -> points of each panel."""
    return [
        {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
        for axes in figure.axes
    ]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title().partition(" (")[0] for axes in figure.axes]


def test_each_run_is_a_line_over_the_tokens_seen(figures: list[Figure]) -> None:
    runs = {
        "mlm": make_log(late_loss=[5.0, 4.0, 3.0]),
        "condenser": make_log(late_loss=[5.0, 4.5], head_loss=[6.0, 5.5], swap_cost=[0.0, 0.1]),
    }
    picture = draw_curves(runs)
    assert picture.startswith(b"\x89PNG\r\n") and picture == draw_curves(runs)
    assert titles(figures[0]) == ["late MLM loss", "head MLM loss", "swap cost"]
    assert drawn(figures[0]) == [
        {
            "mlm": [[0.5, 5.0], [1.0, 4.0], [1.5, 3.0]],
            "condenser": [[0.5, 5.0], [1.0, 4.5]],
        },
        {"condenser": [[0.5, 6.0], [1.0, 5.5]]},
        {"condenser": [[0.5, 0.0], [1.0, 0.1]]},
    ]
    draw_curves({"too short to log": []})
    assert (titles(figures[-1]), drawn(figures[-1])) == (["late MLM loss"], [{}])


def test_readiness_and_entropies_are_drawn(figures: list[Figure]) -> None:
    log = [entry(0, swap_cost=0.0, zero_shot_R__5=0.5), entry(10, swap_cost=0.25, zero_cost=0.5)]
    draw_readiness({"a": log})
    draw_entropies({"b": {"start": [2.0, 1.0], "end": [1.5]}}, even=3.0)
    readiness, entropies = figures
    assert drawn(readiness) == [
        {"a, zero cost": [[0.01, 0.5]], "a, swap cost": [[0.0, 0.0], [0.01, 0.25]]},
        {"a, no labels": [[0.0, 0.5]]},
    ]
    assert drawn(entropies) == [
        {
            "start": [[1.0, 2.0], [2.0, 1.0]],
            "end": [[1.0, 1.5]],
            "even attention": [[1.0, 3.0], [2.0, 3.0]],
        }
    ]


def test_a_logs_readiness_is_kept_apart_from_its_losses() -> None:
    log = [
        entry(0, swap_cost=0.0),
        {"step": 5, "loss": 2.0},
        {**entry(10, swap_cost=0.25), "readiness/note": "text"},
    ]
    assert readiness_entries(log) == [
        {"step": 0, "num_input_tokens_seen": 0, "readiness/swap_cost": 0.0},
        {"step": 10, "num_input_tokens_seen": 10000, "readiness/swap_cost": 0.25},
    ]


def test_measures_have_titles_and_layers_are_sorted_by_number() -> None:
    both = {"entropy": 1.0, "zero_shot_MRR__10": 0.1}
    with_head = entry(0, few_shot_MRR__10=0.2, sample=7.0, swap_cost=0.5, **both)
    assert readiness_table({"a": with_head, "b": entry(0, **both | {"entropy": 1.5})}) == (
        "|  | a | b | difference |\n| --- | ---: | ---: | ---: |\n"
        "| swap cost | 0.5000 |  |  |\n"
        "| CLS attention entropy, mean over layers | 1.0000 | 1.5000 | +0.5000 |\n"
        "| MRR@10 without fine-tuning | 0.1000 | 0.1000 | +0.0000 |\n"
        "| MRR@10 after fine-tuning | 0.2000 |  |  |"
    )
    layers = {f"entropy_layer_{k}": k / 10 for k in (10, 2, 1, 11, 3)}
    assert layer_entropies(entry(0, entropy=9.0, **layers)) == [0.1, 0.2, 0.3, 1.0, 1.1]
