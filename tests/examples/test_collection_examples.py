"""Judgements, mined negatives and triples of ids as training examples."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.examples import collection_examples as module
from modeling_condenser.examples.collection_examples import (
    PassageRows,
    PassageTexts,
    judged_examples,
    mined_examples,
    read_mined,
    triple_examples,
)
from modeling_condenser.repository.contract import EncodingContract

CONTRACT = EncodingContract(8, 8, title_separator=" | ", query_prompt="q: ", passage_prompt="p: ")
PASSAGES = Dataset.from_dict(
    {
        "_id": [f"p{i}" for i in range(10)],
        "title": ["T" if i == 5 else "" for i in range(10)],
        "text": [f"text {i % 8}" for i in range(10)],  # p8 is a copy of p0, p9 of p1
    }
)
COLLECTION = Collection(
    PASSAGES,
    {"a": "query a", "b": "query b", "c": "query c"},
    {"a": {"p0": 1, "p1": 2}, "b": {"p2": 1, "p3": 0}, "c": {"p4": 1}},
    name="small",
)
Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BATCH_ROWS", "_BATCH_TRIPLES", "_BATCH_LINES"):
        monkeypatch.setattr(module, name, 2)


def test_rows_are_found_by_id_and_equal_texts_have_equal_content() -> None:
    rows = PassageRows(PASSAGES)
    assert rows.find(["p7", "p0", "p9", "p10", "", "p7"]).tolist() == [7, 0, 9, -1, -1, 7]
    keys = list(zip(PASSAGES["title"], PASSAGES["text"], strict=True))
    expected = np.array([[a == b for b in keys] for a in keys])
    assert np.array_equal(rows.content[:, None] == rows.content[None, :], expected)


def test_texts_come_in_the_order_of_the_rows_as_they_are_encoded() -> None:
    texts = PassageTexts(PASSAGES, CONTRACT)
    assert texts([5, 4, 5]) == ["p: T | text 5", "p: text 4", "p: T | text 5"]


def test_each_relevant_passage_makes_an_example_with_its_query() -> None:
    assert list(judged_examples(COLLECTION, CONTRACT)) == [
        {"query": "q: query a", "positive": 0},
        {"query": "q: query a", "positive": 1},
        {"query": "q: query b", "positive": 2},
        {"query": "q: query c", "positive": 4},
    ]


def triples(*rows: tuple[object, object, object]) -> list[dict[str, Any]]:
    names = ("qid", "positive_id", "negative_id")
    records = [(f"f:{n}", dict(zip(names, row, strict=True))) for n, row in enumerate(rows, 1)]
    return list(triple_examples(COLLECTION, records, {"query_id": "qid"}, CONTRACT))


def test_triples_of_ids_become_rows_and_useless_negatives_are_left_out() -> None:
    useless = {"left_out": module.USELESS_NEGATIVE}
    assert triples(("a", "p0", "p3"), ("a", "p0", "p1"), ("a", "p0", "p8"), ("b", "p2", "p0")) == [
        {"query": "q: query a", "positive": 0, "negatives": [3]},
        useless,  # relevant
        useless,  # a copy of the positive
        {"query": "q: query b", "positive": 2, "negatives": [0]},
    ]


@pytest.mark.parametrize("row", [("q9", "p1", "p3"), ("a", "p99", "p3"), ("a", "p1", "p99")])
def test_a_triple_with_an_unknown_id_is_refused(row: tuple[str, str, str]) -> None:
    unknown = next(i for i in row if "9" in i)
    with pytest.raises(ValueError, match=f"f:1.*'{unknown}'"):
        triples(row)


def line(query_id: str, *negatives: str, **further: Any) -> dict[str, Any]:
    return {"query_id": query_id, "negative_ids": list(negatives), "ignored": 1, **further}


def mined(
    file: Path, collection: Collection = COLLECTION, *, with_scores: bool = False
) -> list[dict[str, Any]]:
    lines = read_mined(file)
    return list(mined_examples(collection, lines, CONTRACT, with_scores=with_scores))


def test_each_judged_pair_gets_its_querys_negatives(write_jsonl: Write) -> None:
    file = write_jsonl([line("c", "p5"), line("a", "p7", "p6"), line("b", "p3", "p0")])
    assert mined(file) == [
        {"query": "q: query c", "positive": 4, "negatives": [5]},
        {"query": "q: query a", "positive": 0, "negatives": [7, 6]},
        {"query": "q: query a", "positive": 1, "negatives": [7, 6]},
        {"query": "q: query b", "positive": 2, "negatives": [3, 0]},
    ]


def test_lines_of_ids_with_commas_are_the_same_as_json(tmp_path: Path, write_jsonl: Write) -> None:
    rows = {"a": ["p7", "p6"], "b": ["p3", "p0"], "c": ["p5"]}
    table = "".join(f"{query}\t{','.join(ids)}\n" for query, ids in rows.items())
    (tmp_path / "n.tsv.gz").write_bytes(gzip.compress(table.encode()))
    json_file = write_jsonl([line(query, *ids) for query, ids in rows.items()])
    assert mined(tmp_path / "n.tsv.gz") == mined(json_file)


def test_relevant_passages_and_copies_of_the_positive_are_no_negatives(write_jsonl: Write) -> None:
    file = write_jsonl([line("a", "p1", "p8", "p6"), line("b", "p2"), line("z", "p0")])
    examples = mined(file)
    kept = [(e["positive"], e["negatives"]) for e in examples if "left_out" not in e]
    assert kept == [(0, [6]), (1, [8, 6])]  # p8 is a copy of p0
    assert sorted(e["left_out"] for e in examples if "left_out" in e) == [
        "lines of queries that are not in the split",
        "queries of the split without a line of negatives",
        "rows without a negative",
    ]


def test_the_positives_of_a_line_replace_the_judgements(write_jsonl: Write) -> None:
    """A cross-encoder may have relabelled passages as positives, or answers replace judgements."""
    file = write_jsonl([line("a", "p5", "p7", positive_ids=["p0", "p7"])])
    kept = [(e["positive"], e["negatives"]) for e in mined(file) if "left_out" not in e]
    assert kept == [(0, [5]), (7, [5])]
    by_answers = Collection(PASSAGES, {"a": "query a"}, {}, {"a": ("text",)}, name="answered")
    (example,) = mined(write_jsonl([line("a", "p5", positive_ids=["p3"])]), by_answers)
    assert (example["positive"], example["negatives"]) == (3, [5])
    with pytest.raises(ValueError, match="jsonl:1: neither the line nor the judgements"):
        mined(write_jsonl([line("a", "p5")]), by_answers)


def test_a_cross_encoders_scores_follow_their_passages(write_jsonl: Write) -> None:
    scores = {
        "positive_ids": ["p1", "p0"],
        "positive_teacher_scores": [9, 8.5],
        "negative_teacher_scores": [-1, -2.0, -3.5],
    }
    file = write_jsonl([line("a", "p6", "p8", "p7", **scores)])
    examples = [e for e in mined(file, with_scores=True) if "left_out" not in e]
    assert [(e["negatives"], e["teacher_scores"]) for e in examples] == [
        ([6, 8, 7], [9, -1, -2.0, -3.5]),  # of p1
        ([6, 7], [8.5, -1, -3.5]),  # of p0, of which p8 is a copy
    ]
    with pytest.raises(ValueError, match="jsonl:1: there are no cross-encoder scores"):
        mined(write_jsonl([line("a", "p6")]), with_scores=True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([line("a", "p6"), line("a", "p7")], "jsonl:2: a second line of query 'a'"),
        ([line("a", "p6", "p99")], "jsonl:1 or a later line names passage 'p99'"),
        ([line("a", "p6", negative_teacher_scores=[1, 2])], "jsonl:1: 2 cross-encoder scores"),
        ([line("a", "p6", negative_teacher_scores=["x"])], "expected a list of float"),
        ([line("a", "p6", negative_teacher_scores=[float("nan")])], "finite numbers"),
    ],
)
def test_a_line_that_does_not_fit_is_refused(
    write_jsonl: Write, rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        mined(write_jsonl(rows))
