"""Recipes: what YAML and command-line words become, and which mistakes are told apart."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import TrainingArguments

from modeling_condenser.analysis.analyze import AnalysisRecipe
from modeling_condenser.analysis.sample import Measuring
from modeling_condenser.evaluation.evaluate import EvaluationRecipe
from modeling_condenser.finetuning.finetune import FinetuningRecipe
from modeling_condenser.mining.recipe import MiningRecipe
from modeling_condenser.pretraining.data import Source
from modeling_condenser.pretraining.pretrain import PretrainingRecipe
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.runs.recipe import fill, find_recipe, parse_changes, read_recipe
from modeling_condenser.study.study import StudyRecipe

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


def read_text(text: str, tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    return read_recipe(file)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1e-4", 1e-4),
        (".5e1", 5.0),
        ("7", 7),
        ("true", True),
        ("null", None),
        ("no", "no"),
        ("On", "On"),
        ("[1, a]", [1, "a"]),
        ("{a: 1e2}", {"a": 100.0}),
        ("bert-base-uncased", "bert-base-uncased"),
        ("'1e-4'", "1e-4"),
    ],
)
def test_values_are_read_as_they_look(written, expected, tmp_path):
    from_file = read_text(f"field: {written}", tmp_path)["field"]
    from_words = parse_changes([f"--field={written}"])["field"]
    for value in (from_file, from_words):
        assert value == expected and type(value) is type(expected)


def test_fields_go_to_every_class_that_has_them():
    zoo, tickets, again = fill({"name": "Oslo", "price": 12, "cages": ["a"]}, Zoo, Tickets, Zoo)
    assert zoo == again == Zoo(name="Oslo", cages=["a"])
    assert tickets == Tickets(price=12.0) and type(tickets.price) is float
    assert fill({"name": "Oslo", "cages": "a"}, Zoo)[0].cages == ["a"]
    assert fill({"name": "Oslo", "season": None, "share": 1}, Zoo) == (Zoo("Oslo", share=1.0),)


def test_bfloat16_on_a_machine_without_accelerator_asks_for_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    settings = {"output_dir": str(tmp_path), "bf16": True}
    assert fill(settings, TrainingArguments)[0].use_cpu
    assert fill({**settings, "use_cpu": True, "bf16": False}, TrainingArguments)[0].use_cpu
    assert not fill({**settings, "bf16": False}, TrainingArguments)[0].use_cpu


def test_unknown_and_missing_fields_are_refused_and_the_nearest_named():
    with pytest.raises(ValueError, match="no field 'n_animal'. Did you mean 'n_animals'?"):
        fill({"name": "Oslo", "n_animal": 3}, Zoo, Tickets)
    with pytest.raises(ValueError, match="lacks the field 'price', which has no default"):
        fill({"name": "Oslo"}, Zoo, Tickets)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_animals", "3", "n_animals is '3', of type str; expected int"),
        ("is_open", "yes", "is_open is 'yes', of type str; expected bool"),
        ("keeper", 5, "keeper is 5, of type int; expected str or nothing"),
        ("season", "spring", "season is 'spring', expected one of 'summer', 'winter'"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(name, value, message):
    with pytest.raises(ValueError, match=message):
        fill({"name": "Oslo", name: value}, Zoo)


def test_a_shipped_recipe_is_found_by_name_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = SHIPPED / "study" / "demo.yaml"
    for name in ("study/demo", "study/demo.yaml"):
        assert find_recipe(name).samefile(file)
    assert read_recipe("study/demo")["control"] == "mlm"
    with pytest.raises(FileNotFoundError, match="no recipe 'study/dmo'.*study/demo"):
        find_recipe("study/dmo")
    with pytest.raises(ValueError, match="holds a list, expected `field: value` lines"):
        read_text("- a\n- b\n", tmp_path)


CLASSES: dict[str, tuple[type, ...]] = {
    "pretrain": (PretrainingRecipe, TrainingArguments),
    "finetune": (FinetuningRecipe, SentenceTransformerTrainingArguments),
    "mine": (MiningRecipe, SearchSettings),
    "evaluate": (EvaluationRecipe, SearchSettings),
    "study": (StudyRecipe,),
    "analyze": (AnalysisRecipe, Measuring),
}
ON_THE_COMMAND_LINE = {
    "encoder": "e",
    "system": "bm25",
    "systems": ["bm25"],
    "corpus": "c",
    "collection": "c",
    "output_dir": "runs/x",
    "models": ["m"],
    "out": "o",
}


@pytest.mark.parametrize(
    "name",
    [
        str(file.relative_to(SHIPPED).with_suffix(""))
        for kind in CLASSES
        for file in sorted((SHIPPED / kind).glob("*.yaml"))
    ],
)
def test_every_shipped_recipe_fills_its_classes(name):
    settings = read_recipe(name)
    check_fills(settings, name.partition("/")[0])
    for changes in settings.get("arms", {}).values():  # of a study
        check_fills({**settings["pretraining"], **changes}, "pretrain")
        check_fills(settings["finetuning"], "finetune")
        check_fills(settings.get("start", settings["pretraining"]), "pretrain")


def check_fills(settings: dict[str, Any], kind: str) -> None:
    """Fill the classes, with the fields that a recipe may leave to the command line."""
    classes = CLASSES[kind]
    known = {name for cls in classes for name in cls.__dataclass_fields__}
    left_out = {n: v for n, v in ON_THE_COMMAND_LINE.items() if n in known and n not in settings}
    if kind == "finetune" and "format" in settings:
        left_out = {**left_out, "data": "d"}
        left_out.pop("collection", None)
    elif kind == "finetune" and "n_negatives" in settings:
        left_out["negatives"] = "n"
    elif kind == "mine" and "negative_below" in settings:
        left_out["cross_encoder"] = "x"
    # Precision is checked against this machine's accelerator, which the recipe's need not be.
    precision = {n: False for n in ("bf16", "fp16", "tf32") if n in settings}
    filled = fill({**settings, **left_out, **precision}, *classes)
    if kind == "pretrain":
        assert all(isinstance(source, Source) for source in filled[0].sources)
