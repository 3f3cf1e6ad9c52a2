"""Copies of positives."""

import pytest

from modeling_condenser.mining import twins
from modeling_condenser.mining.twins import find_twins
from tests.mining.making import make_passages


@pytest.mark.parametrize("batch", [2, 50_000])
def test_copies_are_found_by_text_and_empty_texts_by_title(monkeypatch, batch):
    monkeypatch.setattr(twins, "_BATCH_ROWS", batch)
    texts = {"a": "same", "b": "other", "c": "same", "d": "same ", "e": "same", "f": "", "g": ""}
    texts |= {"h": "", "i": "unjudged", "j": "unjudged"}
    passages = make_passages(texts, titles={"c": "title", "f": "x", "g": "y", "h": "x"})
    found = find_twins(passages, ["a", "b", "e", "f", "g"])
    assert {key: sorted(ids) for key, ids in found.items()} == {
        "a": ["c", "e"],
        "e": ["a", "c"],
        "f": ["h"],
    }


def test_a_positive_that_the_collection_lacks_is_refused():
    with pytest.raises(ValueError, match="'z'"):
        find_twins(make_passages({"a": "text"}), ["z"])
