"""Readiness in logs and provenance, on cards and in pictures."""

from pathlib import Path

from matplotlib.figure import Figure

from modeling_condenser.repository.card import _draw_pictures, write_card
from modeling_condenser.repository.contract import EncodingContract
from modeling_condenser.repository.provenance import Stage, write_provenance
from modeling_condenser.repository.readiness import (
    layer_entropies,
    readiness_entries,
    readiness_table,
    titled_measures,
)


def entry(step: int, **measures: float) -> dict[str, float]:
    named = {f"readiness/{name.replace('__', '@')}": value for name, value in measures.items()}
    return {"step": step, "num_input_tokens_seen": 1000 * step, "epoch": 0.5, **named}


ENTRIES = (
    entry(0, swap_cost=0.0, entropy=1.5, entropy_layer_1=2.0, entropy_layer_2=1.0),
    entry(10, swap_cost=0.25, entropy=1.25, entropy_layer_1=2.0, entropy_layer_2=0.5),
    entry(20, swap_cost=0.5, entropy=1.0, entropy_layer_1=1.75, entropy_layer_2=0.25),
)


def test_a_logs_readiness_is_kept_apart_from_its_losses() -> None:
    log = [ENTRIES[0], {"step": 5, "loss": 2.0}, {**ENTRIES[1], "readiness/note": "text"}]
    kept = readiness_entries(log)
    assert [e["step"] for e in kept] == [0, 10]
    assert "epoch" not in kept[0] and "readiness/note" not in kept[1]
    assert kept[1]["readiness/swap_cost"] == 0.25
    many = readiness_entries([entry(i, swap_cost=0.0) for i in range(1000)])
    assert len(many) == 200 and (many[0]["step"], many[-1]["step"]) == (0, 999)
    assert readiness_entries([{"step": 1, "loss": 1.0}]) == ()


def test_layers_are_in_their_order_beyond_the_ninth() -> None:
    layers = {f"entropy_layer_{k}": k / 10 for k in (10, 2, 1, 11, 3)}
    assert layer_entropies(entry(0, entropy=9.0, **layers)) == [0.1, 0.2, 0.3, 1.0, 1.1]


def test_measures_have_titles_in_a_fixed_order_and_layers_none() -> None:
    given = [entry(0, few_shot_MRR__10=0.2, zero_shot_MRR__10=0.1, sample=7.0), *ENTRIES[1:2]]
    assert list(titled_measures(given).values()) == [
        "rise when the late CLS is another text's",
        "CLS attention entropy, mean over layers",
        "MRR@10 without fine-tuning",
        "MRR@10 after fine-tuning",
    ]


def test_the_card_shows_both_ends_of_each_stage(tmp_path: Path) -> None:
    EncodingContract(8, 8).save(tmp_path)
    stages = [Stage("Pre-training", {}, {}, readiness=e) for e in (ENTRIES, ENTRIES[:1])]
    write_provenance(tmp_path, stages)
    write_card(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "### Pre-training: measured 3 times" in text
    assert "### Pre-training 2: measured 1 time\n" in text
    lines = text.splitlines()
    assert "| rise when the late CLS is another text's | 0.0000 | 0.5000 | +0.5000 |" in lines
    assert "| rise when the late CLS is another text's | 0.0000 |" in lines
    assert "](readiness.png)" in text and "](attention_entropy.png)" in text


def test_a_measure_that_one_model_lacks_is_an_empty_cell() -> None:
    with_head, without = entry(0, swap_cost=0.5, entropy=1.0), entry(0, entropy=1.5)
    rows = readiness_table({"a": with_head, "b": without}).splitlines()[2:]
    assert rows == [
        "| rise when the late CLS is another text's | 0.5000 |  |  |",
        "| CLS attention entropy, mean over layers | 1.0000 | 1.5000 | +0.5000 |",
    ]


def test_pictures_show_what_was_measured(figures: list[Figure]) -> None:
    stage = Stage("Pre-training", {}, {}, readiness=ENTRIES)
    assert list(_draw_pictures([stage])) == ["readiness.png", "attention_entropy.png"]
    course, entropies = figures
    [swaps] = course.axes[0].lines
    assert swaps.get_xydata().tolist() == [[0.0, 0.0], [0.01, 0.25], [0.02, 0.5]]
    drawn = {line.get_label(): line.get_ydata().tolist() for line in entropies.axes[0].lines}
    assert drawn == {"start": [2.0, 1.0], "step 20": [1.75, 0.25]}
    assert _draw_pictures([Stage("Pre-training", {}, {}, readiness=ENTRIES[:1])]).keys() == {
        "attention_entropy.png"
    }
