"""Whole-word masking of a batch, without a loop over its tokens.

The budget is the reference implementation's: of a block of n tokens (its own, without CLS and SEP)
max(1, round(0.15 n)) are masked, as whole words in random order, skipping a word that no longer
fits; then 80 % of them become [MASK], 10 % a random token, 10 % stay (Devlin et al. 2019, which
Condenser follows in section 3.3).
"""

import numpy as np

from .counter_random import uniforms

IGNORE_INDEX = -100

# Streams of a block's key, so that what one step draws has no part in another.
WINDOW_STREAM, ORDER_STREAM, FATE_STREAM, REPLACEMENT_STREAM = range(4)


def masking_budget(n_tokens: np.ndarray, mlm_probability: float) -> np.ndarray:
    """How many tokens of a block are masked at most.

    Args:
        n_tokens: (B,) tokens of each block, without the added special ones.
        mlm_probability: share of them to mask.

    Returns:
        (B,) int64; 0 for an empty block, otherwise at least 1. Halves round to even, as in the
        reference.
    """
    budget = np.round(n_tokens * mlm_probability).astype(np.int64)
    return np.where(n_tokens > 0, np.maximum(budget, 1), 0)


def choose_words(words: np.ndarray, budget: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Choose whole words at random until the budget is met.

    Equal to this for each row: go through its words in random order, take a word if all of its
    tokens still fit the budget, otherwise skip it.

    Args:
        words: (B, T) the word of each token, -1 outside words.
        budget: (B,) tokens to choose at most.
        keys: (B,) random keys of the rows.

    Returns:
        (B, T) bool: tokens of the chosen words.
    """
    n_rows = len(words)
    n_words = max(int(words.max(initial=-1)) + 1, 1)
    # Word -1 is counted in an extra last column, and cut off.
    lengths = np.zeros((n_rows, n_words + 1), dtype=np.int64)
    np.add.at(lengths, (np.arange(n_rows)[:, None], words), 1)
    lengths = lengths[:, :n_words]  # (B, W)

    order = np.argsort(uniforms(keys, n_words, stream=ORDER_STREAM), axis=1)
    taken = _fill_greedily(np.take_along_axis(lengths, order, axis=1), budget)
    chosen = np.zeros((n_rows, n_words + 1), dtype=bool)
    np.put_along_axis(chosen, order, taken, axis=1)
    return np.take_along_axis(chosen, words % (n_words + 1), axis=1)


def _fill_greedily(lengths: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Take items left to right if they fit what is left of the budget, for all rows at once.

    Each round takes every item up to the first that does not fit; that one, and all others longer
    than what is then left, can never fit and leave the queue. A word of n tokens can only stop a
    round while at least n are left for shorter ones, so a few rounds do.

    Args:
        lengths: (B, W) in queue order; 0 means no item.
        budget: (B,).

    Returns:
        (B, W) bool.
    """
    taken = np.zeros(lengths.shape, dtype=bool)
    left = budget.astype(np.int64)
    queue = np.where(lengths <= left[:, None], lengths, 0)
    while queue.any():
        fits = (np.cumsum(queue, axis=1) <= left[:, None]) & (queue > 0)
        taken |= fits
        left = left - (queue * fits).sum(axis=1)
        queue = np.where(fits | (queue > left[:, None]), 0, queue)
    return taken


def replace_tokens(
    ids: np.ndarray,
    chosen: np.ndarray,
    keys: np.ndarray,
    *,
    mask_token_id: int,
    ordinary_ids: np.ndarray,
) -> np.ndarray:
    """Replace chosen tokens: 80 % by [MASK], 10 % by a random token, 10 % by themselves.

    Args:
        ids: (B, T) token ids.
        chosen: (B, T) bool.
        keys: (B,) random keys of the rows.
        mask_token_id: id of [MASK].
        ordinary_ids: (N,) ids that a random token is drawn from: those that are not special.

    Returns:
        (B, T) the model's input.
    """
    width = ids.shape[1]
    fate = uniforms(keys, width, stream=FATE_STREAM)
    draw = uniforms(keys, width, stream=REPLACEMENT_STREAM)
    replacement = ordinary_ids[(draw * len(ordinary_ids)).astype(np.int64)]
    masked = np.where(chosen & (fate < 0.8), mask_token_id, ids)
    return np.where(chosen & (fate >= 0.8) & (fate < 0.9), replacement, masked)
