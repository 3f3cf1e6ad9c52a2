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
from modeling_condenser.encoding.token_batches import make_batches, plan_batches, tokenize_texts
from tests.encoding.encoders import MIXED


@pytest.fixture
def tokenizer(wordpiece_tokenizer: PreTrainedTokenizerBase) -> Any:
    """Its padding token is not 0 and its segment ids are not all equal."""
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    tokenizer.pad_token = "[MASK]"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:1 $A:1 [SEP]:0", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def test_each_text_has_the_tokens_that_the_tokenizer_gives_it_alone(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_batches, "_TEXTS_A_CALL", 4)
    found = tokenize_texts(tokenizer, MIXED, max_length=12)
    expected = [tokenizer(text, truncation=True, max_length=12)["input_ids"] for text in MIXED]
    assert [ids.tolist() for ids in found["input_ids"]] == expected
    assert {len(ids) for ids in expected} >= {2, 12}
    assert found.keys() == {"input_ids"}


def test_batches_take_neighbours_the_longest_first_and_equal_ones_in_order() -> None:
    lengths = np.array([3, 9, 3, 5, 9, 2, 3])

    def plan(lengths: np.ndarray, **settings: Any) -> list[list[int]]:
        return [rows.tolist() for rows in plan_batches(lengths, **settings)]

    assert plan(lengths, token_budget=10) == [[1], [4], [3, 0], [2, 6, 5]]
    assert plan(np.array([9, 9, 9, 9, 3]), token_budget=32, multiple=8) == [[0, 1], [2, 3], [4]]
    packed: Any = {"token_budget": 128, "multiple": 64, "packed": True}
    assert plan(10 * lengths, **packed) == [[1], [4], [3, 0, 2], [6, 5]]
    for is_packed in (False, True):  # a text beyond the budget is a batch of its own
        long = np.array([2, 50, 2, 60])
        assert plan(long, token_budget=4, packed=is_packed) == [[3], [1], [0, 2]]


@pytest.mark.parametrize("budget", [100, 4000, 10**9])
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
def test_a_padded_batch_is_what_the_tokenizer_itself_would_pad(side: str, tokenizer: Any) -> None:
    tokenizer.padding_side = side
    texts = tokenize_texts(tokenizer, MIXED, max_length=32, token_type_ids=True)
    seen: list[int] = []
    for multiple in (1, 8):
        settings: Any = {"tokenizer": tokenizer, "token_budget": 64, "multiple": multiple}
        for rows, found in make_batches(texts, **settings):
            expected = tokenizer(
                [MIXED[row] for row in rows],
                truncation=True,
                max_length=32,
                padding=True,
                pad_to_multiple_of=multiple,
                return_token_type_ids=True,
                return_tensors="pt",
            )
            assert set(found) == set(expected) == {"input_ids", "attention_mask", "token_type_ids"}
            for name, column in found.items():
                torch.testing.assert_close(column, expected[name], rtol=0, atol=0)
            seen.extend(rows.tolist())
    assert sorted(seen) == sorted(2 * list(range(len(MIXED))))


def test_packed_texts_are_concatenated_and_followed_by_a_filler(tokenizer: Any) -> None:
    texts = tokenize_texts(tokenizer, MIXED, max_length=30, token_type_ids=True)
    seen = []
    for rows, batch in make_batches(texts, tokenizer=tokenizer, token_budget=64, packed=True):
        starts = batch["cu_seq_lens_q"].tolist()
        assert starts[-1] == batch["input_ids"].shape[1] == 64
        for row, start, end in zip(rows, starts, starts[1:], strict=False):
            own = tokenizer(MIXED[row], truncation=True, max_length=30, return_token_type_ids=True)
            assert batch["input_ids"][0, start:end].tolist() == own["input_ids"]
            assert batch["token_type_ids"][0, start:end].tolist() == own["token_type_ids"]
        filler = starts[len(rows)]
        assert set(batch["input_ids"][0, filler:].tolist()) <= {tokenizer.pad_token_id}
        assert len(starts) == len(rows) + 1 + (filler < 64)
        seen.extend(rows.tolist())
    assert sorted(seen) == list(range(len(MIXED)))
