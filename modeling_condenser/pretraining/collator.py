"""Make masked batches from blocks of token ids, of a fixed size or within a token budget.

The masks of a block depend on the block and its `mask_key` only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from modeling_condenser.losses import IGNORE_INDEX
from modeling_condenser.packing import BatchShape, pack

from .counter_random import random_keys, uniforms
from .masking import (
    HEAD_STREAM,
    WINDOW_STREAM,
    choose_words,
    masking_budget,
    replace_tokens,
)
from .word_starts import WordStarts

PAD_MULTIPLE = 8

_MOST_UNMASKED = 8  # texts in a row; a small batch may have no mask


@dataclass
class CondenserDataCollator:
    """Adds CLS and SEP, cuts blocks that are too long, masks words, and pads or packs.

    Args:
        tokenizer: WordPiece, byte-level BPE or SentencePiece, with mask, padding and CLS tokens.
        max_length: longest sequence in tokens, with the special ones. A longer block is cut to a
            random window, a new one in each epoch, as in the reference.
        mlm_probability: share of a block's tokens to mask; None to mask nothing.
        head_mlm_probability: share of a block's tokens to mask a second time, independently, for a
            head that reads them instead of the early layer (`CondenserConfig`).
        bag_of_words: add `bow_targets`, the tokens that the dense vector must predict.
        packed: make packed batches (`packing.py`), for a model after `use_packing`.

    Raises:
        ValueError: the tokenizer lacks a token that masking needs, or an argument is out of range.
    """

    tokenizer: PreTrainedTokenizerBase
    _: KW_ONLY
    max_length: int = 512
    mlm_probability: float | None = 0.15
    head_mlm_probability: float | None = None
    bag_of_words: bool = False
    packed: bool = False

    def __post_init__(self) -> None:
        tokenizer = self.tokenizer
        if tokenizer.mask_token_id is None:
            raise ValueError(
                f"{type(tokenizer).__name__} has no mask token: choose the tokenizer of a masked "
                "language model, or add one and resize the model."
            )
        if self.mlm_probability is not None and not 0.0 < self.mlm_probability < 1.0:
            raise ValueError(f"mlm_probability is {self.mlm_probability}, expected 0 to 1.")
        # Kept here, because a tokenizer looks them up each time.
        self.mask_token_id, self.pad_token_id = tokenizer.mask_token_id, tokenizer.pad_token_id
        self.word_starts = WordStarts(tokenizer)
        self._prefix, self._suffix = special_frame(tokenizer)
        self._text_length = text_length(tokenizer, self.max_length)
        self._ordinary_ids = np.flatnonzero(~self.word_starts.special)
        self._n_unmasked = 0  # texts in a row

    @property
    def masked_shares(self) -> dict[str, float]:
        """Columns of labels -> the share of tokens that have one at most."""
        rates = {"labels": self.mlm_probability, "head_targets": self.head_mlm_probability}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def __call__(
        self, examples: Sequence[Mapping[str, Any]], shape: BatchShape | None = None
    ) -> dict[str, Any]:
        """Make a batch.

        Args:
            examples: each with `input_ids`, token ids with or without special tokens around them;
                `attention_mask`, if they are padded; and perhaps `mask_key`, an integer that
                decides its masks. Without one, torch's generator draws it.
            shape: sizes that a packed batch is filled to.

        Returns:
            `input_ids`, `attention_mask` and `labels`, each (B, T) int64, T a multiple of 8 where
            `max_length` allows it; `labels` is the original token where masked, otherwise -100.
            With `head_mlm_probability` also `head_input_ids` and `head_targets`, the same for the
            second masking. With `bag_of_words` also `bow_targets`: each distinct ordinary token of
            the unmasked block at its first position, otherwise -100. A packed batch has the fields
            that `packing.py` describes.

        Raises:
            ValueError: ids are not of this tokenizer, or no token of this and the batches before it
                can be masked, together eight texts or more.
        """
        if all("mask_key" in example for example in examples):
            keys = np.array([example["mask_key"] for example in examples], dtype=np.int64)
        else:
            keys = torch.randint(2**62, (len(examples),)).numpy()
        blocks = [self._strip(example) for example in examples]
        ids, is_text, is_token = self._pad(self._cut(blocks, keys))
        masked, labels = self._mask(ids, is_text, keys, self.mlm_probability)
        columns = {"input_ids": masked, "attention_mask": is_token, "labels": labels}
        if self.head_mlm_probability is not None:
            head_keys = random_keys(keys, HEAD_STREAM)
            masked, labels = self._mask(ids, is_text, head_keys, self.head_mlm_probability)
            columns |= {"head_input_ids": masked, "head_targets": labels}
        if self.bag_of_words:
            columns["bow_targets"] = self._bags_of_words(ids, is_text)
        batch = {name: torch.from_numpy(values).long() for name, values in columns.items()}
        return pack(batch, padding=self.pad_token_id, shape=shape) if self.packed else batch

    def _strip(self, example: Mapping[str, Any]) -> np.ndarray:
        """The token ids of an example, without padding and the special tokens around its text."""
        if "input_ids" not in example:
            raise ValueError("An example has no input_ids: tokenize its text.")
        # A block that was made of text has a `mask_key`; its text may name the padding token.
        padding = None if "mask_key" in example else self.pad_token_id
        frame, mask = (self._prefix, self._suffix), example.get("attention_mask")
        return strip_special(example["input_ids"], mask, frame=frame, padding=padding)

    def _cut(self, blocks: list[np.ndarray], keys: np.ndarray) -> list[np.ndarray]:
        """Cut blocks that are longer than fits to a random window."""
        excess = np.array([max(len(block) - self._text_length, 0) for block in blocks])
        draws = uniforms(keys, 1, stream=WINDOW_STREAM)[:, 0]
        starts = (draws * (excess + 1)).astype(np.int64)
        pairs = zip(blocks, starts, strict=True)
        return [block[start : start + self._text_length] for block, start in pairs]

    def _pad(self, blocks: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Add special tokens and padding: ids, is it text, is it a token; each (B, T)."""
        rows = [np.concatenate([self._prefix, block, self._suffix]) for block in blocks]
        lengths = np.array([len(row) for row in rows])[:, None]  # (B, 1)
        width = min(-(-int(lengths.max()) // PAD_MULTIPLE) * PAD_MULTIPLE, self.max_length)
        position = np.arange(width)
        is_token = position < lengths
        is_text = (position >= len(self._prefix)) & (position < lengths - len(self._suffix))
        ids = np.full(is_token.shape, self.pad_token_id, dtype=np.int64)
        ids[is_token] = np.concatenate(rows)
        n_known = len(self.word_starts.marks)
        if not 0 <= ids.min() <= ids.max() < n_known:
            raise ValueError(
                f"input_ids are {ids.min()} to {ids.max()}, but the tokenizer has the tokens 0 to "
                f"{n_known - 1}: give the tokenizer that made them, or the text itself."
            )
        return ids, is_text, is_token

    def _mask(
        self, ids: np.ndarray, is_text: np.ndarray, keys: np.ndarray, probability: float | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masked ids and labels, each (B, T)."""
        if probability is None:
            return ids, np.full_like(ids, IGNORE_INDEX)
        words = self.word_starts.number_words(ids, is_text)
        budget = masking_budget(is_text.sum(axis=1), probability)
        chosen = choose_words(words, budget, keys)
        self._n_unmasked = 0 if chosen.any() else self._n_unmasked + len(ids)
        if self._n_unmasked >= _MOST_UNMASKED:
            raise ValueError(
                f"No token of a batch of {len(ids)} texts can be masked, such as in "
                f"{self.tokenizer.decode(ids[0])[:200]!r}: leave out empty texts, and use a "
                "tokenizer whose vocabulary has this script (unknown tokens are not masked)."
            )
        special = {"mask_token_id": self.mask_token_id, "ordinary_ids": self._ordinary_ids}
        return replace_tokens(ids, chosen, keys, **special), np.where(chosen, ids, IGNORE_INDEX)

    def _bags_of_words(self, ids: np.ndarray, is_text: np.ndarray) -> np.ndarray:
        """Each distinct token of a block, (B, T), at its first position, otherwise -100."""
        special = self.word_starts.special
        places = np.flatnonzero(is_text & ~special[ids])
        tokens = ids.ravel()[places]
        _, first = np.unique(places // ids.shape[1] * len(special) + tokens, return_index=True)
        labels = np.full(ids.shape, IGNORE_INDEX, dtype=np.int64)
        labels.ravel()[places[first]] = tokens[first]
        return labels


def special_frame(tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, np.ndarray]:
    """The ids, int64, of the special tokens that a tokenizer puts before and after a text."""
    name = type(tokenizer).__name__
    if tokenizer.pad_token_id is None:
        raise ValueError(f"{name} has no padding token: set pad_token.")
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, is_special = np.array(encoded["input_ids"]), encoded["special_tokens_mask"]
    start = is_special.index(0)
    prefix, suffix = ids[:start], ids[start + is_special.count(0) :]
    cls_id = tokenizer.cls_token_id
    if start == 0 or (cls_id is not None and prefix[0] != cls_id):
        raise ValueError(
            f"{name} puts {prefix.tolist()} before a text, but a Condenser reads the dense vector "
            f"at position 0 and needs the CLS token ({cls_id}) there."
        )
    return prefix, suffix


def strip_special(
    ids: Any, mask: Any, *, frame: tuple[np.ndarray, np.ndarray], padding: int | None
) -> np.ndarray:
    """Token ids without padding and the special tokens (`special_frame`) around their text.

    Raises:
        ValueError: there is padding, but no `mask` that says where.
    """
    ids = np.asarray(ids)
    if mask is not None:
        ids = ids[np.asarray(mask, dtype=bool)]
    prefix, suffix = frame
    start, end = len(prefix), len(ids) - len(suffix)
    if np.array_equal(ids[:start], prefix) and np.array_equal(ids[end:], suffix):
        ids = ids[start:end]
    ends = (*ids[:1], *ids[-1:])
    if mask is None and padding is not None and padding in ends:
        raise ValueError(
            f"input_ids begin or end with the padding token ({padding}), and there is no "
            "attention_mask: keep this column of the tokenizer."
        )
    return ids


def text_length(
    tokenizer: PreTrainedTokenizerBase, length: int, *, name: str = "max_length"
) -> int:
    """How many tokens of text fit beside the special tokens."""
    room = length - sum(map(len, special_frame(tokenizer)))
    if room <= 0:
        raise ValueError(f"{name} is {length}, which leaves no room for text.")
    return room
