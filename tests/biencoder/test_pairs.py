"""Training pairs from judgements."""

import json
from pathlib import Path

import pytest

from modeling_condenser.biencoder.pairs import training_pairs
from modeling_condenser.collection.beir import load_collection
from modeling_condenser.publishing.contract import EncodingContract

CONTRACT = EncodingContract(8, 8, title_separator=" | ")


def test_each_relevant_passage_makes_a_pair_with_its_query(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    passages = [("p1", "Cats", "chase mice"), ("p2", "", "dogs"), ("p3", "", "no one asks")]
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": i, "title": t, "text": x}) + "\n" for i, t, x in passages)
    )
    queries = [("q1", "who chases?"), ("q2", "who barks?"), ("q3", "who else?")]
    (tmp_path / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": i, "text": x}) + "\n" for i, x in queries)
    )
    judged = ["q1\tp1\t2", "q1\tp2\t1", "q1\tp3\t0", "q2\tp2\t1", "q2\tp1\t-1", "q3\tp3\t0"]
    header = "query-id\tcorpus-id\tscore"
    (tmp_path / "qrels" / "train.tsv").write_text("\n".join([header, *judged]) + "\n")
    pairs = training_pairs(load_collection(tmp_path, split="train"), CONTRACT)
    assert pairs.column_names == ["query", "passage"]
    assert sorted((row["query"], row["passage"]) for row in pairs) == [
        ("who barks?", "dogs"),
        ("who chases?", "Cats | chase mice"),
        ("who chases?", "dogs"),
    ]


def test_the_subsets_of_one_seed_are_nested(collection: Path) -> None:
    train = load_collection(collection, split="train")
    subsets = [
        training_pairs(train, CONTRACT, train_size=size, subset_seed=5).to_list()
        for size in (3, 10, 40)
    ]
    assert [len(subset) for subset in subsets] == [3, 10, 40]
    assert subsets[2][:10] == subsets[1]
    assert subsets[1][:3] == subsets[0]
    assert training_pairs(train, CONTRACT, subset_seed=5).to_list() == subsets[2]


def test_a_seed_decides_the_subset(collection: Path) -> None:
    train = load_collection(collection, split="train")
    first, again, other = (
        training_pairs(train, CONTRACT, train_size=10, subset_seed=seed)["query"]
        for seed in (1, 1, 2)
    )
    assert list(first) == list(again)
    assert set(first) != set(other)


@pytest.mark.parametrize("train_size", [41, 0, -1])
def test_a_size_that_there_is_not_is_refused(collection: Path, train_size: int) -> None:
    train = load_collection(collection, split="train")
    with pytest.raises(ValueError, match=f"train_size is {train_size}, but the split has 40"):
        training_pairs(train, CONTRACT, train_size=train_size)
