"""Batches: what a model is given, and that masks depend on nothing but a block and its key."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import processors
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from modeling_condenser.pretraining.collator import CondenserDataCollator, count_bags, pack, unpack
from modeling_condenser.pretraining.data import KeyedBlocks

KINDS = ["wordpiece_tokenizer", "byte_level_tokenizer", "sentencepiece_tokenizer"]
Batch = Mapping[str, torch.Tensor]


@pytest.fixture(params=KINDS)
def tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def wordpiece_blocks(wordpiece_tokenizer, texts):
    return [ids[:100] for ids in blocks_of(wordpiece_tokenizer, texts)]


def blocks_of(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    return tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]


def examples_of(blocks: list[list[int]], *, first_key: int = 0) -> list[dict[str, Any]]:
    return [{"input_ids": ids, "mask_key": first_key + i} for i, ids in enumerate(blocks)]


def restore(batch: Batch) -> torch.Tensor:
    return torch.where(batch["labels"] != -100, batch["labels"], batch["input_ids"])


def same(a: Batch, b: Batch) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_batch_holds_three_tensors_of_integers_as_wide_as_its_longest_block(wordpiece_tokenizer):
    collator = CondenserDataCollator(wordpiece_tokenizer, max_length=64)
    for longest, width in [(1, 8), (6, 8), (7, 16), (62, 64), (500, 64)]:
        batch = collator(examples_of([[50] * longest, [50]]))
        assert list(batch) == ["input_ids", "attention_mask", "labels"]
        for tensor in batch.values():
            assert tensor.shape == (2, width) and tensor.dtype == torch.int64
        assert batch["attention_mask"].sum(1).tolist() == [min(longest + 2, 64), 3]
    odd = CondenserDataCollator(wordpiece_tokenizer, max_length=33)(examples_of([[50] * 40]))
    assert odd["input_ids"].shape == (1, 33)


def test_blocks_stand_between_their_special_tokens_and_padding_follows(tokenizer, texts):
    blocks = [ids[:60] for ids in blocks_of(tokenizer, texts)]
    batch = CondenserDataCollator(tokenizer, max_length=64)(examples_of(blocks))
    restored = restore(batch).tolist()
    cls, sep, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    for row, mask, block in zip(restored, batch["attention_mask"].tolist(), blocks, strict=True):
        n_pads = len(row) - len(block) - 2
        assert row == [cls, *block, sep] + [pad] * n_pads
        assert mask == [1] * (len(block) + 2) + [0] * n_pads


def test_special_tokens_and_padding_are_never_masked(tokenizer, texts):
    blocks = [ids[:60] for ids in blocks_of(tokenizer, texts)]
    for block in blocks[::2]:
        block[len(block) // 2] = tokenizer.unk_token_id
    collator = CondenserDataCollator(tokenizer, max_length=64, mlm_probability=0.9)
    special = torch.tensor(tokenizer.all_special_ids)
    batch = collator(examples_of(blocks))
    labels, ids = batch["labels"], batch["input_ids"]
    masked = labels != -100
    assert masked.sum() > 4_000
    assert not torch.isin(labels[masked], special).any()
    assert not masked[batch["attention_mask"] == 0].any()
    # A masked place holds [MASK] or an ordinary token.
    put = ids[masked]
    assert not torch.isin(put[put != tokenizer.mask_token_id], special).any()


def test_fifteen_per_cent_of_the_tokens_are_masked_as_whole_words(
    wordpiece_tokenizer, wordpiece_blocks
):
    collator = CondenserDataCollator(wordpiece_tokenizer, max_length=256)
    batch = collator(examples_of(wordpiece_blocks))
    continues = [
        token.startswith("##")
        for token in wordpiece_tokenizer.convert_ids_to_tokens(list(range(500)))
    ]
    for labels, block in zip(batch["labels"], wordpiece_blocks, strict=True):
        masked = (labels[1 : len(block) + 1] != -100).tolist()
        # These texts have words of one token enough for the budget to be met.
        assert sum(masked) == max(1, round(0.15 * len(block)))
        for i in range(1, len(block)):
            assert not continues[block[i]] or masked[i] == masked[i - 1]


def test_an_over_long_block_is_cut_to_a_window_that_differs_between_keys(wordpiece_tokenizer):
    block = list(range(100, 150))
    collator = CondenserDataCollator(wordpiece_tokenizer, max_length=16)
    batch = collator(examples_of([block] * 2000))
    assert batch["input_ids"].shape == (2000, 16) and batch["attention_mask"].all()
    starts = []
    for row in restore(batch).tolist():
        starts.append(row[1] - 100)
        assert row[1:15] == block[starts[-1] : starts[-1] + 14]
    counts = np.bincount(starts)
    assert len(counts) == 37  # the first window, the last, and all between
    assert counts.min() > 20 and counts.max() < 100  # 54 on average


def test_masks_depend_on_the_block_and_its_key_only(tokenizer, texts):
    collator = CondenserDataCollator(tokenizer, max_length=48)  # some blocks are cut
    blocks = blocks_of(tokenizer, texts)[:60]
    examples = examples_of(blocks)
    together = collator(examples)
    order = np.random.default_rng(0).permutation(60)
    shuffled = CondenserDataCollator(tokenizer, max_length=48, seed=9)([examples[i] for i in order])
    for name, column in together.items():
        assert torch.equal(shuffled[name], column[order])
        alone = collator([{**examples[7], "input_ids": torch.tensor(blocks[7])}])[name][0]
        assert torch.equal(alone, column[7, : len(alone)])
    assert not same(together, collator(examples_of(blocks, first_key=1000)))


def test_masks_depend_on_seed_epoch_and_block_not_on_workers(wordpiece_tokenizer, wordpiece_blocks):
    collator = CondenserDataCollator(wordpiece_tokenizer, max_length=256)
    blocks = Dataset.from_dict({"input_ids": wordpiece_blocks})

    def two_epochs(seed: int = 1, **options: Any) -> list[list[Batch]]:
        dataset = KeyedBlocks(blocks, seed=seed)
        loader = DataLoader(dataset, batch_size=32, collate_fn=collator, **options)
        epochs = []
        for epoch in range(2):
            dataset.set_epoch(epoch)
            epochs.append(list(loader))
        return epochs

    first, second = two_epochs()
    workers = two_epochs(num_workers=2, persistent_workers=True)
    for batch, again in zip(first + second, workers[0] + workers[1], strict=True):
        assert same(batch, again)
    for others in (second, two_epochs(seed=2)[0]):
        for batch, other in zip(first, others, strict=True):
            assert torch.equal(restore(batch), restore(other))
            assert (batch["labels"] != other["labels"]).any(1).double().mean() > 0.9


def test_examples_without_keys_are_masked_differently_in_each_epoch_with_workers(
    wordpiece_tokenizer, wordpiece_blocks
):
    examples = [{"input_ids": ids} for ids in wordpiece_blocks[:64]]

    collator = CondenserDataCollator(wordpiece_tokenizer, max_length=64)
    loader = DataLoader(examples, batch_size=16, num_workers=2, collate_fn=collator)
    first, second = list(loader), list(loader)
    assert not any(same(a, b) for a, b in zip(first, second, strict=True))
    assert not same(first[0], first[1])


def test_texts_tokenized_the_usual_way_give_the_same_batch(tokenizer, texts):
    collator = CondenserDataCollator(tokenizer, max_length=64)
    bare, framed = (
        collator(examples_of(tokenizer(texts[:20], add_special_tokens=flag)["input_ids"]))
        for flag in (False, True)
    )
    for name, column in bare.items():
        assert torch.equal(framed[name], column), name


def bags(targets: torch.Tensor) -> list[list[int]]:
    return [sorted(row[row != -100].tolist()) for row in targets]


def test_a_bag_holds_each_token_of_the_unmasked_block_once_and_no_special_one(
    wordpiece_tokenizer, wordpiece_blocks
):
    unknown, sep = wordpiece_tokenizer.unk_token_id, wordpiece_tokenizer.sep_token_id
    blocks = [*wordpiece_blocks[:9], [50, unknown, 50, 51, sep], [unknown]]
    settings = {"max_length": 128, "mlm_probability": 0.9, "bag_of_words": True}
    batch = CondenserDataCollator(wordpiece_tokenizer, **settings)(examples_of(blocks))
    special = set(wordpiece_tokenizer.all_special_ids)
    assert bags(batch["bow_targets"]) == [sorted(set(ids) - special) for ids in blocks]
    assert bags(batch["bow_targets"])[-2:] == [[50, 51], []]
    packed = pack(batch, pad_token_id=0)
    assert int(count_bags(batch)) == int(count_bags(packed)) == len(blocks) - 1
    restored = unpack(packed, pad_token_id=0)
    assert bags(restored["bow_targets"]) == bags(batch["bow_targets"])


def test_the_second_masking_is_another_one_of_its_own_rate_and_leaves_the_first_as_it_was(
    wordpiece_tokenizer, wordpiece_blocks
):
    settings = {"max_length": 128, "mlm_probability": 0.3}
    examples = examples_of(wordpiece_blocks)
    once = CondenserDataCollator(wordpiece_tokenizer, **settings)(examples)
    twice = CondenserDataCollator(wordpiece_tokenizer, **settings, head_mlm_probability=0.5)(
        examples
    )
    assert all(torch.equal(twice[name], column) for name, column in once.items())
    first, second = (twice[name] != -100 for name in ("labels", "head_targets"))
    n_tokens = sum(map(len, wordpiece_blocks))
    assert second.sum().item() / n_tokens == pytest.approx(0.5, abs=0.03)
    # Independent: of what the first masks, the second masks its own rate.
    assert second[first].float().mean().item() == pytest.approx(0.5, abs=0.03)
    whole = twice["head_input_ids"].where(~second, twice["head_targets"])
    assert torch.equal(whole, restore(once))


def test_a_tokenizer_without_the_tokens_of_masking_is_refused(wordpiece_tokenizer):
    for name, message in (("mask_token", "has no mask token"), ("pad_token", "no padding token")):
        tokenizer = copy.deepcopy(wordpiece_tokenizer)
        setattr(tokenizer, name, None)
        with pytest.raises(ValueError, match=message):
            CondenserDataCollator(tokenizer)
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[SEP] $A [CLS]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    with pytest.raises(ValueError, match="needs the CLS token .2. there"):
        CondenserDataCollator(tokenizer)
