"""Recipes: what YAML and command-line words become, and which mistakes are told apart."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import TrainingArguments

from modeling_condenser.analysis.analyze import AnalysisRecipe
from modeling_condenser.analysis.sample import Measuring
from modeling_condenser.biencoder.finetune import FinetuningRecipe
from modeling_condenser.evaluation.evaluate import EvaluationRecipe
from modeling_condenser.mining.recipe import MiningRecipe
from modeling_condenser.pretraining.corpus import Source
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
    currency: Literal["EUR", "NOK"] = "EUR"


def read_text(text: str, tmp_path: Path, *changes: str) -> dict[str, Any]:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    return read_recipe(file, changes)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1e-4", 1e-4),
        (".5e1", 5.0),
        ("1.5", 1.5),
        ("7", 7),
        ("true", True),
        ("null", None),
        ("[1, a]", [1, "a"]),
        ("{a: 1e2}", {"a": 100.0}),
        ("1e", "1e"),
        ("bert-base-uncased", "bert-base-uncased"),
        ("'1e-4'", "1e-4"),
    ],
)
def test_values_are_read_as_they_look(written: str, expected: Any, tmp_path: Path) -> None:
    from_file = read_text(f"field: {written}", tmp_path)["field"]
    from_words = parse_changes(["--field", written])["field"]
    for value in (from_file, from_words):
        assert value == expected and type(value) is type(expected)


def test_the_library_s_own_yaml_is_left_alone() -> None:
    assert yaml.safe_load("1e-4") == "1e-4"


def test_changes_come_over_the_file(tmp_path: Path) -> None:
    text = "learning_rate: 1e-4\nmax_steps: 10\ncorpus: {path: a, name: en}\n"
    words = ["--max_steps", "20", "--learning-rate=3e-5", "--bf16", "true", "--seed", "-1"]
    assert read_text(text, tmp_path, *words) == {
        "learning_rate": 3e-5,
        "max_steps": 20,
        "corpus": {"path": "a", "name": "en"},
        "bf16": True,
        "seed": -1,
    }


def test_a_value_may_hold_an_equals_sign_or_be_empty() -> None:
    changes = parse_changes(["--run_name=a=b", "--keeper", "", "--corpus", "{path: x}"])
    assert changes == {"run_name": "a=b", "keeper": None, "corpus": {"path": "x"}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed", "1"], "'seed' came without a field"),
        (["--seed"], "--seed came without a value"),
    ],
)
def test_words_that_are_no_changes_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_changes(words)


def test_a_file_that_is_no_mapping_is_refused_and_an_empty_one_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds a list, expected `field: value` lines"):
        read_text("- a\n- b\n", tmp_path)
    assert read_text("# nothing\n", tmp_path, "--a", "1") == {"a": 1}


def test_fields_go_to_the_class_that_has_them() -> None:
    zoo, tickets = fill({"name": "Oslo", "price": 12, "cages": ["a"]}, Zoo, Tickets)
    assert zoo == Zoo(name="Oslo", cages=["a"])
    assert tickets == Tickets(price=12.0) and type(tickets.price) is float


def test_an_unknown_field_is_refused_and_the_nearest_named() -> None:
    with pytest.raises(ValueError, match="no field 'n_animal'. Did you mean 'n_animals'?"):
        fill({"name": "Oslo", "n_animal": 3}, Zoo, Tickets)
    with pytest.raises(ValueError, match="no field 'xyzzy'.$"):
        fill({"name": "Oslo", "xyzzy": 3}, Zoo)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValueError, match="lacks the field 'price', which has no default"):
        fill({"name": "Oslo"}, Zoo, Tickets)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_animals", "3", "n_animals is '3', of type str; expected int"),
        ("n_animals", True, "n_animals is True, of type bool; expected int"),
        ("share", "1/2", "share is '1/2', of type str; expected float"),
        ("is_open", "yes", "is_open is 'yes', of type str; expected bool"),
        ("name", 5, "name is 5, of type int; expected str"),
        ("keeper", 5, "keeper is 5, of type int; expected str or nothing"),
        ("season", "spring", "season is 'spring', expected one of 'summer', 'winter'"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill({"name": "Oslo", name: value}, Zoo)


@pytest.mark.parametrize(
    ("name", "value"),
    [("season", "winter"), ("season", None), ("keeper", None), ("keeper", "Ng"), ("share", 1)],
)
def test_a_value_of_a_right_type_is_taken(name: str, value: Any) -> None:
    (zoo,) = fill({"name": "Oslo", name: value}, Zoo)
    assert getattr(zoo, name) == value


def test_a_field_of_the_library_that_takes_a_number_takes_a_whole_one(tmp_path: Path) -> None:
    settings = {"output_dir": str(tmp_path), "learning_rate": 1, "warmup_steps": 100, "seed": 4}
    (arguments,) = fill({**settings, "report_to": "none", "use_cpu": True}, TrainingArguments)
    assert (arguments.learning_rate, arguments.warmup_steps, arguments.seed) == (1.0, 100, 4)
    with pytest.raises(ValueError, match="no field 'warmup_ration'. Did you mean 'warmup_"):
        fill({**settings, "warmup_ration": 0.1}, TrainingArguments)


def test_a_corpus_is_one_source_or_several() -> None:
    def sources(corpus: Any) -> list[Source]:
        return PretrainingRecipe(encoder="e", corpus=corpus).sources

    assert sources("a.txt") == [Source("a.txt")]
    assert sources({"path": "a/b", "name": "en"}) == [Source("a/b", name="en")]
    assert sources(["a.txt", {"path": "b", "join_rows": 20}]) == [
        Source("a.txt"),
        Source("b", join_rows=20),
    ]
    with pytest.raises(ValueError, match="no field 'text_colum'. Did you mean 'text_column'?"):
        sources({"path": "a", "text_colum": "b"})


def test_a_shipped_recipe_is_found_by_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = SHIPPED / "study" / "demo.yaml"
    for name in ("study/demo", "study/demo.yaml"):
        assert find_recipe(name).samefile(file)
    assert read_recipe("study/demo")["control"] == "mlm"


def test_an_unknown_recipe_is_refused_and_the_shipped_ones_named() -> None:
    with pytest.raises(FileNotFoundError, match="no recipe 'study/dmo'.*study/demo"):
        find_recipe("study/dmo")


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
def test_every_shipped_recipe_fills_its_classes(name: str) -> None:
    settings = read_recipe(name)
    classes = CLASSES[name.partition("/")[0]]
    check_fills(settings, classes)
    if classes == (StudyRecipe,):
        for changes in settings["arms"].values():
            check_fills({**settings["pretraining"], **changes}, CLASSES["pretrain"])
        check_fills(settings["finetuning"], CLASSES["finetune"])
        if "start" in settings:
            check_fills(settings["start"], CLASSES["pretrain"])


def check_fills(settings: dict[str, Any], classes: tuple[type, ...]) -> None:
    """Fill the classes, with what a recipe may leave to the command line."""
    known = {name for cls in classes for name in cls.__dataclass_fields__}
    left_out = {n: v for n, v in ON_THE_COMMAND_LINE.items() if n in known and n not in settings}
    if classes[0] is FinetuningRecipe and "format" in settings:
        left_out = {**left_out, "data": "d"}
        left_out.pop("collection", None)
    elif classes[0] is FinetuningRecipe and "n_negatives" in settings:
        left_out["negatives"] = "n"
    elif classes[0] is MiningRecipe and "negative_below" in settings:
        left_out["cross_encoder"] = "x"
    # Precision is checked against this machine's accelerator, which the recipe's need not be.
    precision = {n: False for n in ("bf16", "fp16", "tf32") if n in settings}
    filled = fill({**settings, **left_out, **precision}, *classes)
    if classes[0] is PretrainingRecipe:
        assert all(isinstance(source, Source) for source in filled[0].sources)
