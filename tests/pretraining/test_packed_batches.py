"""Packed batches hold what padded ones do, block by block, without the padding."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from modeling_condenser.packing import use_packing
from modeling_condenser.pretraining.collator import CondenserDataCollator
from modeling_condenser.pretraining.packed_batches import (
    PACK_MULTIPLE,
    count_tokens,
    is_packed,
    pack,
    unpack,
)
from tests.test_packing import make_model

PAD = 0


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


def test_blocks_lie_end_to_end_and_the_filler_behind_them() -> None:
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
    assert count_tokens(packed).item() == 10


def test_an_encoder_of_fewer_positions_than_the_filler_has_tokens_takes_the_batch() -> None:
    model = make_model("BERT")  # of 40 positions
    padded = {**batch_of([2, 5, 3], [2, 7, 8, 9, 3]), "labels": torch.full((2, 5), -100)}
    padded["labels"][1, 2] = 8
    expected = model(**padded).loss
    use_packing(model)
    assert model(**pack(padded, pad_token_id=PAD)).loss.item() == pytest.approx(expected.item())


def test_a_row_that_is_a_multiple_already_has_no_filler() -> None:
    block = [2, *range(10, 40), 3]  # 32 tokens
    packed = pack(batch_of(block, block), pad_token_id=PAD)
    assert packed["cu_seq_lens_q"].tolist() == [0, 32, 64]
    assert packed["max_length_q"] == 32
    assert count_tokens(packed).item() == 64
    assert unpack(packed, pad_token_id=PAD)["input_ids"].tolist() == [block, block]


@pytest.mark.parametrize(
    "kind", ["wordpiece_tokenizer", "byte_level_tokenizer", "sentencepiece_tokenizer"]
)
@pytest.mark.parametrize("max_length", [24, 64])
def test_unpacked_again_a_packed_batch_is_the_padded_one(
    kind: str, max_length: int, texts: list[str], request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(kind)
    padded = CondenserDataCollator(tokenizer, max_length=max_length)
    packing = CondenserDataCollator(tokenizer, max_length=max_length, packed=True)
    for n in (1, 2, 17, 60):
        examples = examples_of(tokenizer, texts, n)
        expected, packed = padded(examples), packing(examples)
        assert is_packed(packed) and not is_packed(expected)
        n_tokens = int(expected["attention_mask"].sum())
        assert count_tokens(packed).item() == count_tokens(expected).item() == n_tokens
        n_columns = packed["input_ids"].shape[1]
        assert n_columns % PACK_MULTIPLE == 0 and 0 <= n_columns - n_tokens < PACK_MULTIPLE
        unpacked = unpack(packed, pad_token_id=tokenizer.pad_token_id)
        width = int(expected["attention_mask"].sum(1).max())
        assert unpacked.keys() == expected.keys()
        for name, tensor in unpacked.items():
            assert torch.equal(tensor, expected[name][:, :width]), name
        # Nothing was in the columns that are compared no longer.
        assert not expected["attention_mask"][:, width:].any()


def test_as_many_blocks_can_be_unpacked_as_there_is_room_for() -> None:
    packed = pack(batch_of([2, 5, 3], [2, 3], [2, 7, 8, 9, 3]), pad_token_id=PAD)
    some = unpack(packed, pad_token_id=PAD, room=14)
    assert some["input_ids"].tolist() == [[2, 5, 3, PAD, PAD], [2, 3, PAD, PAD, PAD]]
    assert some["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    assert some["labels"].tolist() == [[20, 50, 30, -100, -100], [20, 30, -100, -100, -100]]
    assert len(unpack(packed, pad_token_id=PAD, room=15)["input_ids"]) == 3
    assert len(unpack(packed, pad_token_id=PAD, room=1000)["input_ids"]) == 3
