"""Rows as training examples."""

from typing import Any

import pytest

from modeling_condenser.examples.formats import ExampleReader
from modeling_condenser.repository.contract import EncodingContract

CONTRACT = EncodingContract(8, 8, query_prompt="q: ", passage_prompt="p: ")


def read(format: str, *rows: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    reader = ExampleReader(format, CONTRACT, **settings)
    return list(reader.read((f"f:{n}", row) for n, row in enumerate(rows, start=1)))


def test_pairs_are_read_as_they_are_encoded() -> None:
    row = {"query": "who?", "positive": "cats", "other": 1}
    assert read("pairs", row) == [{"query": "q: who?", "positive": "p: cats"}]


def test_columns_are_mapped() -> None:
    row = {"question": "who?", "context": "cats", "hard": "dogs"}
    columns = {"query": "question", "positive": "context", "negative": "hard"}
    assert read("triples", row, columns=columns) == [
        {"query": "q: who?", "positive": "p: cats", "negatives": ["p: dogs"]}
    ]


@pytest.mark.parametrize(
    "negatives",
    [
        {"negatives": ["a", "b"]},
        {"negatives": '["a", "b"]'},  # as a table of text spells a list
        {"negative_1": "a", "negative_2": "b"},
        {"negative_1": "a", "negative_2": "b", "negative_4": "not counted on"},
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
def test_a_teachers_scores_follow_the_passages(scores: dict[str, Any]) -> None:
    (example,) = read("scored", {"query": "q", "positive": "c", "negatives": ["a", "b"], **scores})
    assert example["teacher_scores"] == [3.0, 1.0, 2.5]


def test_a_margin_is_as_good_as_two_scores() -> None:
    (example,) = read("scored", {"query": "q", "positive": "c", "negative": "a", "margin": -1.5})
    assert example["teacher_scores"] == [-1.5, 0.0]


def test_a_score_goes_with_its_negative_when_another_is_dropped() -> None:
    row = {"query": "q", "positive": "c", "negatives": ["c", "a"], "scores": [3, 2, 1]}
    reader = ExampleReader("scored", CONTRACT)
    (example,) = reader.read([("f:1", row)])
    assert (example["negatives"], example["teacher_scores"]) == (["p: a"], [3.0, 1.0])
    assert reader.left_out == {"negatives with the text of the positive": 1}


def test_graded_scores_become_0_to_1() -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": s} for s in ("0", 2.5, 5)]
    examples = read("graded_pairs", *rows, score_range=(0.0, 5.0))
    assert [e["label"] for e in examples] == [0.0, 0.5, 1.0]
    # Both are encoded as passages, as the evaluation of graded pairs does it.
    assert examples[0] == {"sentence1": "p: a", "sentence2": "p: b", "label": 0.0}
    (shifted,) = read("graded_pairs", {**rows[0], "score": 2}, score_range=(1.0, 5.0))
    assert shifted["label"] == 0.25


def test_what_cannot_teach_is_left_out_and_counted() -> None:
    reader = ExampleReader("negatives", CONTRACT)
    rows = [
        {"query": " ", "positive": "c", "negatives": ["a"]},
        {"query": "q", "positive": "", "negatives": ["a"]},
        {"query": "q", "positive": "c", "negatives": []},
        {"query": "q", "positive": "c", "negatives": ["c"]},
        {"query": "q", "positive": "c", "negatives": ["c", "a"]},
    ]
    examples = list(reader.read((f"f:{n}", row) for n, row in enumerate(rows)))
    assert examples == [{"query": "q: q", "positive": "p: c", "negatives": ["p: a"]}]
    assert reader.left_out == {
        "rows with a blank text": 2,
        "rows without a negative": 2,
        "negatives with the text of the positive": 2,
    }


@pytest.mark.parametrize(
    ("format", "row", "message"),
    [
        (
            "pairs",
            {"query": "q", "positve": "p"},
            "f:1 has no column 'positive'; there is positve, q",
        ),
        ("pairs", {"query": None, "positive": "p"}, "f:1: query is null, expected text"),
        ("pairs", {"query": 1984, "positive": "p"}, r"f:1: query is 1984 \(int\), expected text"),
        ("negatives", {"query": "q", "positive": "p"}, "no column 'negatives' or 'negative' or"),
        (
            "negatives",
            {"query": "q", "positive": "p", "negatives": "x"},
            "negatives is 'x' .*a list",
        ),
        ("negatives", {"query": "q", "positive": "p", "negatives": [1]}, "negatives is 1 .*text"),
        ("negatives", {"query": "q", "positive": "p", "negative_1": 3}, r"negative_1 is 3 \(int"),
        (
            "scored",
            {"query": "q", "positive": "p", "negative": "n"},
            "'positive_score' or 'scores'",
        ),
        (
            "scored",
            {"query": "q", "positive": "p", "negative": "n", "scores": [1]},
            "f:1: 1 scores for 2 passages, expected one for the positive",
        ),
        (
            "scored",
            {"query": "q", "positive": "p", "negative": "n", "scores": [1, float("nan")]},
            "scores is nan .* expected a number",
        ),
        (
            "graded_pairs",
            {"sentence1": "a", "sentence2": "b", "score": "5.5"},
            "5.5 is beyond score_r",
        ),
        ("graded_pairs", {"sentence1": "a", "sentence2": "b", "score": "high"}, "score is 'high'"),
        ("graded_pairs", {"sentence1": "a", "sentence2": "b", "score": True}, "score is True"),
        ("graded_pairs", {"sentence1": "a", "sentence2": "b"}, "no column 'score'"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_its_place(
    format: str, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(format, row, **({"score_range": (0.0, 5.0)} if format == "graded_pairs" else {}))


def test_a_missing_column_is_said_once_for_the_file_with_the_nearest() -> None:
    reader = ExampleReader("triples", CONTRACT)
    reader.check_header("t.csv", {"query", "positive", "negative", "id"})
    with pytest.raises(ValueError, match=r"has no column 'query'.*columns: \{query: qeury\}") as e:
        reader.check_header("t.tsv.gz", {"qeury", "positive", "negative"})
    assert "if the file has no header, name its columns" in str(e.value)
    assert "columns: [query, positive, negative]" in str(e.value)
    mapped = ExampleReader("triples", CONTRACT, {"query": "anchor"})
    mapped.check_header("t.csv", {"anchor", "positive", "negative"})
    with pytest.raises(
        ValueError, match=r"t.parquet has no column 'anchor'; there is query \|.*"
    ) as e:
        mapped.check_header("t.parquet", {"query |" + "x" * 100})
    assert "header, name" not in str(e.value) and len(str(e.value)) < 250
