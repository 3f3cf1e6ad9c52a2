"""Packed batches hold the blocks of padded ones; budget batches hold as many blocks as fit."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from modeling_condenser.packing import use_packing
from modeling_condenser.pretraining.collator import (
    PACK_MULTIPLE,
    CondenserDataCollator,
    TokenBudgetBatches,
    is_packed,
    pack,
    unpack,
)
from modeling_condenser.pretraining.examples import count_block_tokens
from tests.test_packing import make_model

PAD = 0
LENGTHS = np.random.default_rng(0).integers(3, 65, size=1000)


def examples_of(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], n: int
) -> list[dict[str, Any]]:
    blocks = tokenizer(texts[:n], add_special_tokens=False, verbose=False)["input_ids"]
    return [{"input_ids": ids, "mask_key": 100 + i} for i, ids in enumerate(blocks)]


def batch_of(*blocks: list[int]) -> dict[str, torch.Tensor]:
    """A padded batch, by hand; a token's label is its tenfold."""
    width = max(map(len, blocks))
    rows = [block + [PAD] * (width - len(block)) for block in blocks]
    masks = [[1] * len(block) + [0] * (width - len(block)) for block in blocks]
    labels = [[10 * i for i in block] + [-100] * (width - len(block)) for block in blocks]
    names = ("input_ids", "attention_mask", "labels")
    return dict(zip(names, map(torch.tensor, (rows, masks, labels)), strict=True))


def test_blocks_lie_end_to_end_and_the_filler_behind_them():
    packed = pack(batch_of([2, 5, 3], [2, 3], [2, 7, 8, 9, 3]), pad_token_id=PAD)
    text = [2, 5, 3, 2, 3, 2, 7, 8, 9, 3]
    assert packed["input_ids"].tolist() == [text + [PAD] * 54]
    assert packed["labels"].tolist() == [[10 * i for i in text] + [-100] * 54]
    positions = [0, 1, 2, 0, 1, 0, 1, 2, 3, 4, *[0] * 54]
    assert packed["position_ids"].tolist() == [positions]
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        assert packed[name].tolist() == [0, 3, 5, 10, 64]
        assert packed[name].dtype == torch.int32
    for name in ("input_ids", "labels", "position_ids"):
        assert packed[name].dtype == torch.int64
    assert packed["max_length_q"] == packed["max_length_k"] == 54  # the filler's
    assert "attention_mask" not in packed
    block = [2, *range(10, 40), 3]  # 32 tokens: two blocks need no filler
    packed = pack(batch_of(block, block), pad_token_id=PAD)
    assert packed["cu_seq_lens_q"].tolist() == [0, 32, 64]
    assert unpack(packed, pad_token_id=PAD)["input_ids"].tolist() == [block, block]


def test_an_encoder_of_fewer_positions_than_the_filler_has_tokens_takes_the_batch():
    model = make_model("BERT")  # of 40 positions
    padded = {**batch_of([2, 5, 3], [2, 7, 8, 9, 3]), "labels": torch.full((2, 5), -100)}
    padded["labels"][1, 2] = 8
    expected = model(**padded).loss
    use_packing(model)
    assert model(**pack(padded, pad_token_id=PAD)).loss.item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    "kind", ["wordpiece_tokenizer", "byte_level_tokenizer", "sentencepiece_tokenizer"]
)
def test_unpacked_again_a_packed_batch_is_the_padded_one(kind, texts, request):
    tokenizer = request.getfixturevalue(kind)
    padded = CondenserDataCollator(tokenizer, max_length=24)
    packing = CondenserDataCollator(tokenizer, max_length=24, packed=True)
    for n in (1, 17):
        examples = examples_of(tokenizer, texts, n)
        expected, packed = padded(examples), packing(examples)
        assert is_packed(packed) and not is_packed(expected)
        n_tokens = int(expected["attention_mask"].sum())
        n_columns = packed["input_ids"].shape[1]
        assert n_columns % PACK_MULTIPLE == 0 and 0 <= n_columns - n_tokens < PACK_MULTIPLE
        unpacked = unpack(packed, pad_token_id=tokenizer.pad_token_id)
        width = int(expected["attention_mask"].sum(1).max())
        assert unpacked.keys() == expected.keys()
        for name, tensor in unpacked.items():
            assert torch.equal(tensor, expected[name][:, :width]), name
        # Nothing was in the columns that are compared no longer.
        assert not expected["attention_mask"][:, width:].any()


def test_as_many_blocks_can_be_unpacked_as_there_is_room_for():
    packed = pack(batch_of([2, 5, 3], [2, 3], [2, 7, 8, 9, 3]), pad_token_id=PAD)
    some = unpack(packed, pad_token_id=PAD, room=14)
    assert some["input_ids"].tolist() == [[2, 5, 3, PAD, PAD], [2, 3, PAD, PAD, PAD]]
    assert some["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    assert some["labels"].tolist() == [[20, 50, 30, -100, -100], [20, 30, -100, -100, -100]]
    assert len(unpack(packed, pad_token_id=PAD, room=15)["input_ids"]) == 3
    assert len(unpack(packed, pad_token_id=PAD, room=1000)["input_ids"]) == 3


def epoch_of(batches: TokenBudgetBatches, epoch: int) -> list[list[int]]:
    batches.set_epoch(epoch)
    return list(batches)


def test_an_epoch_holds_each_block_once_in_batches_as_full_as_the_budget_allows():
    batches = TokenBudgetBatches(LENGTHS, 256, seed=1)
    epoch = epoch_of(batches, 0)
    assert len(epoch) == len(batches)
    assert sorted(i for batch in epoch for i in batch) == list(range(1000))
    assert max(LENGTHS[batch].sum() for batch in epoch) <= 256
    for batch, following in pairwise(epoch):
        assert LENGTHS[batch].sum() + LENGTHS[following[0]] > 256
    assert sorted(TokenBudgetBatches([8, 8, 8], 8, seed=0)) == [[0], [1], [2]]


def test_order_and_batches_depend_on_seed_and_epoch_only_and_epochs_are_equally_long():
    one, other = (TokenBudgetBatches(LENGTHS, 256, seed=1) for _ in range(2))
    epochs = [epoch_of(one, epoch) for epoch in range(5)]
    assert epoch_of(other, 3) == epochs[3] != epochs[0]
    assert epoch_of(TokenBudgetBatches(LENGTHS, 256, seed=2), 3) != epochs[3]
    for given in epochs:
        assert len(given) == len(one)
        assert len({i for batch in given for i in batch}) > 970


@pytest.mark.parametrize("n_processes", [2, 7])
def test_processes_share_whole_batches_and_get_equally_many(n_processes):
    batches = TokenBudgetBatches(LENGTHS, 256, seed=1, n_processes=n_processes)
    shares = [list(BatchSamplerShard(batches, n_processes, rank)) for rank in range(n_processes)]
    together = [batch for turn in zip(*shares, strict=True) for batch in turn]
    assert together == list(batches)
    alone = list(TokenBudgetBatches(LENGTHS, 256, seed=1))
    assert together[: len(alone)] == alone
    assert len(together) - len(alone) < n_processes


def test_the_lengths_are_those_of_the_collator_s_blocks():
    blocks = Dataset.from_dict({"input_ids": [[7] * n for n in (1, 30, 62, 63, 200)]})
    counted = count_block_tokens(blocks, 2, 64)
    assert counted.tolist() == [3, 32, 64, 64, 64]
    # As datasets stores blocks that were chosen or sorted.
    chosen = count_block_tokens(blocks.select([4, 0]), 2, 64)
    assert chosen.tolist() == [64, 3]
    with pytest.raises(ValueError, match="tokens_per_batch is 63, but a block has 64 tokens"):
        TokenBudgetBatches(counted, 63, seed=0)
