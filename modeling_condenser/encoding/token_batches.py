"""Tokenize texts and group them by length into batches within a budget of tokens.

Texts of one collection differ in length by a factor of a hundred, so batches of a fixed number of
texts would be mostly padding. Batches depend on the texts alone, so vectors are reproducible.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from modeling_condenser.pretraining.collator import PACK_MULTIPLE, lay_end_to_end

_TEXTS_A_CALL = 512  # a tokenizer call keeps offsets and strings of all tokens in memory


@dataclass(frozen=True)
class TokenizedTexts:
    """The tokens of N texts, concatenated."""

    ids: np.ndarray  # (tokens,) int32
    starts: np.ndarray  # (N + 1,) int64, the offset of each text, then the number of tokens
    type_ids: np.ndarray | None = None  # (tokens,) int32 segment ids

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def columns(
        self, rows: np.ndarray, tokenizer: PreTrainedTokenizerBase
    ) -> dict[str, tuple[np.ndarray, int]]:
        """The model's inputs: name -> (tokens,) of some texts, text after text, and padding."""
        lengths = self.lengths[rows]
        place_in_text = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        tokens = np.repeat(self.starts[rows], lengths) + place_in_text
        columns = {"input_ids": (self.ids[tokens], tokenizer.pad_token_id)}
        if self.type_ids is not None:
            columns["token_type_ids"] = (self.type_ids[tokens], tokenizer.pad_token_type_id)
        return columns


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    max_length: int,
    token_type_ids: bool = False,
) -> TokenizedTexts:
    """Tokenize N texts without padding; `max_length` includes the special tokens."""
    names = ["input_ids", "token_type_ids"] if token_type_ids else ["input_ids"]
    parts: dict[str, list[np.ndarray]] = {name: [np.empty(0, np.int32)] for name in names}
    lengths = [0]
    for first in range(0, len(texts), _TEXTS_A_CALL):
        encoded = tokenizer(
            list(texts[first : first + _TEXTS_A_CALL]),
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


def padded_batches(
    texts: TokenizedTexts,
    *,
    tokenizer: PreTrainedTokenizerBase,
    token_budget: int,
    max_length: int,
    multiple: int = 1,
) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
    """Make padded batches; their length is a multiple of `multiple`, but at most `max_length`.

    Yields:
        The rows of a batch, (B,) int64, and its `input_ids`, `attention_mask` and, if the texts
        have them, `token_type_ids`, each (B, T) int64 on the CPU.
    """
    for rows in plan_batches(texts.lengths, token_budget=token_budget, multiple=multiple):
        lengths = texts.lengths[rows]
        longest = min(_round_up(int(lengths.max()), multiple), max_length)
        places = np.arange(longest)
        mask = places < lengths[:, None]  # (B, T)
        if tokenizer.padding_side == "left":
            mask = mask[:, ::-1]
        batch = {"attention_mask": torch.from_numpy(mask.astype(np.int64))}
        for name, (tokens, padding) in texts.columns(rows, tokenizer).items():
            filled = np.full(mask.shape, padding, dtype=np.int64)  # (B, T)
            filled[mask] = tokens
            batch[name] = torch.from_numpy(filled)
        yield rows, batch


def packed_batches(
    texts: TokenizedTexts, *, tokenizer: PreTrainedTokenizerBase, token_budget: int
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Make batches without padding: the texts of a batch are concatenated in one row.

    Yields:
        The rows of a batch, (B,) int64, and the model's inputs from `lay_end_to_end`. A filler,
        which rounds the row up to `PACK_MULTIPLE` tokens, counts as one more text.
    """
    plan = plan_batches(
        texts.lengths, token_budget=token_budget, multiple=PACK_MULTIPLE, packed=True
    )
    for rows in plan:
        yield rows, lay_end_to_end(texts.lengths[rows], texts.columns(rows, tokenizer))


def plan_batches(
    lengths: np.ndarray, *, token_budget: int, multiple: int = 1, packed: bool = False
) -> list[np.ndarray]:
    """Group texts of similar length into batches.

    Args:
        lengths: tokens of each of N texts, (N,) integers.
        token_budget: the most tokens in a batch, counting padding or the filler. A longer text gets
            a batch of its own.
        multiple: the length of the row or rows is rounded up to a multiple of this.
        packed: whether the texts of a batch stand in one row.

    Returns:
        The rows of each batch, (B,) int64, the longest texts first, so that a batch that does not
        fit into memory fails at the start.
    """
    order = np.argsort(-lengths, kind="stable")
    room = token_budget - token_budget % multiple or token_budget
    ends = np.cumsum(lengths[order])
    batches, first = [], 0
    while first < len(order):
        longest = int(lengths[order[first]])
        if packed:
            last = int(np.searchsorted(ends, ends[first] - longest + room, side="right"))
        else:
            last = first + token_budget // max(_round_up(longest, multiple), 1)
        last = max(last, first + 1)
        batches.append(order[first:last])
        first = last
    return batches


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
