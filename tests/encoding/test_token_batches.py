"""Batches by length, against what the tokenizer itself gives and against plain counting."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import PreTrainedTokenizerBase

from modeling_condenser.encoding import token_batches
from modeling_condenser.encoding.token_batches import (
    pad_batch,
    padded_batches,
    plan_batches,
    plan_packed_batches,
    tokenize_texts,
)

TEXTS = [
    "Why?",
    "",
    "The glacier visits Oslo near Kyoto. " * 9,
    "東京 café naïveté 🙂",
    "Why?",
    "x y",
]


def tokens_of(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int) -> list[int]:
    return tokenizer(text, truncation=True, max_length=max_length)["input_ids"]


@pytest.mark.parametrize("name", ["wordpiece_tokenizer", "byte_level_tokenizer"])
@pytest.mark.parametrize("characters_a_call", [1, 30, 10**6])
def test_each_text_has_the_tokens_that_the_tokenizer_gives_it_alone(
    name: str,
    characters_a_call: int,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_batches, "_CHARACTERS_A_CALL", characters_a_call)
    tokenizer = request.getfixturevalue(name)
    found = tokenize_texts(tokenizer, TEXTS, max_length=12)
    expected = [tokens_of(tokenizer, text, 12) for text in TEXTS]
    assert len(found) == len(TEXTS)
    assert found.lengths.tolist() == [len(tokens) for tokens in expected]
    for row, tokens in enumerate(expected):
        assert found.ids[found.starts[row] : found.starts[row + 1]].tolist() == tokens
    assert max(found.lengths) == 12 and found.lengths[1] == 2


def test_no_texts_have_no_tokens_and_no_batches(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    found = tokenize_texts(wordpiece_tokenizer, [], max_length=8, token_type_ids=True)
    assert len(found) == 0 and len(found.ids) == 0
    assert plan_batches(found.lengths, token_budget=10) == []


def test_every_row_is_in_one_batch_longest_first_and_equal_ones_in_order() -> None:
    lengths = np.array([3, 9, 3, 5, 9, 2, 3])
    batches = plan_batches(lengths, token_budget=10)
    assert [rows.tolist() for rows in batches] == [[1], [4], [3, 0], [2, 6, 5]]


def test_a_batch_keeps_to_the_budget_with_its_padding_and_takes_what_fits() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, size=500)
    for budget in (100, 257, 4000, 10**9):
        batches = plan_batches(lengths, token_budget=budget)
        assert sorted(np.concatenate(batches).tolist()) == list(range(500))
        padded = [len(rows) * lengths[rows].max() for rows in batches]
        assert max(padded) <= budget
        for rows in batches[:-1]:  # one more, which is no longer, would not have fitted
            assert (len(rows) + 1) * lengths[rows].max() > budget


@pytest.mark.parametrize("plan", [plan_batches, plan_packed_batches])
def test_a_text_beyond_the_budget_is_a_batch_of_its_own(plan: Any) -> None:
    batches = plan(np.array([2, 50, 2, 60]), token_budget=4)
    assert [rows.tolist() for rows in batches] == [[3], [1], [0, 2]]


@pytest.mark.parametrize("plan", [plan_batches, plan_packed_batches])
@pytest.mark.parametrize("budget", [0, -5])
def test_a_budget_below_one_is_refused(plan: Any, budget: int) -> None:
    with pytest.raises(ValueError, match=f"token_budget is {budget}, expected at least 1"):
        plan(np.array([1]), token_budget=budget)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_is_what_the_tokenizer_itself_would_pad(
    wordpiece_tokenizer: PreTrainedTokenizerBase, side: str
) -> None:
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    tokenizer.padding_side = side
    tokenizer.pad_token = "[MASK]"  # whose id is not 0
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:1 $A:1 [SEP]:0", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    texts = tokenize_texts(tokenizer, TEXTS, max_length=30, token_type_ids=True)
    rows = np.array([3, 1, 2])
    found = pad_batch(texts, rows, tokenizer=tokenizer)
    expected = tokenizer(
        [TEXTS[row] for row in rows],
        truncation=True,
        max_length=30,
        padding=True,
        return_token_type_ids=True,
        return_tensors="pt",
    )
    assert set(found) == set(expected) == {"input_ids", "attention_mask", "token_type_ids"}
    for name, column in found.items():
        assert column.dtype == torch.int64
        torch.testing.assert_close(column, expected[name], rtol=0, atol=0)
    assert 0 < int(expected["token_type_ids"].sum()) < int(expected["attention_mask"].sum())


def test_batches_that_are_rounded_up_hold_copies_at_their_end(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    texts = tokenize_texts(wordpiece_tokenizer, TEXTS * 3, max_length=12)
    settings = {"tokenizer": wordpiece_tokenizer, "token_budget": 64, "max_length": 12}
    for multiple in (1, 8):
        seen: list[int] = []
        for rows, batch in padded_batches(texts, multiple=multiple, **settings):
            alone = pad_batch(texts, rows, tokenizer=wordpiece_tokenizer)["input_ids"]
            ids = batch["input_ids"]
            longest = alone.shape[1]
            assert ids.shape[1] == min(-(-longest // multiple) * multiple, 12)
            assert torch.equal(ids[: len(rows), :longest], alone)
            assert torch.equal(ids, ids[torch.arange(len(ids)) % len(rows)])
            assert ids.numel() <= 64
            seen.extend(rows.tolist())
        assert sorted(seen) == list(range(len(TEXTS) * 3))
