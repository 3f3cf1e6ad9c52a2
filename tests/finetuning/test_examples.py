"""Rows of every format as training examples."""

from functools import partial
from typing import Any

import pytest

from modeling_condenser.finetuning.examples import convert_rows, make_text_example
from modeling_condenser.finetuning.recipe import FinetuningRecipe
from modeling_condenser.hub.contract import EncodingContract

CONTRACT = EncodingContract(8, 8, query_prompt="q: ", passage_prompt="p: ", title_separator=" | ")
OBJECTIVES: dict[str, Any] = {"graded_pairs": "mse_cosine", "stsb": "mse_cosine", "scored": "kl"}


def make(format: Any, *rows: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    objective = OBJECTIVES.get(format, "contrastive")
    recipe = FinetuningRecipe("e", objective, data="f", format=format, **settings)
    return list(convert_rows(rows, recipe, partial(make_text_example, recipe, CONTRACT)))


def test_texts_are_read_with_prompts_by_mapped_columns() -> None:
    row = {"question": "who?", "context": "cats", "hard": "dogs", "other": 1}
    columns = {"query": "question", "positive": "context", "negative": "hard"}
    pair = {"query": "q: who?", "positive": "p: cats"}
    assert make("pairs", row, columns=columns) == [pair]
    assert make("triples", row, columns=columns) == [{**pair, "negatives": ["p: dogs"]}]


@pytest.mark.parametrize(
    "fields",
    [
        {"negatives": ["a", "b"], "scores": [3, 1, 2.5]},
        {"negatives": '["a", "b"]', "scores": "[3, 1, 2.5]"},  # lists in a table of texts
        {"negatives": ["a", "b"], "positive_score": "3", "negative_scores": [1, 2.5]},
        {"negatives": ["c", "a", " ", "b"], "scores": [3, 9, 1, 9, 2.5]},  # c is the positive
        {
            **{"negative_1": "a", "negative_2": "b", "negative_3": None, "negative_5": "unread"},
            **{"positive_score": 3, "negative_score_1": 1, "negative_score_2": "2.5"},
            "negative_score_3": "",
        },
    ],
)
def test_negatives_and_scores_are_lists_or_numbered_columns(fields: dict[str, Any]) -> None:
    (example,) = make("scored", {"query": "q", "positive": "c", **fields})
    assert example["negatives"] == ["p: a", "p: b"]
    assert example["teacher_scores"] == [3.0, 1.0, 2.5]


def test_a_margin_is_read_as_two_scores() -> None:
    (example,) = make("scored", {"query": "q", "positive": "c", "negative": "a", "margin": -1.5})
    assert example["teacher_scores"] == [-1.5, 0.0]


def test_graded_scores_become_0_to_1() -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": s} for s in ("1", 2, 5)]
    examples = make("graded_pairs", *rows, score_range=[1, 5])
    assert [example["label"] for example in examples] == [0.0, 0.25, 1.0]
    # Both are encoded as passages, as in the evaluation of graded pairs.
    assert examples[0] == {"sentence1": "p: a", "sentence2": "p: b", "label": 0.0}


def test_rows_that_cannot_teach_are_left_out_with_the_reason() -> None:
    blank = {"query": " ", "positive": "c", "negatives": ["a"]}
    examples = make("negatives", blank, {"query": "q", "positive": "c", "negatives": [" ", "c"]})
    reasons = ["rows with a blank text", "rows without a negative"]
    assert [example["left_out"] for example in examples] == reasons


@pytest.mark.parametrize(
    ("format", "row", "message"),
    [
        ("pairs", {"query": "q", "positve": "p"}, "f, row 1: .*'positive'; .* query, positve"),
        ("pairs", {"query": None, "positive": "p"}, "row 1: query is None, expected text"),
        ("scored", {"query": "q", "positive": "p", "negative": "n", "scores": [1]}, "1 scores for"),
        ("graded_pairs", {"sentence1": "a", "sentence2": "b", "score": 5}, r"5 is outside \[0, 1"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(format: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(format, row)


def test_dprs_first_positive_and_hard_negatives_are_read_with_their_titles() -> None:
    entry = {  # as in biencoder-nq-train.json
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
            {"title": "Dog", "text": "Dogs bark."},
        ],
    }
    soft = {**entry, "hard_negative_ctxs": []}
    bare = {**soft, "negative_ctxs": []}
    dog = {"query": "q: who barks", "positive": "p: Dog | Dogs bark."}
    examples = make("dpr", entry, soft, bare, {**entry, "positive_ctxs": []})
    assert examples[:2] == [
        {**dog, "negatives": ["p: Cat | Cats do not.", "p: Trees have bark."]},
        {**dog, "negatives": ["p: Sun | It shines."]},
    ]
    reasons = ["rows without a negative", "questions without a positive passage"]
    assert [example["left_out"] for example in examples[2:]] == reasons
    assert make("dpr", bare, n_negatives=0) == [dog]
