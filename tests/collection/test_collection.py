"""Storing passages, finding them by id, and fingerprints of all that a collection holds."""

import hashlib
import random
import struct
from dataclasses import replace

import pytest
from datasets import Dataset, Features, Value, concatenate_datasets

from modeling_condenser.collection import collection as module
from modeling_condenser.collection.collection import (
    Collection,
    PassageIndex,
    fingerprint_judgements,
    fingerprint_passages,
    sample_collection,
    store_passages,
)


def test_passages_are_stored_once_for_the_same_files(write_text):
    file = write_text("one", "corpus.jsonl")

    def store(n: int) -> list[dict[str, str]]:
        rows = ((f"p{i}", f"title {i}" if i % 2 else "", f"text {i}") for i in range(n))
        stored = store_passages(rows, [file])
        assert len(stored.cache_files) == 1  # memory-mapped
        return stored.to_list()

    first = store(2)
    assert first[1] == {"_id": "p1", "title": "title 1", "text": "text 1"}
    assert store(3) == first
    file.write_text("changed")
    assert len(store(3)) == 3


def test_passages_are_found_by_id_and_equal_texts_have_equal_content():
    ids = list("abcdefg")
    texts = ["same text", "other", "same text", "Same  text ", "", "", ""]
    titles = ["", "", "title", "", "x", "y", "x"]
    index = PassageIndex(Dataset.from_dict({"_id": ids, "title": titles, "text": texts}))
    assert index.rows(["g", "a", "d", "g"]).tolist() == [6, 0, 3, 6]
    assert index.read(["c", "a", "c"]) == {"c": ("title", "same text"), "a": ("", "same text")}
    assert index.read([]) == {}
    contents = dict(zip(ids, index.content.tolist(), strict=True))
    equal = {(x, y) for x in ids for y in ids if x < y and contents[x] == contents[y]}
    # Blanks and case do not count; without a text, the title does.
    assert equal == {("a", "c"), ("a", "d"), ("c", "d"), ("e", "g")}
    with pytest.raises(ValueError, match="no passage 'z'"):
        index.rows(["a", "z"])


RECORDS = [
    {"_id": f"p{i}", "title": "Ä" * (i % 3), "text": f"téxt {i} " * random.Random(i).randrange(4)}
    for i in range(20_000)
]


def naive_fingerprint(records: list[dict[str, str]]) -> str:
    """The definition in the docstring."""
    content = b"condenser passages 1"
    for first in range(0, len(records), 8192):
        for column in ("_id", "title", "text"):
            texts = [record[column].encode() for record in records[first : first + 8192]]
            content += b"".join(struct.pack("<q", len(text)) for text in texts) + b"".join(texts)
    return hashlib.sha256(content + struct.pack("<q", len(records))).hexdigest()


def test_a_fingerprint_is_what_its_definition_says_whatever_the_pieces_and_types():
    whole, order = Dataset.from_list(RECORDS), range(19_999, -1, -1)
    for n in (0, 8192, 8193):
        first = whole.select(range(n))
        assert fingerprint_passages(first) == naive_fingerprint(RECORDS[:n])
    pieces = [whole.select(range(i, i + 5000)) for i in range(0, 20_000, 5000)]
    large = whole.cast(Features(dict.fromkeys(RECORDS[0], Value("large_string"))))
    expected = naive_fingerprint(RECORDS)
    for same in (whole, concatenate_datasets(pieces), large, whole.select(order).select(order)):
        assert fingerprint_passages(same) == expected
    assert fingerprint_passages(whole.select(order)) != expected


def test_a_data_set_is_read_once_for_its_fingerprint(monkeypatch):
    hashed, hash_passages = [], module._hash_passages

    def count(passages: Dataset) -> str:
        hashed.append(passages["text"][0])
        return hash_passages(passages)

    monkeypatch.setattr(module, "_hash_passages", count)
    one = {"_id": "once", "title": "", "text": "read"}
    passages, other = Dataset.from_list([one]), Dataset.from_list([{**one, "text": "red"}])
    for _ in range(3):
        assert fingerprint_passages(passages) == naive_fingerprint([one])
        assert fingerprint_passages(other) == naive_fingerprint([{**one, "text": "red"}])
    assert hashed == ["read", "red"]


def test_judgements_are_identified_whatever_their_order():
    collection = Collection(
        passages=Dataset.from_list(RECORDS[:3]),
        queries={"q1": "one", "q2": "two"},
        qrels={"q1": {"p1": 1, "p2": 0}},
        answers={"q2": ("b", "a")},
    )
    lines = ['["q1","one",[["p1",1],["p2",0]],[]]\n', '["q2","two",[],["a","b"]]\n']
    expected = hashlib.sha256(("condenser judgements 1" + "".join(lines)).encode()).hexdigest()
    assert fingerprint_judgements(collection) == expected
    same = replace(collection, queries={"q2": "two", "q1": "one"}, answers={"q2": ("a", "b")})
    assert fingerprint_judgements(same) == expected


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
    ids = small.passages["_id"]
    assert {"p0", "p1", "p2", "p3"} <= {*ids} <= {*collection.passages["_id"]}
    assert len(ids) == len({*ids}) == {1: 4, 9: 9, 50: 20}[n_passages]


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
