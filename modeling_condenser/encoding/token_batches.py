"""Tokenize texts and group them by length into batches within a budget of tokens.

Texts of one collection differ in length by a factor of a hundred, so batches of a fixed number of
texts in their given order would be mostly padding. Here texts are sorted by their number of tokens,
and a batch takes as many neighbours as fit into the budget. Batches depend on the texts alone, so
the same texts get the same bits when they are encoded again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from modeling_condenser.pretraining.packed_batches import PACK_MULTIPLE, lay_end_to_end

LENGTH_MULTIPLE = 8  # rounds lengths up where every new batch shape is expensive

# A tokenizer call keeps offsets and strings of all tokens in memory, including truncated ones.
_CHARACTERS_A_CALL = 1_000_000


@dataclass(frozen=True)
class TokenizedTexts:
    """The tokens of N texts, concatenated.

    Attributes:
        ids: (tokens,) int32.
        starts: (N + 1,) int64, the offset of each text, then the number of tokens.
        type_ids: (tokens,) int32 segment ids, or None.
    """

    ids: np.ndarray
    starts: np.ndarray
    type_ids: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, (N,) int64."""
        return np.diff(self.starts)

    def tokens_of(self, rows: np.ndarray) -> np.ndarray:
        """The offsets of all tokens of some texts, (B,), text after text."""
        lengths = self.lengths[rows]
        place_in_text = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.repeat(self.starts[rows], lengths) + place_in_text


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    max_length: int,
    token_type_ids: bool = False,
) -> TokenizedTexts:
    """Tokenize N texts without padding.

    Args:
        tokenizer: adds its special tokens.
        texts: N texts.
        max_length: tokens to keep of each text, including special tokens.
        token_type_ids: whether to keep segment ids.
    """
    names = ["input_ids", "token_type_ids"] if token_type_ids else ["input_ids"]
    parts: dict[str, list[np.ndarray]] = {name: [np.empty(0, np.int32)] for name in names}
    lengths = [0]
    for some in _by_characters(texts):
        encoded = tokenizer(
            some,
            truncation=True,
            max_length=max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=token_type_ids,
        )
        lengths.extend(map(len, encoded["input_ids"]))
        for name in names:
            parts[name].append(np.fromiter(chain.from_iterable(encoded[name]), np.int32))
    columns = {name: np.concatenate(part) for name, part in parts.items()}
    starts = np.cumsum(lengths, dtype=np.int64)
    return TokenizedTexts(columns["input_ids"], starts, columns.get("token_type_ids"))


def _by_characters(texts: Sequence[str]) -> Iterator[list[str]]:
    """Split texts into consecutive parts of about `_CHARACTERS_A_CALL` characters."""
    some: list[str] = []
    characters = 0
    for text in texts:
        some.append(text)
        characters += len(text) + 1
        if characters >= _CHARACTERS_A_CALL:
            yield some
            some, characters = [], 0
    if some:
        yield some


def padded_batches(
    texts: TokenizedTexts,
    *,
    tokenizer: PreTrainedTokenizerBase,
    token_budget: int,
    max_length: int,
    multiple: int = 1,
) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
    """Make padded batches of all texts.

    Args:
        texts: N texts.
        tokenizer: defines the padding token and the padding side.
        token_budget: see `plan_batches`.
        max_length: no text is padded beyond this length.
        multiple: lengths are rounded up to a multiple of this. If it is above 1, the number of rows
            is rounded up as well, to a power of two, by repeating rows.

    Yields:
        The rows of a batch, (B,) int64, and its `pad_batch`, with repeated rows at the end.
    """
    for rows in plan_batches(texts.lengths, token_budget=token_budget, multiple=multiple):
        length = min(_round_up(int(texts.lengths[rows].max()), multiple), max_length)
        filled = rows
        if multiple > 1:
            power_of_two = 1 << (len(rows) - 1).bit_length()
            filled = np.resize(rows, max(len(rows), min(power_of_two, token_budget // length)))
        yield rows, pad_batch(texts, filled, tokenizer=tokenizer, length=length)


def plan_batches(lengths: np.ndarray, *, token_budget: int, multiple: int = 1) -> list[np.ndarray]:
    """Group texts of similar length into padded batches.

    Args:
        lengths: tokens of each of N texts, (N,) integers.
        token_budget: the most tokens in a batch, counting padding. A single text that is longer
            gets a batch of its own.
        multiple: the longest text's length is rounded up to a multiple of this.

    Returns:
        The rows of each batch, (B,) int64. The longest texts come first, so that a batch that does
        not fit into memory fails at the start; equal lengths keep their order.

    Raises:
        ValueError: the budget is below 1.
    """
    order = _longest_first(lengths, token_budget)
    batches, first = [], 0
    while first < len(order):
        longest = _round_up(max(int(lengths[order[first]]), 1), multiple)
        last = first + max(token_budget // longest, 1)
        batches.append(order[first:last])
        first = last
    return batches


def pad_batch(
    texts: TokenizedTexts,
    rows: np.ndarray,
    *,
    tokenizer: PreTrainedTokenizerBase,
    length: int = 0,
) -> dict[str, torch.Tensor]:
    """Make a padded batch.

    Args:
        texts: N texts.
        rows: (B,) int64, which of them.
        tokenizer: defines the padding token and the padding side.
        length: pad to this length if it exceeds the longest text.

    Returns:
        `input_ids`, `attention_mask` and, if the texts have them, `token_type_ids`, each (B, T)
        int64 on the CPU.
    """
    lengths = texts.lengths[rows]  # (B,)
    longest = max(int(lengths.max()), length)
    places = np.arange(longest)
    if tokenizer.padding_side == "left":
        mask = places >= longest - lengths[:, None]  # (B, T)
    else:
        mask = places < lengths[:, None]  # (B, T)

    def fill(tokens: np.ndarray, padding: int) -> np.ndarray:
        filled = np.full(mask.shape, padding, dtype=np.int64)  # (B, T)
        filled[mask] = tokens
        return filled

    tokens = texts.tokens_of(rows)
    batch = {
        "input_ids": fill(texts.ids[tokens], tokenizer.pad_token_id),
        "attention_mask": mask.astype(np.int64),
    }
    if texts.type_ids is not None:
        batch["token_type_ids"] = fill(texts.type_ids[tokens], tokenizer.pad_token_type_id)
    return {name: torch.from_numpy(column) for name, column in batch.items()}


def packed_batches(
    texts: TokenizedTexts, *, tokenizer: PreTrainedTokenizerBase, token_budget: int
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Make batches without padding: the texts of a batch are concatenated in one row.

    Args:
        texts: N texts.
        tokenizer: defines the token of the filler, which rounds the row up to `PACK_MULTIPLE`.
        token_budget: see `plan_packed_batches`.

    Yields:
        The rows of a batch, (B,) int64, and the model's inputs from `lay_end_to_end`:
        `input_ids`, `position_ids` and, if the texts have them, `token_type_ids`, each (1, T)
        int64, and the boundaries of the texts, all on the CPU. A filler counts as one more text.
    """
    for rows in plan_packed_batches(texts.lengths, token_budget=token_budget):
        tokens = texts.tokens_of(rows)
        columns = {"input_ids": (texts.ids[tokens], tokenizer.pad_token_id)}
        if texts.type_ids is not None:
            columns["token_type_ids"] = (texts.type_ids[tokens], tokenizer.pad_token_type_id)
        yield rows, lay_end_to_end(texts.lengths[rows], columns)


def plan_packed_batches(lengths: np.ndarray, *, token_budget: int) -> list[np.ndarray]:
    """Group texts of similar length into packed batches.

    Args:
        lengths: tokens of each of N texts, (N,) integers.
        token_budget: the most tokens in a batch, counting the filler unless the budget is below
            `PACK_MULTIPLE`. A single text that is longer gets a batch of its own.

    Returns:
        The rows of each batch, (B,) int64, in the order of `plan_batches`.

    Raises:
        ValueError: the budget is below 1.
    """
    order = _longest_first(lengths, token_budget)
    room = token_budget - token_budget % PACK_MULTIPLE or token_budget
    ends = np.cumsum(lengths[order])
    batches, first, before = [], 0, 0
    while first < len(order):
        last = max(int(np.searchsorted(ends, before + room, side="right")), first + 1)
        batches.append(order[first:last])
        first, before = last, int(ends[last - 1])
    return batches


def _longest_first(lengths: np.ndarray, token_budget: int) -> np.ndarray:
    if token_budget < 1:
        raise ValueError(f"token_budget is {token_budget}, expected at least 1, e.g. 4096.")
    return np.argsort(-lengths, kind="stable")


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
