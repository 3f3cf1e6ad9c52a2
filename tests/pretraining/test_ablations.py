"""The ablation recipes: each is the plain recipe with one thing changed, and can be trained."""

from pathlib import Path

import pytest

from modeling_condenser.pretraining.pretrain import PretrainingRecipe, open_model
from modeling_condenser.runs.recipe import read_recipe

CHANGES = {
    "mlm": {"objective": "mlm"},
    "no-skip": {"skip_from": 12},
    "no-late-mlm": {"late_mlm": False},
    "head-1": {"n_head_layers": 1},
    "head-2": {"n_head_layers": 2},
    "head-4": {"n_head_layers": 4},
}


def test_every_ablation_is_the_recipe_for_own_text_with_one_thing_changed() -> None:
    base = read_recipe("pretrain/own-text")
    folder = Path(__file__).parents[2] / "configuration" / "pretrain"
    shipped = {file.stem.removeprefix("ablation-") for file in folder.glob("ablation-*.yaml")}
    assert shipped == CHANGES.keys()
    for name, change in CHANGES.items():
        encoder = {"encoder": "google-bert/bert-base-uncased"}
        assert read_recipe(f"pretrain/ablation-{name}") == {**base, **encoder, **change}, name


@pytest.mark.parametrize("name", CHANGES)
def test_an_ablation_opens_the_model_that_it_describes(name, bert_folder) -> None:
    change = dict(CHANGES[name])
    if "skip_from" in change:
        change["skip_from"] = 4  # all layers of the tiny BERT
    model = open_model(PretrainingRecipe(str(bert_folder), "", **change))
    if name == "mlm":
        assert not hasattr(model, "head")
        return
    expected = {"n_head_layers": 2, "skip_from": 2, "late_mlm": True, **change}
    found = {field: getattr(model.config, field) for field in expected}
    assert found == expected
    assert len(model.head) == expected["n_head_layers"]
