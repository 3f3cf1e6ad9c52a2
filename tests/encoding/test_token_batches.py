"""Batches by length, against what the tokenizer itself gives and against plain counting."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from modeling_condenser.encoding import token_batches
from modeling_condenser.encoding.token_batches import make_batches, plan_batches, tokenize_texts
from tests.encoding.making import MIXED, with_segments


@pytest.fixture
def tokenizer(bert_folder: Path, tmp_path: Path) -> Any:
    """Its padding token is not 0 and its segment ids are not all equal."""
    tokenizer = AutoTokenizer.from_pretrained(with_segments(bert_folder, tmp_path / "encoder"))
    tokenizer.pad_token = "[MASK]"
    return tokenizer


def test_batches_take_neighbours_the_longest_first_and_equal_ones_in_order():
    lengths = np.array([3, 9, 3, 5, 9, 2, 3])

    def plan(lengths: np.ndarray, **settings: Any) -> list[list[int]]:
        return [rows.tolist() for rows in plan_batches(lengths, **settings)]

    assert plan(lengths, token_budget=10) == [[1], [4], [3, 0], [2, 6, 5]]
    for budget in (128, 190):  # a row is filled up to a multiple of 64, so both have the same room
        packed = plan(10 * lengths, token_budget=budget, packed=True)
        assert packed == [[1], [4], [3, 0, 2], [6, 5]]
    for is_packed in (False, True):  # a text beyond the budget is a batch of its own
        long = np.array([2, 50, 2, 60])
        assert plan(long, token_budget=4, packed=is_packed) == [[3], [1], [0, 2]]


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_padded_batch_is_what_the_tokenizer_itself_would_pad(side, tokenizer, monkeypatch):
    monkeypatch.setattr(token_batches, "_TEXTS_A_CALL", 4)
    tokenizer.padding_side = side
    texts = tokenize_texts(tokenizer, MIXED, max_length=32, token_type_ids=True)
    seen: list[int] = []
    for rows, found in make_batches(texts, tokenizer=tokenizer, token_budget=64):
        expected = tokenizer(
            [MIXED[row] for row in rows],
            truncation=True,
            max_length=32,
            padding=True,
            return_token_type_ids=True,
            return_tensors="pt",
        )
        assert set(found) == set(expected) == {"input_ids", "attention_mask", "token_type_ids"}
        for name, column in found.items():
            torch.testing.assert_close(column, expected[name], rtol=0, atol=0)
        seen.extend(rows.tolist())
    assert sorted(seen) == list(range(len(MIXED)))
    assert tokenize_texts(tokenizer, MIXED, max_length=30).keys() == {"input_ids"}
