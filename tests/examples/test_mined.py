"""Hard negatives: both kinds of files, and what is left out of them."""

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.examples import mined as module
from modeling_condenser.examples.mined import mined_examples, read_negatives
from modeling_condenser.repository.contract import EncodingContract

CONTRACT = EncodingContract(8, 8)
PASSAGES = Dataset.from_dict(
    {
        "_id": [f"p{i}" for i in range(10)],
        "title": [""] * 10,
        "text": [f"text {i % 8}" for i in range(10)],  # p8 reads like p0, p9 like p1
    }
)
COLLECTION = Collection(
    PASSAGES,
    {"a": "query a", "b": "query b", "c": "query c"},
    {"a": {"p0": 1, "p1": 2}, "b": {"p2": 1, "p3": 0}, "c": {"p4": 1}},
    name="small",
)
Write = Callable[..., Path]


def line(query_id: str, *negatives: str, **further: Any) -> dict[str, Any]:
    return {
        "query_id": query_id,
        "positive_ids": [],
        "negative_ids": list(negatives),
        "negative_scores": [1.0] * len(negatives),
        "further": "ignored",
        **further,
    }


def examples(file: Path, *, scored: bool = False) -> tuple[list[dict[str, Any]], dict[str, int]]:
    left_out: Counter[str] = Counter()
    made = mined_examples(COLLECTION, read_negatives(file), CONTRACT, left_out, scored=scored)
    return list(made), {kind: count for kind, count in left_out.items() if count}


def test_each_judged_pair_takes_its_querys_negatives(
    write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH", 2)
    file = write_jsonl([line("c", "p5"), line("a", "p7", "p6"), line("b", "p3", "p0")])
    made, left_out = examples(file)
    assert made == [
        {"query": "query c", "positive_row": 4, "negative_rows": [5]},
        {"query": "query a", "positive_row": 0, "negative_rows": [7, 6]},
        {"query": "query a", "positive_row": 1, "negative_rows": [7, 6]},
        {"query": "query b", "positive_row": 2, "negative_rows": [3, 0]},
    ]
    assert left_out == {}


def test_lines_of_ids_with_commas_are_read_too(
    write_text: Callable[[str, str], Path], tmp_path: Path
) -> None:
    content = "a\tp7,p6\nb\tp3,p0\nc\tp5\n"
    plain, _ = examples(write_text(content, "train.negatives.tsv"))
    (tmp_path / "n.tsv.gz").write_bytes(gzip.compress(content.encode()))
    assert examples(tmp_path / "n.tsv.gz")[0] == plain
    assert [example["negative_rows"] for example in plain] == [[7, 6], [7, 6], [3, 0], [5]]


def test_what_is_no_negative_is_left_out_and_counted(write_jsonl: Write) -> None:
    file = write_jsonl([line("a", "p1", "p8", "p6"), line("b", "p2"), line("z", "p0")])
    made, left_out = examples(file)
    # p8 has the text of p0, but not of p1.
    assert [(e["positive_row"], e["negative_rows"]) for e in made] == [(0, [6]), (1, [8, 6])]
    assert left_out == {
        "negatives that are relevant": 3,  # p1 for each of a's pairs, p2 for b's
        "negatives with the text of the positive": 1,
        "lines of queries that the split has not": 1,
        "queries of the split without a line of negatives": 1,
        "rows without a negative": 1,
    }


def test_the_positives_of_a_line_go_before_the_judgements(write_jsonl: Write) -> None:
    """A cross-encoder may have taken further passages for relevant, or answers stand for them."""
    file = write_jsonl([line("a", "p5", "p7", positive_ids=["p0", "p7"]), line("b", "p5")])
    first, second, _ = examples(file)[0]
    assert (first["positive_row"], first["negative_rows"]) == (0, [5])
    assert (second["positive_row"], second["negative_rows"]) == (7, [5])
    by_answers = Collection(PASSAGES, {"a": "query a"}, {}, {"a": ("text",)}, name="answered")
    file = write_jsonl([line("a", "p5", positive_ids=["p3"])])
    (made,) = mined_examples(by_answers, read_negatives(file), CONTRACT, Counter())
    assert (made["positive_row"], made["negative_rows"]) == (3, [5])
    file = write_jsonl([line("a", "p5")])
    with pytest.raises(
        ValueError, match="jsonl:1: neither the line nor the judgements of answered"
    ):
        list(mined_examples(by_answers, read_negatives(file), CONTRACT, Counter()))


def test_a_cross_encoders_scores_follow_their_passages(write_jsonl: Write) -> None:
    scores = {
        "positive_ids": ["p1", "p0"],
        "positive_teacher_scores": [9, 8.5],
        "negative_teacher_scores": [-1, -2.0, -3.5],
    }
    made, _ = examples(write_jsonl([line("a", "p6", "p8", "p7", **scores)]), scored=True)
    assert [(e["negative_rows"], e["teacher_scores"]) for e in made] == [
        ([6, 8, 7], [9, -1, -2.0, -3.5]),  # of p1
        ([6, 7], [8.5, -1, -3.5]),  # of p0, whose text p8 has
    ]
    with pytest.raises(ValueError, match="jsonl:1: no cross-encoder's scores of the positives"):
        examples(write_jsonl([line("a", "p6")]), scored=True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([line("a", "p6"), line("a", "p7")], "jsonl:2: query 'a' stands on an earlier line too"),
        ([line("a", "p6", "p99")], "jsonl:1: passage 'p99' is not in small: take negatives and"),
        ([{"query_id": 1, "negative_ids": []}], "jsonl:1: 'query_id' is 1, expected a string"),
        ([{"query_id": "a"}], "jsonl:1: 'negative_ids' is None, expected a list of strings"),
        (
            [line("a", "p6", negative_teacher_scores=[1, 2])],
            "jsonl:1: 2 teacher.s scores for 1 passages",
        ),
        ([line("a", "p6", negative_teacher_scores=["x"])], "expected a list of numbers"),
        ([line("a", "p6", negative_teacher_scores=[float("nan")])], "a list of numbers"),
    ],
)
def test_a_line_that_does_not_fit_is_refused(
    write_jsonl: Write, rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        examples(write_jsonl(rows))


def test_a_missing_file_is_said() -> None:
    with pytest.raises(
        FileNotFoundError, match="no file of negatives nowhere.jsonl.*condenser mine"
    ):
        examples(Path("nowhere.jsonl"))
