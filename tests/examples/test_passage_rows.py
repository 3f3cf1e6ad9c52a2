"""Passages by id and content."""

import numpy as np
import pytest
from datasets import Dataset

from modeling_condenser.examples import passage_rows
from modeling_condenser.examples.passage_rows import PassageRows, PassageTexts
from modeling_condenser.repository.contract import EncodingContract

PASSAGES = Dataset.from_dict(
    {
        "_id": [f"p{i}" for i in range(500)],
        "title": ["T" if i % 2 else "" for i in range(500)],
        "text": [f"text {i % 100}" for i in range(500)],
    }
)


@pytest.fixture(autouse=True)
def several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage_rows, "_BATCH_ROWS", 64)


def test_ids_are_found_in_any_order_and_strangers_are_not() -> None:
    rows = PassageRows(PASSAGES)
    ids = [f"p{i}" for i in np.random.default_rng(0).integers(500, size=300)]
    assert rows.find([*ids, "p500", ""]).tolist() == [*(int(i[1:]) for i in ids), -1, -1]
    assert rows.find([]).tolist() == []


def test_equal_passages_have_equal_contents_and_others_not() -> None:
    content = PassageRows(PASSAGES).content
    keys = list(zip(PASSAGES["title"], PASSAGES["text"], strict=True))
    expected = np.array([[a == b for b in keys] for a in keys])
    assert np.array_equal(content[:, None] == content[None, :], expected)


def test_ids_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage_rows, "hash", lambda value: len(str(value)), raising=False)
    rows = PassageRows(PASSAGES)
    ids = [f"p{i}" for i in (0, 7, 10, 55, 99, 100, 499)]
    assert rows.find([*ids, "p500", "p-1"]).tolist() == [0, 7, 10, 55, 99, 100, 499, -1, -1]


def test_texts_come_in_the_order_of_the_rows_as_they_are_encoded() -> None:
    contract = EncodingContract(8, 8, title_separator=" | ", passage_prompt="p: ")
    texts = PassageTexts(PASSAGES, contract)
    assert texts([101, 4, 101]) == ["p: T | text 1", "p: text 4", "p: T | text 1"]
