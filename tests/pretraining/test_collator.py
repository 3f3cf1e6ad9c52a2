"""Batches: what a model is given, and that masks depend on nothing but a block and its key."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import processors
from torch.utils.data import DataLoader, RandomSampler
from transformers import PreTrainedTokenizerBase

from modeling_condenser.pretraining.blocks import KeyedBlocks
from modeling_condenser.pretraining.collator import CondenserDataCollator

KINDS = ["wordpiece_tokenizer", "byte_level_tokenizer", "sentencepiece_tokenizer"]
Batch = Mapping[str, torch.Tensor]


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return request.getfixturevalue(request.param)


@pytest.fixture
def wordpiece_blocks(
    wordpiece_tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> list[list[int]]:
    return [ids[:100] for ids in blocks_of(wordpiece_tokenizer, texts)]


def blocks_of(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    return tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]


def examples_of(blocks: list[list[int]], *, first_key: int = 0) -> list[dict[str, Any]]:
    return [{"input_ids": ids, "mask_key": first_key + i} for i, ids in enumerate(blocks)]


def restore(batch: Batch) -> torch.Tensor:
    return torch.where(batch["labels"] != -100, batch["labels"], batch["input_ids"])


def rows_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Input and labels of each row, without padding."""
    return [
        (ids[:n].tolist(), labels[:n].tolist())
        for ids, labels, n in zip(
            batch["input_ids"], batch["labels"], batch["attention_mask"].sum(1), strict=True
        )
    ]


def same(a: Batch, b: Batch) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_batch_holds_three_tensors_of_integers_as_wide_as_its_longest_block(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    collator = CondenserDataCollator(wordpiece_tokenizer, max_length=64)
    for longest, width in [(1, 8), (6, 8), (7, 16), (14, 16), (30, 32), (61, 64), (62, 64)]:
        batch = collator(examples_of([[50] * longest, [50]]))
        assert list(batch) == ["input_ids", "attention_mask", "labels"]
        for tensor in batch.values():
            assert tensor.shape == (2, width) and tensor.dtype == torch.int64
        assert batch["attention_mask"].sum(1).tolist() == [longest + 2, 3]


@pytest.mark.parametrize("max_length", [30, 33, 40])
def test_a_batch_is_never_wider_than_the_longest_sequence(
    max_length: int, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    collator = CondenserDataCollator(wordpiece_tokenizer, max_length=max_length)
    for length, width in [(max_length - 2, max_length), (500, max_length), (20, 24)]:
        batch = collator(examples_of([[50] * length, [50]]))
        assert batch["input_ids"].shape == (2, width)
        assert batch["attention_mask"].sum(1).tolist() == [min(length + 2, max_length), 3]


def test_blocks_stand_between_their_special_tokens_and_padding_follows(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    blocks = [ids[:60] for ids in blocks_of(tokenizer, texts)]
    batch = CondenserDataCollator(tokenizer, max_length=64)(examples_of(blocks))
    restored = restore(batch).tolist()
    cls, sep, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    for row, mask, block in zip(restored, batch["attention_mask"].tolist(), blocks, strict=True):
        n_pads = len(row) - len(block) - 2
        assert row == [cls, *block, sep] + [pad] * n_pads
        assert mask == [1] * (len(block) + 2) + [0] * n_pads


def test_special_tokens_and_padding_are_never_masked(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    blocks = [ids[:60] for ids in blocks_of(tokenizer, texts)]
    for block in blocks[::2]:
        block[len(block) // 2] = tokenizer.unk_token_id
    collator = CondenserDataCollator(tokenizer, max_length=64, mlm_probability=0.9)
    special = torch.tensor(tokenizer.all_special_ids)
    n_masked = 0
    for first_key in range(0, 1500, 300):
        batch = collator(examples_of(blocks, first_key=first_key))
        labels, ids = batch["labels"], batch["input_ids"]
        masked = labels != -100
        assert not torch.isin(labels[masked], special).any()
        assert not masked[batch["attention_mask"] == 0].any()
        assert not masked[:, 0].any()
        # What is put in a masked place is [MASK] or an ordinary token.
        put = ids[masked]
        assert not torch.isin(put[put != tokenizer.mask_token_id], special).any()
        # A token that is not masked is what it was.
        assert torch.equal(ids[~masked], restore(batch)[~masked])
        n_masked += int(masked.sum())
    assert n_masked > 20_000


def test_masked_tokens_are_masked_replaced_or_kept_and_all_keep_their_label(
    wordpiece_tokenizer: PreTrainedTokenizerBase, wordpiece_blocks: list[list[int]]
) -> None:
    collator = CondenserDataCollator(wordpiece_tokenizer, max_length=256)
    batches = [collator(examples_of(wordpiece_blocks, first_key=k)) for k in range(0, 6000, 300)]
    labels = torch.cat([batch["labels"].flatten() for batch in map(_flat, batches)])
    ids = torch.cat([batch["input_ids"].flatten() for batch in map(_flat, batches)])
    masked = labels != -100
    n = int(masked.sum())
    assert n > 50_000
    share = (ids[masked] == wordpiece_tokenizer.mask_token_id).double().mean().item()
    assert abs(share - 0.8) < 4 * (0.8 * 0.2 / n) ** 0.5
    kept = (ids[masked] == labels[masked]).double().mean().item()
    expected = 0.1 + 0.1 / (len(wordpiece_tokenizer) - 5)  # some are replaced by themselves
    assert abs(kept - expected) < 4 * (0.1 * 0.9 / n) ** 0.5


def _flat(batch: Batch) -> Batch:
    return {name: tensor.flatten() for name, tensor in batch.items()}


def test_fifteen_per_cent_of_the_tokens_are_masked_as_whole_words(
    wordpiece_tokenizer: PreTrainedTokenizerBase, wordpiece_blocks: list[list[int]]
) -> None:
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


def test_a_block_of_special_tokens_and_an_empty_one_are_left_as_they_are(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    unknown = tokenizer.unk_token_id
    batch = CondenserDataCollator(tokenizer, max_length=16)(examples_of([[unknown] * 5, []]))
    cls, sep, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    assert batch["input_ids"].tolist() == [
        [cls, *[unknown] * 5, sep, pad],
        [cls, sep, *[pad] * 6],
    ]
    assert (batch["labels"] == -100).all()
    alone = CondenserDataCollator(tokenizer, max_length=16)(examples_of([[]]))
    assert alone["input_ids"].tolist() == [[cls, sep, *[pad] * 6]]


def test_the_only_token_of_a_block_is_masked(tokenizer: PreTrainedTokenizerBase) -> None:
    token = blocks_of(tokenizer, ["the"])[0][:1]
    batch = CondenserDataCollator(tokenizer, max_length=16)(examples_of([token] * 40))
    assert batch["labels"].tolist() == [[-100, *token, *[-100] * 6]] * 40
    n_masked = int((batch["input_ids"] == tokenizer.mask_token_id).sum())
    assert 20 < n_masked < 40


def test_an_over_long_block_is_cut_to_a_window_that_differs_between_keys(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
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


def test_a_block_that_just_fits_is_not_cut(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    block = list(range(100, 114))
    batch = CondenserDataCollator(wordpiece_tokenizer, max_length=16)(examples_of([block] * 30))
    assert restore(batch)[:, 1:15].tolist() == [block] * 30


def test_masks_do_not_depend_on_the_rest_of_the_batch_nor_on_its_order(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    collator = CondenserDataCollator(tokenizer, max_length=48)  # some blocks are cut
    examples = examples_of(blocks_of(tokenizer, texts)[:60])
    together = rows_of(collator(examples))
    assert [rows_of(collator([example]))[0] for example in examples] == together
    order = np.random.default_rng(0).permutation(60)
    shuffled = rows_of(collator([examples[i] for i in order]))
    assert shuffled == [together[i] for i in order]


def test_the_same_keys_give_the_same_batch_and_others_another(
    wordpiece_tokenizer: PreTrainedTokenizerBase, wordpiece_blocks: list[list[int]]
) -> None:
    examples = examples_of(wordpiece_blocks)
    first = CondenserDataCollator(wordpiece_tokenizer, max_length=64)(examples)
    again = CondenserDataCollator(wordpiece_tokenizer, max_length=64, seed=9)(examples)
    other = CondenserDataCollator(wordpiece_tokenizer, max_length=64)(
        examples_of(wordpiece_blocks, first_key=1000)
    )
    assert same(first, again)
    assert not torch.equal(first["labels"], other["labels"])


def test_examples_may_be_arrays_or_lists(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    collator = CondenserDataCollator(wordpiece_tokenizer, max_length=64)
    block = list(range(100, 140))
    forms = [block, np.array(block, dtype=np.int32), torch.tensor(block)]
    batches = [collator([{"input_ids": form, "mask_key": 3}]) for form in forms]
    assert same(batches[0], batches[1]) and same(batches[0], batches[2])


def test_examples_without_keys_are_masked_by_the_seed_and_differently_each_time(
    wordpiece_tokenizer: PreTrainedTokenizerBase, wordpiece_blocks: list[list[int]]
) -> None:
    examples = [{"input_ids": ids} for ids in wordpiece_blocks]

    def two_batches(seed: int) -> tuple[Batch, Batch]:
        collator = CondenserDataCollator(wordpiece_tokenizer, max_length=64, seed=seed)
        return collator(examples), collator(examples)

    first, second = two_batches(0)
    again = two_batches(0)
    assert same(first, again[0]) and same(second, again[1])
    assert not same(first, second)
    assert not same(first, two_batches(1)[0])


def test_examples_without_keys_are_masked_differently_in_each_epoch_with_workers(
    wordpiece_tokenizer: PreTrainedTokenizerBase, wordpiece_blocks: list[list[int]]
) -> None:
    examples = [{"input_ids": ids} for ids in wordpiece_blocks[:64]]

    def two_epochs() -> list[list[Batch]]:
        loader = DataLoader(
            examples,
            batch_size=16,
            num_workers=2,
            collate_fn=CondenserDataCollator(wordpiece_tokenizer, max_length=64),
            generator=torch.Generator().manual_seed(0),
        )
        return [list(loader) for _ in range(2)]

    (first, second), again = two_epochs(), two_epochs()
    assert all(same(a, b) for a, b in zip(first + second, again[0] + again[1], strict=True))
    assert not any(same(a, b) for a, b in zip(first, second, strict=True))
    assert not same(first[0], first[1])


def epochs_of(
    dataset: KeyedBlocks, collator: CondenserDataCollator, **options: Any
) -> list[list[Batch]]:
    """Two epochs of batches in a shuffled order."""
    order = RandomSampler(dataset, generator=torch.Generator().manual_seed(5))
    loader = DataLoader(dataset, batch_size=32, sampler=order, collate_fn=collator, **options)
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        epochs.append(list(loader))
    return epochs


def test_batches_do_not_depend_on_the_number_of_workers(
    wordpiece_tokenizer: PreTrainedTokenizerBase, wordpiece_blocks: list[list[int]]
) -> None:
    collator = CondenserDataCollator(wordpiece_tokenizer, max_length=64)
    blocks = Dataset.from_dict({"input_ids": wordpiece_blocks})
    expected = epochs_of(KeyedBlocks(blocks, seed=1), collator)
    assert len(expected[0]) == 10
    for options in (
        {"num_workers": 1},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
    ):
        epochs = epochs_of(KeyedBlocks(blocks, seed=1), collator, **options)
        for batches, wanted in zip(epochs, expected, strict=True):
            assert all(same(a, b) for a, b in zip(batches, wanted, strict=True)), options


def test_another_epoch_or_seed_masks_the_same_blocks_otherwise(
    wordpiece_tokenizer: PreTrainedTokenizerBase, wordpiece_blocks: list[list[int]]
) -> None:
    collator = CondenserDataCollator(wordpiece_tokenizer, max_length=256)
    blocks = Dataset.from_dict({"input_ids": wordpiece_blocks})
    batches = []
    for seed, epoch in [(1, 0), (1, 1), (2, 0), (1, 0)]:
        dataset = KeyedBlocks(blocks, seed=seed)
        dataset.set_epoch(epoch)
        assert len(dataset) == 300
        batches.append(collator([dataset[i] for i in range(300)]))
    first, other_epoch, other_seed, again = batches
    assert same(first, again)
    for other in (other_epoch, other_seed):
        assert torch.equal(restore(first), restore(other))
        rows = (first["labels"] != other["labels"]).any(1)
        assert rows.double().mean() > 0.95


def test_a_tokenizer_without_a_mask_token_is_refused(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match="has no mask token.*add_special_tokens"):
        CondenserDataCollator(tokenizer)


def test_a_tokenizer_without_a_padding_token_is_refused(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="no padding token: set pad_token"):
        CondenserDataCollator(tokenizer)


@pytest.mark.parametrize("template", ["$A [SEP]", "$A [SEP] [CLS]", "[SEP] $A [CLS]"])
def test_a_tokenizer_that_does_not_put_cls_first_is_refused(
    template: str, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    with pytest.raises(ValueError, match="needs the CLS token .2. there"):
        CondenserDataCollator(tokenizer)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 15.0])
def test_a_share_of_masks_outside_zero_to_one_is_refused(
    share: float, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(ValueError, match=f"mlm_probability is {share}.*between 0 and 1"):
        CondenserDataCollator(wordpiece_tokenizer, mlm_probability=share)


def test_a_length_without_room_for_text_is_refused(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    with pytest.raises(ValueError, match="max_length is 2, which leaves no room"):
        CondenserDataCollator(wordpiece_tokenizer, max_length=2)
    block = list(range(100, 110))
    batch = CondenserDataCollator(wordpiece_tokenizer, max_length=3)(examples_of([block] * 9))
    assert batch["input_ids"].shape == (9, 3)


def test_texts_tokenized_the_usual_way_give_the_same_batch(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    collator = CondenserDataCollator(tokenizer, max_length=64)
    bare, framed = (
        collator(examples_of(tokenizer(texts[:20], add_special_tokens=flag)["input_ids"]))
        for flag in (False, True)
    )
    for name, column in bare.items():
        assert torch.equal(framed[name], column), name
