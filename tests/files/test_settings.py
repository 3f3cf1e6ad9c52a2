"""Recipes: what YAML and command-line words become, and which mistakes are told apart."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import TrainingArguments

from modeling_condenser.analysis.recipe import AnalysisRecipe, Measuring
from modeling_condenser.evaluation.evaluate import EvaluationRecipe
from modeling_condenser.files.settings import (
    find_recipe,
    is_required,
    parse_settings,
    read_recipe,
    read_settings,
)
from modeling_condenser.finetuning.recipe import FinetuningRecipe, MiningRecipe
from modeling_condenser.pretraining.arguments import CondenserTrainingArguments, PretrainingRecipe
from modeling_condenser.pretraining.corpus import read_sources
from modeling_condenser.retrieval.systems import SearchSettings

SHIPPED = Path(__file__).parents[2] / "configuration"


@dataclass(frozen=True)
class Zoo:
    name: str
    n_animals: int = 3
    share: float = 0.5
    is_open: bool = True
    season: Literal["summer", "winter"] | None = None
    keeper: str | None = None
    cages: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Tickets:
    price: float


def test_numbers_that_yaml_reads_as_text_are_numbers(write_text):
    recipe = read_recipe(write_text("name: Oslo\nshare: 1e-4\nkeeper: '1e-4'", "recipe.yaml"))
    assert parse_settings(recipe, Zoo) == (Zoo("Oslo", share=1e-4, keeper="1e-4"),)


def test_fields_go_to_every_class_that_has_them():
    zoo, tickets, again = parse_settings(
        {"name": "Oslo", "price": 12, "cages": ["a"]}, Zoo, Tickets, Zoo
    )
    assert zoo == again == Zoo(name="Oslo", cages=["a"])
    assert tickets == Tickets(price=12.0) and type(tickets.price) is float
    assert parse_settings({"name": "Oslo", "cages": "a"}, Zoo)[0].cages == ["a"]
    assert parse_settings({"name": "Oslo", "season": None, "share": 1}, Zoo) == (
        Zoo("Oslo", share=1.0),
    )


@pytest.mark.parametrize("has_accelerator", [False, True])
def test_a_training_without_accelerator_asks_for_the_cpu(has_accelerator, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: has_accelerator)
    (arguments,) = parse_settings({"output_dir": str(tmp_path)}, TrainingArguments)
    assert arguments.use_cpu == (not has_accelerator)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_animal": 3}, "no field 'n_animal'. Did you mean 'n_animals'?"),
        ({"zzz": 3}, "no field 'zzz'. `condenser VERB --help` lists"),
        ({"n_animals": "3"}, "n_animals is '3', of type str; expected int"),
        ({"n_animals": True}, "n_animals is True, of type bool; expected int"),
        ({"keeper": 5}, r"keeper is 5, of type int; expected str \| None"),
        ({"season": "spring"}, "season is 'spring'.*'summer', 'winter'"),
        ({"cages": [1]}, r"cages is \[1\], of type list; expected list\[str\]"),
    ],
)
def test_a_wrong_setting_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        parse_settings({"name": "Oslo", **changes}, Zoo)
    with pytest.raises(ValueError, match="price is missing, and has no default"):
        parse_settings({"name": "Oslo"}, Zoo, Tickets)


def test_a_shipped_recipe_is_found_by_name_from_any_folder(tmp_path, monkeypatch, write_text):
    monkeypatch.chdir(tmp_path)
    for name in ("pretrain/starter", "pretrain/starter.yaml"):
        assert find_recipe(name).samefile(SHIPPED / "pretrain" / "starter.yaml")
    with pytest.raises(
        FileNotFoundError, match="'pretrain/startr'.* as pretrain/starter, "
    ) as error:
        find_recipe("pretrain/startr")
    assert "evaluate/" not in str(error.value)  # the nearest, not all
    with pytest.raises(ValueError, match="holds a list, expected `field: value` lines"):
        read_recipe(write_text("- a\n- b\n", "recipe.yaml"))


CLASSES: dict[str, tuple[type, ...]] = {
    "pretrain": (PretrainingRecipe, CondenserTrainingArguments),
    "finetune": (FinetuningRecipe, SentenceTransformerTrainingArguments),
    "mine": (MiningRecipe, SearchSettings),
    "evaluate": (EvaluationRecipe, SearchSettings),
    "analyze": (AnalysisRecipe, Measuring),
}
RECIPES = [
    f"{kind}/{file.stem}" for kind in CLASSES for file in sorted((SHIPPED / kind).glob("*.yaml"))
]


@pytest.mark.parametrize("name", RECIPES)
def test_every_shipped_recipe_fills_its_classes(name):
    settings = read_recipe(name)
    check_fills(settings, name.partition("/")[0])


def check_fills(settings, kind):
    fields = {f.name: f for cls in CLASSES[kind] for f in dataclasses.fields(cls)}
    # What a recipe leaves to the command line.
    left = {name: "bm25" for name, field in fields.items() if is_required(field)}
    if kind == "pretrain":
        left["tokenizer" if "encoder_config" in settings else "encoder"] = "x"
    if "columns" in settings or settings.get("objective") == "mse_cosine":
        left["data"] = "x"
    elif "collection" in fields:
        left["collection"] = "x"
        if "n_negatives" in settings and "negatives" in fields:
            left["negatives"] = "x"
    if "negative_below" in settings:
        left["cross_encoder"] = "x"
    # Precision is checked against this machine's accelerator, which the recipe's need not be.
    precision = {name: False for name in ("bf16", "fp16", "tf32") if name in settings}
    filled = parse_settings({**left, **settings, **precision}, *CLASSES[kind])
    if kind == "pretrain":
        assert read_sources(filled[0].corpus)


def test_null_takes_back_what_a_recipe_sets(write_text):
    recipe = write_text("{encoder: e, data: d, temperature: 0.05, margin: 1.0}", "recipe.yaml")
    words = [str(recipe), "--temperature", "null", "--n_negatives", "null", "--pooling", "null"]
    settings = read_settings("finetune", words, FinetuningRecipe)
    assert [settings[name] for name in ("temperature", "n_negatives", "pooling")] == [None] * 3
    [parsed] = parse_settings(settings, FinetuningRecipe)
    assert parsed.loss_temperature == 1.0
    with pytest.raises(ValueError, match="--margin: invalid float value: 'null'"):
        read_settings("finetune", [str(recipe), "--margin", "null"], FinetuningRecipe)
