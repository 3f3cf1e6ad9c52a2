"""A small part of a collection."""

from dataclasses import replace

import pytest
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.reduce import sample_collection

QUERIES = {name: f"text of {name}" for name in ("both", "lost", "none", "one", "two")}
QRELS = {
    "both": {"p3": 1, "gone": 2},
    "lost": {"gone": 1},
    "none": {"p4": 0},
    "one": {"p0": 1},
    "two": {"p1": 1, "p2": 0},
}


@pytest.fixture
def collection():
    ids = [f"p{i}" for i in range(20)]
    columns = {"_id": ids, "title": [""] * 20, "text": ids}
    return Collection(Dataset.from_dict(columns), QUERIES, QRELS, absent=frozenset({"gone"}))


@pytest.mark.parametrize("n_passages", [1, 9, 50])
def test_queries_with_a_relevant_passage_keep_all_that_is_judged_and_others_fill_up(
    collection, n_passages
):
    small = sample_collection(collection, n_queries=9, n_passages=n_passages, seed=0)
    assert small.qrels == {"both": {"p3": 1}, "one": QRELS["one"], "two": QRELS["two"]}
    assert small.queries == {name: QUERIES[name] for name in small.qrels}
    found = small.passages["_id"]
    assert {"p0", "p1", "p2", "p3"} <= {*found} <= {*collection.passages["_id"]}
    assert len(found) == len({*found}) == {1: 4, 9: 9, 50: 20}[n_passages]


def test_the_seed_decides_which_queries_and_passages_are_drawn(collection):
    def draw(seed):
        small = sample_collection(collection, n_queries=1, n_passages=6, seed=seed)
        return (*small.qrels, *small.passages["_id"])

    assert draw(3) == draw(3)
    assert {draw(seed)[0] for seed in range(30)} == {"both", "one", "two"}


def test_a_collection_without_a_relevant_passage_is_refused(collection):
    lost = replace(collection, qrels={"lost": {"gone": 1}, "none": {"p4": 0}})
    with pytest.raises(ValueError, match="has a relevant passage among its passages"):
        sample_collection(lost, n_queries=1, n_passages=1, seed=0)
