"""Blocks of token ids become masked batches, padded or packed.

The masks of a block depend on the block and its `mask_key` only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from .counter_random import random_keys, uniforms
from .masking import (
    HEAD_STREAM,
    IGNORE_INDEX,
    WINDOW_STREAM,
    choose_words,
    find_word_starts,
    masking_budget,
    replace_tokens,
)
from .packed_batches import pack

PAD_MULTIPLE = 8


class CondenserDataCollator:
    """Adds CLS and SEP, cuts blocks that are too long, masks whole words, and pads or packs.

    Args:
        tokenizer: WordPiece, byte-level BPE or SentencePiece, with mask, padding and CLS tokens.
        max_length: longest sequence in tokens, with the special ones. A longer block is cut to a
            random window, another one each time it is seen, as in the reference.
        mlm_probability: share of a block's tokens to mask; None to mask nothing.
        head_mlm_probability: share of a block's tokens to mask a second time, independently, for a
            head that reads them instead of the early layer (`CondenserConfig`).
        bag_of_words: add `bow_targets`, the tokens that the CLS vector is to predict.
        seed: seeds the masks of examples without a `mask_key`.
        packed: put blocks end to end instead of padding them (`modeling_condenser.packing`).

    Raises:
        ValueError: the tokenizer lacks a token that masking needs, or an argument is out of range.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int = 512,
        mlm_probability: float | None = 0.15,
        head_mlm_probability: float | None = None,
        bag_of_words: bool = False,
        seed: int = 0,
        packed: bool = False,
    ):
        if tokenizer.mask_token_id is None:
            raise ValueError(
                f"{type(tokenizer).__name__} has no mask token: choose the tokenizer of a masked "
                "language model, or add one with tokenizer.add_special_tokens({'mask_token': "
                "'[MASK]'}) and resize the model."
            )
        rates = {"mlm_probability": mlm_probability, "head_mlm_probability": head_mlm_probability}
        for name, rate in rates.items():
            if rate is not None and not 0.0 < rate < 1.0:
                raise ValueError(f"{name} is {rate}, but must lie between 0 and 1.")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.mlm_probability = mlm_probability
        self.head_mlm_probability = head_mlm_probability
        self.bag_of_words = bag_of_words
        self.seed = seed
        self.packed = packed
        # Tokenizers look these up anew each time they are asked.
        self._mask_token_id, self._pad_token_id = tokenizer.mask_token_id, tokenizer.pad_token_id
        self.word_starts = find_word_starts(tokenizer)
        self._prefix, self._suffix = special_frame(tokenizer)
        self.n_special = len(self._prefix) + len(self._suffix)
        if max_length <= self.n_special:
            raise ValueError(f"max_length is {max_length}, which leaves no room for text.")
        self._ordinary_ids = np.flatnonzero(~self.word_starts.special)
        self._generator: np.random.Generator | None = None

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make a batch.

        Args:
            examples: each with `input_ids`, token ids with or without the special tokens around
                them but without padding, and where possible `mask_key`, an integer that decides its
                masks. Without one, keys are drawn from a generator seeded with `seed` and the
                worker's seed: masks then depend on the order of the calls and on the workers.

        Returns:
            `input_ids`, `attention_mask` and `labels`, each (B, T) int64, T a multiple of 8 where
            `max_length` allows it; `labels` is the original token where masked, otherwise -100.
            With `head_mlm_probability` also `head_input_ids` and `head_targets`, the same for the
            second masking. With `bag_of_words` also `bow_targets`: each distinct token of the
            unmasked block at its first position, otherwise and for special tokens -100.
            If `packed`, a packed batch of these (`packed_batches.pack`).
        """
        blocks, keys = self.read(examples)
        ids, is_text, is_token = self.frame(blocks)
        masked, labels = self._mask(ids, is_text, keys, self.mlm_probability)
        columns = {"input_ids": masked, "attention_mask": is_token, "labels": labels}
        if self.head_mlm_probability is not None:
            head_keys = random_keys(keys, HEAD_STREAM)
            masked, labels = self._mask(ids, is_text, head_keys, self.head_mlm_probability)
            columns |= {"head_input_ids": masked, "head_targets": labels}
        if self.bag_of_words:
            columns["bow_targets"] = self._bags_of_words(ids, is_text)
        batch = {name: torch.from_numpy(values).long() for name, values in columns.items()}
        return pack(batch, pad_token_id=self._pad_token_id) if self.packed else batch

    def _mask(
        self, ids: np.ndarray, is_text: np.ndarray, keys: np.ndarray, probability: float | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masked ids and labels, each (B, T)."""
        if probability is None:
            return ids, np.full_like(ids, IGNORE_INDEX)
        words = self.word_starts.number_words(ids, is_text)
        chosen = choose_words(words, masking_budget(is_text.sum(axis=1), probability), keys)
        masked = replace_tokens(
            ids,
            chosen,
            keys,
            mask_token_id=self._mask_token_id,
            ordinary_ids=self._ordinary_ids,
        )
        return masked, np.where(chosen, ids, IGNORE_INDEX)

    def _bags_of_words(self, ids: np.ndarray, is_text: np.ndarray) -> np.ndarray:
        """Each distinct token of a block, (B, T), at its first position, otherwise -100."""
        special = self.word_starts.special
        places = np.flatnonzero(is_text & ~special[ids])
        tokens = ids.ravel()[places]
        _, first = np.unique(places // ids.shape[1] * len(special) + tokens, return_index=True)
        labels = np.full(ids.shape, IGNORE_INDEX, dtype=np.int64)
        labels.ravel()[places[first]] = tokens[first]
        return labels

    def read(self, examples: Sequence[Mapping[str, Any]]) -> tuple[list[np.ndarray], np.ndarray]:
        """The examples' blocks, cut to fit, and their keys, (B,)."""
        if all("mask_key" in example for example in examples):
            keys = np.array([example["mask_key"] for example in examples], dtype=np.int64)
        else:
            keys = self._fresh_keys(len(examples))
        blocks = [self._bare(np.asarray(example["input_ids"])) for example in examples]
        return self._windows(blocks, keys), keys

    def _bare(self, block: np.ndarray) -> np.ndarray:
        """A block without the special tokens that tokenizers add around a text."""
        n_prefix, end = len(self._prefix), len(block) - len(self._suffix)
        is_framed = (
            end >= n_prefix
            and block[0] == self._prefix[0]
            and np.array_equal(block[:n_prefix], self._prefix)
            and np.array_equal(block[end:], self._suffix)
        )
        return block[n_prefix:end] if is_framed else block

    def _fresh_keys(self, n: int) -> np.ndarray:
        if self._generator is None:
            worker = torch.utils.data.get_worker_info()
            # A worker lives for an epoch, and the loader seeds it anew for each.
            self._generator = np.random.default_rng([self.seed, worker.seed if worker else 0])
        return self._generator.integers(0, 2**63 - 1, size=n)

    def _windows(self, blocks: list[np.ndarray], keys: np.ndarray) -> list[np.ndarray]:
        """Cut blocks that are too long to a random window that fits beside the special tokens."""
        room = self.max_length - self.n_special
        excess = np.maximum(_lengths(blocks) - room, 0)
        where = uniforms(keys, 1, stream=WINDOW_STREAM)[:, 0]
        starts = (where * (excess + 1)).astype(np.int64)
        return [block[i : i + room] for block, i in zip(blocks, starts, strict=True)]

    def frame(self, blocks: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Blocks between special tokens: ids, whether text, and whether a token; each (B, T)."""
        lengths = _lengths(blocks)
        n_prefix, n_suffix = len(self._prefix), len(self._suffix)
        longest = int(lengths.max()) + self.n_special
        width = min(-(-longest // PAD_MULTIPLE) * PAD_MULTIPLE, max(longest, self.max_length))

        position = np.arange(width)[None, :]
        end = (n_prefix + lengths)[:, None]
        is_text = position < end
        is_text[:, :n_prefix] = False
        is_token = position < end + n_suffix
        ids = np.full((len(blocks), width), self._pad_token_id, dtype=np.int64)
        ids[:, :n_prefix] = self._prefix
        ids[is_text] = np.concatenate(blocks)
        ids[np.arange(len(blocks))[:, None], end + np.arange(n_suffix)] = self._suffix
        return ids, is_text, is_token


def _lengths(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """(B,) tokens of each block."""
    return np.array(list(map(len, blocks)))


def special_frame(tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, np.ndarray]:
    """The ids, int64, of the special tokens that a tokenizer puts before and after a single text.

    Raises:
        ValueError: the first of them is not CLS, or the tokenizer has no padding token.
    """
    if tokenizer.pad_token_id is None:
        raise ValueError(f"{type(tokenizer).__name__} has no padding token: set pad_token.")
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a", add_special_tokens=True)["input_ids"]
    n_prefix = next(
        (i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), len(framed)
    )
    prefix, suffix = framed[:n_prefix], framed[n_prefix + len(bare) :]
    cls_id = tokenizer.cls_token_id
    if not prefix or (cls_id is not None and prefix[0] != cls_id):
        raise ValueError(
            f"{type(tokenizer).__name__} puts {prefix} before a text, but a Condenser reads the "
            f"dense vector at position 0 and needs the CLS token ({cls_id}) there."
        )
    return np.array(prefix, dtype=np.int64), np.array(suffix, dtype=np.int64)
