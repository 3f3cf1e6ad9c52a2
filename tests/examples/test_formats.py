"""Rows as training examples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modeling_condenser.examples.data_files import find_data
from modeling_condenser.examples.formats import RowReader, read_stsb
from modeling_condenser.repository.contract import EncodingContract

CONTRACT = EncodingContract(8, 8, query_prompt="q: ", passage_prompt="p: ", title_separator=" | ")
STS = (0.0, 5.0)


def read(format: str, *rows: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    reader = RowReader(format, CONTRACT, **settings)
    return list(reader.read((f"f:{n}", row) for n, row in enumerate(rows, start=1)))


def test_texts_are_read_with_prompts_by_mapped_columns() -> None:
    row = {"question": "who?", "context": "cats", "hard": "dogs", "other": 1}
    columns = {"query": "question", "positive": "context", "negative": "hard"}
    pair = {"query": "q: who?", "positive": "p: cats"}
    assert read("pairs", row, columns=columns) == [pair]
    assert read("triples", row, columns=columns) == [{**pair, "negatives": ["p: dogs"]}]


@pytest.mark.parametrize(
    "negatives",
    [
        {"negatives": ["a", "b"]},
        {"negatives": '["a", "b"]'},  # a list in a table of texts
        {"negative_1": "a", "negative_2": "b", "negative_4": "not reached"},
        {"negative_1": "a", "negative_2": "b", "negative_3": None, "negative_4": ""},
    ],
)
def test_negatives_are_a_list_or_numbered_columns(negatives: dict[str, Any]) -> None:
    (example,) = read("negatives", {"query": "q", "positive": "c", **negatives})
    assert example["negatives"] == ["p: a", "p: b"]


@pytest.mark.parametrize(
    "scores",
    [
        {"scores": [3, 1, 2.5]},
        {"positive_score": "3", "negative_scores": [1, 2.5]},
        {"positive_score": 3, "negative_score_1": 1, "negative_score_2": 2.5},
    ],
)
def test_a_cross_encoders_scores_follow_the_passages(scores: dict[str, Any]) -> None:
    row = {"query": "q", "positive": "c", "negatives": ["a", "b"], **scores}
    (example,) = read("scored", row)
    assert example["teacher_scores"] == [3.0, 1.0, 2.5]


def test_a_margin_is_read_as_two_scores() -> None:
    row = {"query": "q", "positive": "c", "negative": "a", "margin": -1.5}
    assert read("scored", row)[0]["teacher_scores"] == [-1.5, 0.0]


def test_a_score_is_dropped_with_its_negative() -> None:
    row = {"query": "q", "positive": "c", "negatives": ["c", "a"], "scores": [3, 2, 1]}
    (example,) = read("scored", row)
    assert (example["negatives"], example["teacher_scores"]) == (["p: a"], [3.0, 1.0])


def test_graded_scores_become_0_to_1() -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": s} for s in ("0", 2.5, 5)]
    examples = read("graded_pairs", *rows, score_range=STS)
    assert [example["label"] for example in examples] == [0.0, 0.5, 1.0]
    # Both are encoded as passages, as in the evaluation of graded pairs.
    assert examples[0] == {"sentence1": "p: a", "sentence2": "p: b", "label": 0.0}
    (shifted,) = read("graded_pairs", {**rows[0], "score": 2}, score_range=(1.0, 5.0))
    assert shifted["label"] == 0.25


def test_rows_that_cannot_teach_are_left_out_with_the_reason() -> None:
    examples = read(
        "negatives",
        {"query": " ", "positive": "c", "negatives": ["a"]},
        {"query": "q", "positive": "c", "negatives": [" "]},
        {"query": "q", "positive": "c", "negatives": ["c"]},
        {"query": "q", "positive": "c", "negatives": ["c", "a"]},
    )
    assert examples == [
        {"left_out": "rows with a blank text"},
        {"left_out": "rows without a negative"},
        {"left_out": "rows without a negative"},
        {"query": "q: q", "positive": "p: c", "negatives": ["p: a"]},
    ]


PAIR = {"query": "q", "positive": "p"}
GRADED = {"sentence1": "a", "sentence2": "b"}


@pytest.mark.parametrize(
    ("format", "row", "message"),
    [
        ("pairs", {"query": "q", "positve": "p"}, r"f:1: .*'positive'.* columns: \{positive: posi"),
        ("pairs", {"query": None, "positive": "p"}, "f:1: query is None, expected text"),
        ("negatives", PAIR, "no column 'negatives' or 'negative' or"),
        ("negatives", {**PAIR, "negatives": "x"}, "negatives is 'x', expected a list"),
        ("negatives", {**PAIR, "negatives": [1]}, "expected a list of texts"),
        ("scored", {**PAIR, "negative": "n"}, "'positive_score' or 'scores'"),
        ("scored", {**PAIR, "negative": "n", "scores": [1]}, "f:1: 1 scores for 2 passages"),
        ("scored", {**PAIR, "negative": "n", "scores": [1, float("nan")]}, "finite numbers"),
        ("graded_pairs", {**GRADED, "score": "5.5"}, "5.5 is outside score_range"),
        ("graded_pairs", {**GRADED, "score": True}, "score is True, expected finite"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(format: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(format, row, score_range=STS)


def entry(**changes: Any) -> dict[str, Any]:
    """An entry as in biencoder-nq-train.json."""
    return {
        "dataset": "nq_train_psgs_w100",
        "question": "who barks",
        "answers": ["dogs"],
        "positive_ctxs": [
            {"title": "Dog", "text": "Dogs bark.", "score": 1000, "passage_id": "1"},
            {"title": "Wolf", "text": "Wolves, too.", "score": 999},
        ],
        "negative_ctxs": [{"title": "Sun", "text": "It shines."}],
        "hard_negative_ctxs": [
            {"title": "Cat", "text": "Cats do not."},
            {"title": "", "text": "Trees have bark."},
        ],
        **changes,
    }


def test_dprs_first_positive_and_hard_negatives_are_read_with_their_titles() -> None:
    dog = {"query": "q: who barks", "positive": "p: Dog | Dogs bark."}
    hard, other, none = read(
        "dpr",
        entry(),
        entry(hard_negative_ctxs=[]),
        entry(negative_ctxs=[], hard_negative_ctxs=[]),
        keep_without_negatives=True,
    )
    assert hard == {**dog, "negatives": ["p: Cat | Cats do not.", "p: Trees have bark."]}
    assert other == {**dog, "negatives": ["p: Sun | It shines."]}
    assert none == {**dog, "negatives": []}


def test_dprs_entries_without_positives_or_negatives_are_left_out() -> None:
    same = {"title": "Dog", "text": "Dogs bark."}
    examples = read(
        "dpr", entry(positive_ctxs=[]), entry(hard_negative_ctxs=[same]), entry(question=" ")
    )
    assert [example["left_out"] for example in examples] == [
        "questions without a positive passage",
        "rows without a negative",
        "rows with a blank text",
    ]
    with pytest.raises(ValueError, match="f:1: positive_ctxs.* 'text'"):
        read("dpr", entry(positive_ctxs=[{"title": "t"}]))


def test_the_sts_benchmarks_own_files_are_read(write_text: Callable[[str, str], Path]) -> None:
    lines = (
        "main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane takes off.\tA plane starts.\n"
        'main-news\theadlines\t2013\t0024\t0.8\t"So," she said.\tNone\tCC\thttp://x\n'
    )
    records = read_stsb(find_data(write_text(lines, "sts-train.csv")))
    examples = list(RowReader("stsb", EncodingContract(8, 8), score_range=STS).read(records))
    assert examples == [
        {"sentence1": "A plane takes off.", "sentence2": "A plane starts.", "label": 1.0},
        {"sentence1": '"So," she said.', "sentence2": "None", "label": 0.16},
    ]
    other = write_text("sentence1,sentence2,score\na,b,1\n", "train.csv")
    with pytest.raises(ValueError, match="train.csv:1: 1 fields between tabs.*graded_pairs"):
        list(read_stsb(find_data(other)))
