"""Packed batches of texts: every token once, in its place, within the budget."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import PreTrainedTokenizerBase

from modeling_condenser.encoding.token_batches import (
    packed_batches,
    plan_packed_batches,
    tokenize_texts,
)
from tests.encoding.encoders import MIXED


def test_a_batch_takes_as_many_neighbours_as_fit_the_longest_first() -> None:
    lengths = np.array([30, 90, 30, 50, 90, 20, 30])
    batches = plan_packed_batches(lengths, token_budget=128)
    assert [rows.tolist() for rows in batches] == [[1], [4], [3, 0, 2], [6, 5]]
    assert plan_packed_batches(np.array([], dtype=np.int64), token_budget=5) == []


@pytest.mark.parametrize("budget", [100, 257, 4000, 10**9])
def test_a_batch_keeps_to_the_budget_with_its_filler_and_takes_what_fits(budget: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 65, size=500)
    batches = plan_packed_batches(lengths, token_budget=budget)
    assert sorted(np.concatenate(batches).tolist()) == list(range(500))
    filled = [-(-lengths[rows].sum() // 64) * 64 for rows in batches]
    assert max(filled) <= budget
    for rows, following in pairwise(batches):
        assert lengths[rows].sum() + lengths[following[0]] > budget - budget % 64


def test_the_texts_lie_end_to_end_and_a_filler_behind_them(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    tokenizer.pad_token = "[MASK]"  # whose id is not 0
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:1 $A:1 [SEP]:0", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    texts = tokenize_texts(tokenizer, MIXED, max_length=30, token_type_ids=True)
    seen = []
    for rows, batch in packed_batches(texts, tokenizer=tokenizer, token_budget=64):
        starts = batch["cu_seq_lens_q"].tolist()
        assert batch["cu_seq_lens_k"].tolist() == starts
        assert starts[-1] == batch["input_ids"].shape[1] == 64
        assert batch["max_length_q"] == batch["max_length_k"] == max(np.diff(starts))
        for row, start, end in zip(rows, starts, starts[1:], strict=False):
            own = tokenizer(MIXED[row], truncation=True, max_length=30, return_token_type_ids=True)
            assert batch["input_ids"][0, start:end].tolist() == own["input_ids"]
            assert batch["token_type_ids"][0, start:end].tolist() == own["token_type_ids"]
            assert batch["position_ids"][0, start:end].tolist() == list(range(end - start))
        filler = starts[len(rows)]
        assert filler == texts.lengths[rows].sum()
        assert set(batch["input_ids"][0, filler:].tolist()) <= {tokenizer.pad_token_id}
        assert set(batch["position_ids"][0, filler:].tolist()) <= {0}
        assert len(starts) == len(rows) + 1 + (filler < 64)
        assert all(batch[name].dtype == torch.int64 for name in ("input_ids", "token_type_ids"))
        seen.extend(rows.tolist())
    assert sorted(seen) == list(range(len(MIXED)))
    without = tokenize_texts(tokenizer, MIXED, max_length=30)
    for _, batch in packed_batches(without, tokenizer=tokenizer, token_budget=64):
        assert "token_type_ids" not in batch
