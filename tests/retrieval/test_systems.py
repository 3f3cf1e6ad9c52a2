"""Systems by name: what a command's word says."""

from pathlib import Path

import pytest
from datasets import Dataset

from modeling_condenser.retrieval.runs import write_run
from modeling_condenser.retrieval.systems import open_searcher, parse_system


def test_an_encoder_is_named_after_its_folder_or_its_run(tmp_path: Path) -> None:
    system = parse_system(tmp_path / "my-encoder")
    assert (system.model, system.name) == (str(tmp_path / "my-encoder"), "my-encoder")
    assert system.is_dense and not system.is_lexical
    assert parse_system(tmp_path / "my-run" / "model").name == "my-run"


def test_settings_are_read_by_their_kind_and_are_part_of_the_name() -> None:
    system = parse_system("owner/bert,pooling=mean,query_max_length=32,token_budget=512")
    assert dict(system.settings) == {
        "pooling": "mean",
        "query_max_length": 32,
        "token_budget": 512,
    }
    assert system.name == "bert-mean-32"  # the budget changes no vector
    named = parse_system("owner/e5,name=E5,query_prompt=query= ")
    assert (named.name, named.settings) == ("E5", {"query_prompt": "query= "})
    assert named.word == "owner/e5,query_prompt=query= ,name=E5"


def test_a_system_takes_a_dtype_only_if_it_states_none() -> None:
    system = parse_system("owner/bert,pooling=cls")
    half = system.in_dtype("bfloat16")
    assert (half.name, half.settings["dtype"]) == ("bert-cls-bfloat16", "bfloat16")
    assert half.word == "owner/bert,pooling=cls,dtype=bfloat16"
    assert parse_system(half.word) == half
    assert system.in_dtype("float32") == system
    stated = parse_system("owner/bert,dtype=float32,name=mine")
    assert stated.in_dtype("bfloat16") == stated
    assert parse_system("owner/bert,name=mine").in_dtype("bfloat16").name == "mine"
    assert parse_system("bm25").in_dtype("bfloat16") == parse_system("bm25")


def test_bm25_has_settings_of_its_own() -> None:
    system = parse_system("bm25,k1=0.82,b=0.68")
    assert system.is_lexical
    assert dict(system.settings) == {"k1": 0.82, "b": 0.68}
    assert system.name == "bm25-0.82-0.68"
    assert parse_system("bm25,preset=thesis").name == "bm25-thesis"
    with pytest.raises(ValueError, match="bm25 has no vectors"):
        system.open()


def test_a_run_file_answers_the_queries_that_it_has(tmp_path: Path) -> None:
    file = write_run(
        {"q1": {"a": 1.0, "b": 3.0, "c": 3.0}, "q2": {"a": 1.0}}, tmp_path / "theirs.trec", tag="x"
    )
    system = parse_system(file)
    assert (system.name, system.is_stored, system.is_dense) == ("theirs", True, False)
    searcher = open_searcher(system, Dataset.from_dict({"_id": ["a"]}), tmp_path)
    assert searcher.search({"q1": "x", "q3": "y"}, depth=2) == {"q1": {"b": 3.0, "c": 3.0}}
    with pytest.raises(ValueError, match="has no vectors"):
        system.open()
    before = system.fingerprint
    file.write_text(file.read_text().replace("3.0", "4.0"))
    assert parse_system(file).fingerprint != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no system"),
        ("bm25,pooling=mean", "bm25 has no setting 'pooling=mean'.*preset=…, k1=…, b=…"),
        ("x,poling=mean", "Did you mean 'pooling'"),
        ("x,pooling=last", "pooling is 'last', expected one of cls, mean, max"),
        ("x,query_max_length=long", "query_max_length is 'long', expected int"),
    ],
)
def test_wrong_settings_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_system(text)
