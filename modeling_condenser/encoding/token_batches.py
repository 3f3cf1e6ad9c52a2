"""Tokenize texts and group them by length into batches within a budget of tokens.

Texts of one collection differ in length by a factor of a hundred, so batches of a fixed number of
texts would be mostly padding. Batches depend on the texts alone, so vectors are reproducible.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from modeling_condenser.packing import PACK_MULTIPLE, lay_end_to_end

_TEXTS_A_CALL = 512  # a tokenizer call keeps offsets and strings of all tokens in memory

Tokens = Mapping[str, Sequence[np.ndarray]]
"""`input_ids` and possibly `token_type_ids` -> (tokens,) int32 of each text."""


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    max_length: int,
    token_type_ids: bool = False,
) -> Tokens:
    """Tokenize texts without padding; `max_length` includes the special tokens."""
    tokens: dict[str, list[np.ndarray]] = {"input_ids": []}
    if token_type_ids:
        tokens["token_type_ids"] = []
    for first in range(0, len(texts), _TEXTS_A_CALL):
        encoded = tokenizer(
            list(texts[first : first + _TEXTS_A_CALL]),
            truncation=True,
            max_length=max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=token_type_ids,
        )
        for name, column in tokens.items():
            column += [np.array(ids, dtype=np.int32) for ids in encoded[name]]
    return tokens


def make_batches(
    texts: Tokens, *, tokenizer: PreTrainedTokenizerBase, token_budget: int, packed: bool = False
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Make the batches of `plan_batches`.

    Yields:
        The rows of a batch, (B,) int64, and the model's inputs on the CPU. Padded, these are
        `attention_mask` and the columns of the texts, (B, T) int64. Packed, they are those of
        `lay_end_to_end`, where a filler up to `PACK_MULTIPLE` tokens counts as one more text.
    """
    lengths = np.array([len(ids) for ids in texts["input_ids"]], dtype=np.int64)
    fill = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    how: Any = {"batch_first": True, "padding_side": tokenizer.padding_side}
    for rows in plan_batches(lengths, token_budget=token_budget, packed=packed):
        columns = {name: [torch.from_numpy(ids[i]) for i in rows] for name, ids in texts.items()}
        if packed:
            joined = {name: (torch.cat(column), fill[name]) for name, column in columns.items()}
            yield rows, lay_end_to_end(lengths[rows], joined)
            continue
        mask = [torch.ones_like(ids) for ids in columns["input_ids"]]
        batch = {"attention_mask": pad_sequence(mask, **how).long()}  # (B, T), as all columns
        for name, column in columns.items():
            batch[name] = pad_sequence(column, padding_value=fill[name], **how).long()
        yield rows, batch


def plan_batches(
    lengths: np.ndarray, *, token_budget: int, packed: bool = False
) -> list[np.ndarray]:
    """Group texts of similar length into batches.

    Args:
        lengths: tokens of each of N texts, (N,) integers.
        token_budget: the most tokens in a batch, counting padding, or the filler of a packed batch.
            A longer text gets a batch of its own.
        packed: whether the texts of a batch stand in one row.

    Returns:
        The rows of each batch, (B,) int64, the longest texts first, so that a batch that does not
        fit into memory fails at the start.
    """
    order = np.argsort(-lengths, kind="stable")
    room = token_budget - token_budget % PACK_MULTIPLE or token_budget
    ends = np.cumsum(lengths[order])
    batches, first = [], 0
    while first < len(order):
        longest = int(lengths[order[first]])
        if packed:
            last = int(np.searchsorted(ends, ends[first] - longest + room, side="right"))
        else:
            last = first + token_budget // max(longest, 1)
        last = max(last, first + 1)
        batches.append(order[first:last])
        first = last
    return batches
