"""Copies of positives."""

from modeling_condenser.mining.positives import find_copies
from tests.mining.making import make_passages


def test_copies_are_found_by_text_and_empty_texts_by_title():
    texts = {"a": "same", "b": "other", "c": "same", "d": "same ", "e": "same", "f": "", "g": ""}
    texts |= {"h": "", "i": "unjudged", "j": "unjudged"}
    passages = make_passages(texts, titles={"c": "title", "f": "x", "g": "y", "h": "x"})
    found = find_copies(passages, ["a", "b", "e", "f", "g"])
    assert {key: sorted(ids) for key, ids in found.items()} == {
        "a": ["c", "e"],
        "e": ["a", "c"],
        "f": ["h"],
    }
