"""Batches: what a model is given, and that masks depend on a block and its key."""

import copy
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import processors
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser import CondenserDataCollator
from modeling_condenser.files.models import STARTER_FOLDER
from modeling_condenser.packing import unpack
from modeling_condenser.pretraining.data import KeyedBlocks
from modeling_condenser.pretraining.word_starts import WordStarts
from tests import tokenizers
from tests.pretraining.scripts import SCRIPTS, texts_of

Batch = Mapping[str, torch.Tensor]


@pytest.fixture
def blocks(tokenizer, texts):
    return [ids[:100] for ids in blocks_of(tokenizer, texts)]


def blocks_of(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    return tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]


def examples_of(blocks: list[list[int]], *, first_key: int = 0) -> list[dict[str, Any]]:
    return [{"input_ids": ids, "mask_key": first_key + i} for i, ids in enumerate(blocks)]


def restore(batch: Batch) -> torch.Tensor:
    return torch.where(batch["labels"] != -100, batch["labels"], batch["input_ids"])


def same(a: Batch, b: Batch) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_blocks_stand_between_special_tokens_which_are_never_masked(any_tokenizer, texts):
    cls, sep = any_tokenizer.cls_token_id, any_tokenizer.sep_token_id
    pad, mask = any_tokenizer.pad_token_id, any_tokenizer.mask_token_id
    blocks = [ids[:60] for ids in blocks_of(any_tokenizer, texts)]
    for block in blocks[::2]:
        block[len(block) // 2] = any_tokenizer.unk_token_id
    collator = CondenserDataCollator(any_tokenizer, max_length=64, mlm_probability=0.9)
    batch = collator(examples_of(blocks))
    assert list(batch) == ["input_ids", "attention_mask", "labels"]
    for column in batch.values():
        assert column.shape == (len(blocks), 64) and column.dtype == torch.int64
    assert collator(examples_of([blocks[0][:7]]))["labels"].shape == (1, 16)
    rows = zip(restore(batch).tolist(), batch["attention_mask"].tolist(), blocks, strict=True)
    for row, is_token, block in rows:
        n_pads = len(row) - len(block) - 2
        assert row == [cls, *block, sep] + [pad] * n_pads
        assert is_token == [1] * (len(block) + 2) + [0] * n_pads
    special = torch.tensor(any_tokenizer.all_special_ids)
    masked = batch["labels"] != -100
    assert masked.sum() > 4_000
    assert not torch.isin(batch["labels"][masked], special).any()
    # A masked place holds [MASK] or an ordinary token.
    put = batch["input_ids"][masked]
    assert not torch.isin(put[put != mask], special).any()


def test_fifteen_per_cent_of_the_tokens_are_masked_as_whole_words(tokenizer, blocks):
    batch = CondenserDataCollator(tokenizer, max_length=256)(examples_of(blocks))
    tokens = tokenizer.convert_ids_to_tokens(list(range(500)))
    for labels, block in zip(batch["labels"], blocks, strict=True):
        masked = (labels[1 : len(block) + 1] != -100).tolist()
        # These texts have words of one token enough for the budget to be met.
        assert sum(masked) == max(1, round(0.15 * len(block)))
        for i in range(1, len(block)):
            assert not tokens[block[i]].startswith("##") or masked[i] == masked[i - 1]


def test_the_masks_of_english_text_are_those_of_earlier_versions(texts):
    tokenizer = AutoTokenizer.from_pretrained(STARTER_FOLDER)
    blocks = blocks_of(tokenizer, texts[:270])  # the others are of the Python version
    batch = CondenserDataCollator(tokenizer, max_length=64)(examples_of(blocks))
    assert [zlib.crc32(batch[name].numpy().tobytes()) for name in ("input_ids", "labels")] == [
        2009577586,
        1438837498,
    ]


def make_tokenizers(script: str) -> dict[str, PreTrainedTokenizerBase]:
    """WordPiece, Unigram and byte-level BPE of a script, and one that knows bytes and English."""
    texts = texts_of(script)[:12]
    word_pieces = tokenizers.bert_tokenizer(texts)
    model = word_pieces.backend_tokenizer.model
    model.max_input_chars_per_word = 10_000  # else a longer text without blanks is one [UNK]
    word_pieces.backend_tokenizer.model = model
    return {
        "WordPiece": word_pieces,
        "Unigram": tokenizers.sentencepiece_tokenizer(texts),
        "byte-level BPE": tokenizers.roberta_tokenizer(texts),
        "bytes": tokenizers.roberta_tokenizer(texts_of("English")),
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_share_that_is_asked_for_is_masked_in_every_script(script):
    texts = texts_of(script)[12:]
    for kind, tokenizer in make_tokenizers(script).items():
        ids, collator = blocks_of(tokenizer, texts), CondenserDataCollator(tokenizer)
        for length in (4, 16, 64, 128):
            parts = [row[i : i + length] for row in ids for i in range(0, len(row), length)]
            blocks = [part for part in parts if len(part) == length] or ids
            labels = collator(examples_of(blocks))["labels"].numpy()
            n_masked = (labels != -100).sum(axis=1)
            n_asked = sum(max(1, round(0.15 * len(block))) for block in blocks)
            assert n_masked.min() >= 1
            assert 2 / 3 < n_masked.sum() / n_asked <= 1, (kind, length)


@pytest.mark.parametrize("script", ["Thai", "kana", "Khmer", "Chinese"])
def test_scripts_without_blanks_have_words_of_up_to_three_tokens(script):
    for kind, tokenizer in make_tokenizers(script).items():
        ids = np.array(blocks_of(tokenizer, texts_of(script)[12:])[:1])
        words = WordStarts(tokenizer).number_words(ids, np.ones_like(ids, dtype=bool))
        lengths = np.bincount(words[0])
        assert lengths.min() >= 1 and 1 <= lengths.mean() < 3.5, kind
        # A character of several bytes is never cut, so a word of bytes may be longer.
        assert lengths.max() <= (3 if kind in ("WordPiece", "Unigram") else 6), kind
        if kind in ("byte-level BPE", "bytes"):
            for number in range(len(lengths)):
                assert "\ufffd" not in tokenizer.decode(ids[0][words[0] == number])


def test_eight_texts_in_a_row_of_which_nothing_can_be_masked_are_refused(tokenizer):
    unknown = [tokenizer.unk_token_id] * 5
    collator = CondenserDataCollator(tokenizer)
    for _ in range(2):
        for _ in range(7):  # small batches, such as the first ones of a worker
            collator(examples_of([unknown]))
        labels = collator(examples_of([unknown, [40, 41]]))["labels"]
        assert (labels != -100).sum(dim=1).tolist() == [0, 1]
    collator(examples_of([unknown]))
    with pytest.raises(ValueError, match="No token of a batch of 7 texts .* .UNK. .*not masked"):
        collator(examples_of([unknown] * 7))


def test_token_ids_of_another_vocabulary_are_refused(tokenizer):
    with pytest.raises(ValueError, match="input_ids are 0 to 500, but .* tokens 0 to 499"):
        CondenserDataCollator(tokenizer)([{"input_ids": [40, 500], "mask_key": 0}])


def test_an_over_long_block_is_cut_to_a_window_that_differs_between_keys(tokenizer):
    block = list(range(100, 149))
    batch = CondenserDataCollator(tokenizer, max_length=15)(examples_of([block] * 2000))
    assert batch["input_ids"].shape == (2000, 15) and batch["attention_mask"].all()
    restored = restore(batch)
    starts = restored[:, 1] - 100
    assert torch.equal(restored[:, 1:14], restored[:, 1:2] + torch.arange(13))
    counts = starts.bincount()
    assert len(counts) == 37  # the first window, the last, and all between
    assert counts.min() > 20 and counts.max() < 100  # 54 on average


def test_masks_depend_on_the_block_and_its_key_only(any_tokenizer, texts):
    collator = CondenserDataCollator(any_tokenizer, max_length=48)  # some blocks are cut
    blocks = blocks_of(any_tokenizer, texts)[:60]
    examples = examples_of(blocks)
    together = collator(examples)
    order = np.random.default_rng(0).permutation(60)
    shuffled = collator([examples[i] for i in order])
    alone = collator([{**examples[7], "input_ids": torch.tensor(blocks[7])}])
    for name, column in together.items():
        assert torch.equal(shuffled[name], column[order])
        assert torch.equal(alone[name][0], column[7, : alone[name].shape[1]])
    assert not same(together, collator(examples_of(blocks, first_key=1000)))
    # Texts that were tokenized with their special tokens, and padded, give the same batch.
    framed = any_tokenizer(texts[:60])["input_ids"]
    assert same(collator(examples_of(framed)), together)
    padded = any_tokenizer(texts[:60], padding=True)
    masks = [{"attention_mask": mask} for mask in padded["attention_mask"]]
    rows = zip(examples_of(padded["input_ids"]), masks, strict=True)
    assert same(collator([{**example, **mask} for example, mask in rows]), together)


def test_masks_depend_on_seed_epoch_and_block_not_on_workers(tokenizer, blocks):
    collator = CondenserDataCollator(tokenizer, max_length=256)
    rows = Dataset.from_dict({"input_ids": blocks[:96]})

    def two_epochs(seed: int = 1, **options: Any) -> list[list[Batch]]:
        dataset = KeyedBlocks(rows, seed=seed)
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


def test_examples_without_keys_are_masked_anew_in_each_batch_and_epoch_with_workers(tokenizer):
    examples = [{"input_ids": list(range(100, 150))}] * 32
    collator = CondenserDataCollator(tokenizer, max_length=64)
    loader = DataLoader(examples, batch_size=16, num_workers=2, collate_fn=collator)
    first, second = list(loader), list(loader)
    assert not any(same(a, b) for a, b in zip(first, second, strict=True))
    assert not same(*first)


def test_a_bag_holds_each_token_of_the_unmasked_block_once_and_no_special_one(tokenizer, blocks):
    unknown, sep = tokenizer.unk_token_id, tokenizer.sep_token_id
    blocks = [*blocks[:9], [50, unknown, 50, 51, sep], [unknown]]
    settings = {"max_length": 128, "mlm_probability": 0.9, "bag_of_words": True}
    batch = CondenserDataCollator(tokenizer, **settings)(examples_of(blocks))
    special = set(tokenizer.all_special_ids)
    bags = [sorted(row[row != -100].tolist()) for row in batch["bow_targets"]]
    assert bags == [sorted(set(ids) - special) for ids in blocks]
    assert bags[-2:] == [[50, 51], []]


def test_the_second_masking_is_independent_and_leaves_the_first_as_it_was(tokenizer, blocks):
    settings = {"max_length": 128, "mlm_probability": 0.3}
    examples = examples_of(blocks)
    once = CondenserDataCollator(tokenizer, **settings)(examples)
    twice = CondenserDataCollator(tokenizer, **settings, head_mlm_probability=0.5)(examples)
    assert all(torch.equal(twice[name], column) for name, column in once.items())
    first, second = (twice[name] != -100 for name in ("labels", "head_targets"))
    n_tokens = sum(map(len, blocks))
    assert second.sum().item() / n_tokens == pytest.approx(0.5, abs=0.03)
    # Of what the first masks, the second masks its own rate.
    assert second[first].float().mean().item() == pytest.approx(0.5, abs=0.03)
    whole = twice["head_input_ids"].where(~second, twice["head_targets"])
    assert torch.equal(whole, restore(once))


def test_a_packed_batch_holds_the_padded_one_and_where_its_labels_stand(any_tokenizer, texts):
    settings = {"max_length": 48, "head_mlm_probability": 0.5, "bag_of_words": True}
    examples = examples_of(blocks_of(any_tokenizer, texts[:12]))
    padded, packed = (
        CondenserDataCollator(any_tokenizer, **settings, packed=is_packed)(examples)
        for is_packed in (False, True)
    )
    found = unpack(packed)
    assert found.keys() == padded.keys()
    for name, column in found.items():
        is_token = padded["attention_mask"][:, : column.shape[1]] == 1
        assert torch.equal(column[is_token], padded[name][padded["attention_mask"] == 1]), name
    # By the padding token the Trainer counts what is no filler.
    n_tokens = (packed["input_ids"] != any_tokenizer.pad_token_id).sum()
    assert n_tokens == padded["attention_mask"].sum()
    for labels, index in (("labels", "masked_index"), ("head_targets", "head_masked_index")):
        is_masked = packed[labels][0] != -100
        assert is_masked[packed[index]].sum() == is_masked.sum()
        assert (len(packed[index]) + len(packed["cu_seq_lens_q"]) - 1) % 64 == 0
        starts = packed["cu_seq_lens_q"][:-1]
        assert not torch.isin(packed[index], starts).any()


def test_a_tokenizer_without_the_tokens_of_masking_is_refused(wordpiece_tokenizer):
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    for name, message in (("pad_token", "no padding token"), ("mask_token", "has no mask token")):
        setattr(tokenizer, name, None)
        with pytest.raises(ValueError, match=message):
            CondenserDataCollator(tokenizer)
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[SEP] $A [CLS]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    with pytest.raises(ValueError, match="needs the CLS token .2. there"):
        CondenserDataCollator(tokenizer)


def test_padding_without_an_attention_mask_is_refused(tokenizer):
    with pytest.raises(ValueError, match="end with the padding token .0., and there is no"):
        CondenserDataCollator(tokenizer)([{"input_ids": [2, 40, 41, 3, 0, 0]}])
