"""The encoding contract as a file."""

import json
from pathlib import Path

import pytest

from modeling_condenser.repository.contract import EncodingContract


def write(folder: Path, **fields: object) -> None:
    (folder / "encoding_contract.json").write_text(json.dumps(fields))


def test_a_saved_contract_comes_back(tmp_path: Path) -> None:
    contract = EncodingContract(
        32,
        128,
        pooling="mean",
        similarity="cosine",
        title_separator=" [SEP] ",
        query_prompt="query: ",
        passage_prompt="passage: ",
        token_type_ids=True,
    )
    contract.save(tmp_path)
    assert EncodingContract.load(tmp_path) == contract
    assert json.loads((tmp_path / "encoding_contract.json").read_text()) == {
        "query_max_length": 32,
        "passage_max_length": 128,
        "pooling": "mean",
        "similarity": "cosine",
        "title_separator": " [SEP] ",
        "query_prompt": "query: ",
        "passage_prompt": "passage: ",
        "token_type_ids": True,
    }


def test_a_folder_without_a_contract_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no encoding_contract.json.*condenser export"):
        EncodingContract.load(tmp_path)


def test_an_unknown_field_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, query_max_length=8, passage_max_length=8, similarty="dot")
    with pytest.raises(ValueError, match="'similarty'.*'similarity'"):
        EncodingContract.load(tmp_path)


def test_prompts_stand_before_queries_and_passages_and_before_the_title() -> None:
    contract = EncodingContract(8, 16, query_prompt="q: ", passage_prompt="p: ")
    assert contract.query("what?") == "q: what?"
    assert contract.passage("A title", "a text") == "p: A title a text"
    assert contract.passage("", "a text") == "p: a text"
