"""DPR's JSON and the STS benchmark's own files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modeling_condenser.examples.data_files import find_data
from modeling_condenser.examples.formats import ExampleReader
from modeling_condenser.examples.published_formats import read_dpr, read_stsb
from modeling_condenser.repository.contract import EncodingContract

CONTRACT = EncodingContract(8, 8, title_separator=" | ")


def entry(**changes: Any) -> dict[str, Any]:
    """An entry as of biencoder-nq-train.json."""
    made = {
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
    }
    return {**made, **changes}


def read(*entries: dict[str, Any], least: int = 1) -> tuple[list[dict[str, Any]], dict[str, int]]:
    reader = ExampleReader("dpr", CONTRACT)
    records = iter([(f"f:{n}", made) for n, made in enumerate(entries, start=1)])
    examples = list(read_dpr(records, reader, least=least))
    return examples, {kind: count for kind, count in reader.left_out.items() if count}


def test_the_first_positive_and_the_hard_negatives_are_read_with_their_titles() -> None:
    examples, left_out = read(entry())
    assert examples == [
        {
            "query": "who barks",
            "positive": "Dog | Dogs bark.",
            "negatives": ["Cat | Cats do not.", "Trees have bark."],
        }
    ]
    assert left_out == {}


def test_other_negatives_stand_in_only_where_there_is_no_hard_one() -> None:
    (example,), _ = read(entry(hard_negative_ctxs=[]))
    assert example["negatives"] == ["Sun | It shines."]


def test_entries_without_positives_or_negatives_are_left_out_and_counted() -> None:
    same = {"title": "Dog", "text": "Dogs bark."}
    examples, left_out = read(
        entry(positive_ctxs=[]),
        entry(negative_ctxs=[], hard_negative_ctxs=[]),
        entry(hard_negative_ctxs=[same]),
        entry(question=" "),
        entry(),
    )
    assert len(examples) == 1
    assert left_out == {
        "questions without a positive passage": 1,
        "rows without a negative": 2,
        "rows with a blank text": 1,
        "negatives with the text of the positive": 1,
    }
    kept, _ = read(entry(negative_ctxs=[], hard_negative_ctxs=[]), least=0)
    assert kept[0]["negatives"] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": None}, "f:1: 'question' is None, expected text"),
        ({"positive_ctxs": "x"}, "f:1: 'positive_ctxs' is 'x', expected a list of passages"),
        (
            {"hard_negative_ctxs": ["x"]},
            "'hard_negative_ctxs' holds 'x', expected passages of title",
        ),
        ({"positive_ctxs": [{"title": "t"}]}, "'positive_ctxs' holds .*expected passages"),
    ],
)
def test_an_entry_of_another_layout_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(entry(**changes))


STSB = (
    "main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane takes off.\tAn air plane takes off.\n"
    'main-news\theadlines\t2013\t0024\t0.8\t"He said so," she said.\tNone\tCC\thttp://x\n'
)


def test_the_sts_benchmarks_own_files_are_read(write_text: Callable[[str, str], Path]) -> None:
    file = write_text(STSB, "sts-train.csv")
    reader = ExampleReader("stsb", CONTRACT, score_range=(0.0, 5.0))
    assert list(read_stsb(find_data(file), reader)) == [
        {
            "sentence1": "A plane takes off.",
            "sentence2": "An air plane takes off.",
            "label": 1.0,
        },
        {"sentence1": '"He said so," she said.', "sentence2": "None", "label": 0.16},
    ]
    other = write_text("sentence1,sentence2,score\na,b,1\n", "train.csv")
    with pytest.raises(ValueError, match="train.csv:1: 1 fields between tabs.*format graded_pairs"):
        list(read_stsb(find_data(other), reader))
