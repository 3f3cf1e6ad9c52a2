"""Batches without padding: texts end to end in one row, as many as a budget of tokens allows.

A batch's texts are of like length, the longest first: in attention, neighbours of equal length are
one call, and the others are padded for that call alone, if at all.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from modeling_condenser.pretraining.packed_batches import PACK_MULTIPLE, lay_end_to_end

from .token_batches import TokenizedTexts, longest_first


def packed_batches(
    texts: TokenizedTexts, *, tokenizer: PreTrainedTokenizerBase, token_budget: int
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Make packed batches of all texts.

    Args:
        texts: N texts.
        tokenizer: says what the filler is made of, which rounds a row's length up.
        token_budget: the most tokens of a batch with its filler. A single text that is longer has
            a batch of its own, and the filler is in it where the budget is below 64.

    Yields:
        The rows of a batch, (B,) int64, and what a model takes of it: `input_ids`, `position_ids`
        and, where the texts have them, `token_type_ids`, each (1, T) int64, and where each text
        begins (`lay_end_to_end`), all on the CPU. With a filler there is one more text.
    """
    for rows in plan_packed_batches(texts.lengths, token_budget=token_budget):
        tokens = texts.tokens_of(rows)
        columns = {"input_ids": (texts.ids[tokens], tokenizer.pad_token_id)}
        if texts.type_ids is not None:
            columns["token_type_ids"] = (texts.type_ids[tokens], tokenizer.pad_token_type_id)
        yield rows, lay_end_to_end(texts.lengths[rows], columns)


def plan_packed_batches(lengths: np.ndarray, *, token_budget: int) -> list[np.ndarray]:
    """Put texts of like length together.

    Args:
        lengths: tokens of each of N texts, (N,) whole numbers.
        token_budget: see `packed_batches`.

    Returns:
        The rows of each batch, (B,) int64, in the order of `longest_first`.

    Raises:
        ValueError: the budget is below 1.
    """
    order = longest_first(lengths, token_budget)
    room = token_budget - token_budget % PACK_MULTIPLE or token_budget
    ends = np.cumsum(lengths[order])
    batches, first, before = [], 0, 0
    while first < len(order):
        last = max(int(np.searchsorted(ends, before + room, side="right")), first + 1)
        batches.append(order[first:last])
        first, before = last, int(ends[last - 1])
    return batches
