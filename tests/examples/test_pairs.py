"""Judgements and triples of ids as training examples."""

from collections import Counter
from pathlib import Path

import pytest
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.examples.pairs import judged_pairs, triple_examples
from modeling_condenser.repository.contract import EncodingContract

CONTRACT = EncodingContract(8, 8, title_separator=" | ", query_prompt="q: ")
PASSAGES = Dataset.from_dict(
    {
        "_id": ["p1", "p2", "p3", "p4"],
        "title": ["Cats", "", "", "Cats"],
        "text": ["chase mice", "dogs", "no one asks", "chase mice"],
    }
)
COLLECTION = Collection(
    PASSAGES,
    {"q1": "who chases?", "q2": "who barks?", "q3": "who else?"},
    {"q1": {"p1": 2, "p2": 1, "p3": 0}, "q2": {"p2": 1, "p1": -1}, "q3": {"p3": 0}},
)


def test_each_relevant_passage_makes_a_pair_with_its_query() -> None:
    pairs = judged_pairs(COLLECTION, CONTRACT)
    assert pairs.to_list() == [
        {"query": "q: who chases?", "positive_row": 0, "row_number": 0},
        {"query": "q: who chases?", "positive_row": 1, "row_number": 1},
        {"query": "q: who barks?", "positive_row": 1, "row_number": 2},
    ]


def test_a_split_without_a_relevant_passage_is_refused() -> None:
    nothing = Collection(PASSAGES, {"q": "?"}, {"q": {"p1": 0}}, name="small")
    with pytest.raises(ValueError, match="The split of small judges no passage relevant"):
        judged_pairs(nothing, CONTRACT)
    by_answers = Collection(PASSAGES, {"q": "?"}, {}, {"q": ("dogs",)})
    with pytest.raises(ValueError, match="judged by answers: train on data of format dpr"):
        judged_pairs(by_answers, CONTRACT)


def triples(*rows: tuple[object, object, object], columns: dict[str, str] | None = None):
    names = [(columns or {}).get(n, n) for n in ("query_id", "positive_id", "negative_id")]
    records = [
        (f"f:{n}", dict(zip(names, row, strict=True))) for n, row in enumerate(rows, start=1)
    ]
    left_out: Counter[str] = Counter()
    examples = triple_examples(COLLECTION, records, columns or {}, CONTRACT, left_out)
    return list(examples), left_out


def test_triples_of_ids_become_rows() -> None:
    examples, left_out = triples(
        ("q1", "p1", "p3"), ("q2", "p2", "p4"), columns={"query_id": "qid"}
    )
    assert examples == [
        {"query": "q: who chases?", "positive_row": 0, "negative_rows": [2]},
        {"query": "q: who barks?", "positive_row": 1, "negative_rows": [3]},
    ]
    assert not left_out


def test_negatives_that_are_relevant_or_read_like_the_positive_are_left_out() -> None:
    examples, left_out = triples(("q1", "p1", "p2"), ("q1", "p1", "p4"), ("q1", "p1", "p3"))
    assert [example["negative_rows"] for example in examples] == [[2]]
    assert left_out == {
        "negatives that are relevant": 1,
        "negatives with the text of the positive": 1,
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("q9", "p1", "p3"), "f:2: query 'q9' is none of the judged queries of the split"),
        (("q1", "p9", "p3"), "f:2: passage 'p9' is not in collection: take triples and coll"),
        (("q1", "p1", ""), "f:2: 'negative_id' is '' .* expected an id"),
    ],
)
def test_an_unknown_id_is_refused_with_its_line(row: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        triples(("q1", "p1", "p3"), row)


def test_whole_numbers_are_ids_too(tmp_path: Path) -> None:
    numbered = Collection(
        Dataset.from_dict({"_id": ["1", "2"], "title": ["", ""], "text": ["a", "b"]}),
        {"7": "q"},
        {"7": {"1": 1}},
    )
    records = [("f:1", {"query_id": 7, "positive_id": 1, "negative_id": 2})]
    (example,) = triple_examples(numbered, records, {}, CONTRACT, Counter())
    assert (example["positive_row"], example["negative_rows"]) == (0, [1])
