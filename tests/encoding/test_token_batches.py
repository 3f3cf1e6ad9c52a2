"""Batches by length, against what the tokenizer itself gives and against plain counting."""

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import PreTrainedTokenizerBase

from modeling_condenser.encoding import token_batches
from modeling_condenser.encoding.token_batches import (
    packed_batches,
    padded_batches,
    plan_batches,
    tokenize_texts,
)
from tests.encoding.encoders import MIXED


@pytest.fixture
def segmented(wordpiece_tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer whose padding token is not 0 and whose segment ids are not all equal."""
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    tokenizer.pad_token = "[MASK]"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:1 $A:1 [SEP]:0", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


@pytest.mark.parametrize("name", ["wordpiece_tokenizer", "byte_level_tokenizer"])
def test_each_text_has_the_tokens_that_the_tokenizer_gives_it_alone(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_batches, "_TEXTS_A_CALL", 4)
    tokenizer = request.getfixturevalue(name)
    found = tokenize_texts(tokenizer, MIXED, max_length=12)
    expected = [tokenizer(text, truncation=True, max_length=12)["input_ids"] for text in MIXED]
    assert len(found) == len(MIXED)
    for row, tokens in enumerate(expected):
        assert found.ids[found.starts[row] : found.starts[row + 1]].tolist() == tokens
    assert found.lengths.tolist() == [len(tokens) for tokens in expected]
    assert max(found.lengths) == 12 and found.lengths[1] == 2
    empty = tokenize_texts(tokenizer, [], max_length=8, token_type_ids=True)
    assert (len(empty), len(empty.ids)) == (0, 0)


def test_batches_take_neighbours_the_longest_first_and_equal_ones_in_order() -> None:
    lengths = np.array([3, 9, 3, 5, 9, 2, 3])
    batches = plan_batches(lengths, token_budget=10)
    assert [rows.tolist() for rows in batches] == [[1], [4], [3, 0], [2, 6, 5]]
    rounded = plan_batches(np.array([9, 9, 9, 9, 3]), token_budget=32, multiple=8)
    assert [rows.tolist() for rows in rounded] == [[0, 1], [2, 3], [4]]
    packed = plan_batches(10 * lengths, token_budget=128, multiple=64, packed=True)
    assert [rows.tolist() for rows in packed] == [[1], [4], [3, 0, 2], [6, 5]]


@pytest.mark.parametrize("packed", [False, True])
def test_a_text_beyond_the_budget_is_a_batch_of_its_own(packed: bool) -> None:
    batches = plan_batches(np.array([2, 50, 2, 60]), token_budget=4, packed=packed)
    assert [rows.tolist() for rows in batches] == [[3], [1], [0, 2]]
    assert plan_batches(np.array([], dtype=np.int64), token_budget=10, packed=packed) == []


@pytest.mark.parametrize("budget", [100, 257, 4000, 10**9])
def test_a_batch_keeps_to_the_budget_and_takes_what_fits(budget: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 65, size=500)
    padded = plan_batches(lengths, token_budget=budget)
    packed = plan_batches(lengths, token_budget=budget, multiple=64, packed=True)
    for batches in (padded, packed):
        assert sorted(np.concatenate(batches).tolist()) == list(range(500))
    for rows in padded[:-1]:  # one more text, which is no longer, would not have fitted
        assert len(rows) * lengths[rows].max() <= budget
        assert (len(rows) + 1) * lengths[rows].max() > budget
    for rows, following in pairwise(packed):
        assert -(-lengths[rows].sum() // 64) * 64 <= budget  # with the filler
        assert lengths[rows].sum() + lengths[following[0]] > budget - budget % 64


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_padded_batch_is_what_the_tokenizer_itself_would_pad(
    side: str, segmented: PreTrainedTokenizerBase
) -> None:
    segmented.padding_side = side
    texts = tokenize_texts(segmented, MIXED, max_length=30, token_type_ids=True)
    settings: dict[str, Any] = {"tokenizer": segmented, "token_budget": 64, "max_length": 30}
    seen: list[int] = []
    for rows, found in padded_batches(texts, **settings):
        expected = segmented(
            [MIXED[row] for row in rows],
            truncation=True,
            max_length=30,
            padding=True,
            return_token_type_ids=True,
            return_tensors="pt",
        )
        assert set(found) == set(expected) == {"input_ids", "attention_mask", "token_type_ids"}
        for name, column in found.items():
            torch.testing.assert_close(column, expected[name], rtol=0, atol=0)
        seen.extend(rows.tolist())
    assert sorted(seen) == list(range(len(MIXED)))
    rounded = padded_batches(texts, multiple=8, **settings)
    assert {batch["input_ids"].shape[1] for _, batch in rounded} <= {8, 16, 24, 30}


def test_packed_texts_are_concatenated_and_followed_by_a_filler(
    segmented: PreTrainedTokenizerBase,
) -> None:
    texts = tokenize_texts(segmented, MIXED, max_length=30, token_type_ids=True)
    seen = []
    for rows, batch in packed_batches(texts, tokenizer=segmented, token_budget=64):
        starts = batch["cu_seq_lens_q"].tolist()
        assert batch["cu_seq_lens_k"].tolist() == starts
        assert starts[-1] == batch["input_ids"].shape[1] == 64
        assert batch["max_length_q"] == batch["max_length_k"] == max(np.diff(starts))
        for row, start, end in zip(rows, starts, starts[1:], strict=False):
            own = segmented(MIXED[row], truncation=True, max_length=30, return_token_type_ids=True)
            assert batch["input_ids"][0, start:end].tolist() == own["input_ids"]
            assert batch["token_type_ids"][0, start:end].tolist() == own["token_type_ids"]
            assert batch["position_ids"][0, start:end].tolist() == list(range(end - start))
        filler = starts[len(rows)]
        assert filler == texts.lengths[rows].sum()
        assert set(batch["input_ids"][0, filler:].tolist()) <= {segmented.pad_token_id}
        assert set(batch["position_ids"][0, filler:].tolist()) <= {0}
        assert len(starts) == len(rows) + 1 + (filler < 64)
        seen.extend(rows.tolist())
    assert sorted(seen) == list(range(len(MIXED)))
    without = tokenize_texts(segmented, MIXED, max_length=30)
    for _, batch in packed_batches(without, tokenizer=segmented, token_budget=64):
        assert "token_type_ids" not in batch
