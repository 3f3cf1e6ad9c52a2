"""Whole-word masking of a batch, without a loop over its tokens.

The budget is the reference implementation's: of a block of n tokens (its own, without CLS and SEP)
max(1, round(0.15 n)) are masked, as whole words in random order, skipping a word that no longer
fits; then 80 % of them become [MASK], 10 % a random token, 10 % stay (Devlin et al. 2019, which
Condenser follows in section 3.3).
"""

import numpy as np

from .counter_random import permutations, uniforms_at

IGNORE_INDEX = -100
_WORDS_AT_ONCE = 32

# Streams of a block's key, so that what one step draws has no part in another.
WINDOW_STREAM, ORDER_STREAM, FATE_STREAM, REPLACEMENT_STREAM, HEAD_STREAM = range(5)


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
    # Word -1 is counted in an extra first column. Cells are counted through, which is faster to
    # read and write than row and column.
    first_cells = np.arange(n_rows)[:, None] * (n_words + 1) + 1  # (B, 1), of words 0
    cells = words + first_cells  # (B, T)
    lengths = np.bincount(cells.ravel(), minlength=n_rows * (n_words + 1))
    order = permutations(keys, n_words, stream=ORDER_STREAM)
    order += first_cells  # (B, W) cells

    chosen = np.zeros(len(lengths), dtype=bool)
    left = budget.astype(np.int64)[:, None]
    rows = np.arange(n_rows)
    # A budget is mostly used up long before the words are: so a part of them at a time.
    for first in range(0, n_words, _WORDS_AT_ONCE):
        part = order[rows, first : first + _WORDS_AT_ONCE]
        chosen[part], left = _fill_greedily(lengths[part], left)
        unfinished = left[:, 0] > 0
        rows, left = rows[unfinished], left[unfinished]
        if len(rows) == 0:
            break
    return chosen[cells]


def _fill_greedily(lengths: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Take items left to right if they fit what is left of the budget, for all rows at once.

    Each round takes every item up to the first that does not fit; that one, and all others longer
    than what is then left, can never fit and leave the queue. A word of n tokens can only stop a
    round while at least n are left for shorter ones, so a few rounds do, and most rows are full
    after the first.

    Args:
        lengths: (B, W) in queue order; 0 means no item.
        left: (B, 1).

    Returns:
        (B, W) bool, what is taken, and (B, 1) what is then left.
    """
    queue = np.where(lengths <= left, lengths, 0)
    taken = (np.cumsum(queue, axis=1) <= left) & (queue > 0)
    left = left - (queue * taken).sum(axis=1, keepdims=True)
    rows = np.flatnonzero(left)
    queue = np.where(taken[rows], 0, lengths[rows])
    while True:
        queue[queue > left[rows]] = 0
        unfinished = queue.any(axis=1)
        if not unfinished.any():
            return taken, left
        rows, queue = rows[unfinished], queue[unfinished]
        fits = (np.cumsum(queue, axis=1) <= left[rows]) & (queue > 0)
        taken[rows] |= fits
        left[rows] -= (queue * fits).sum(axis=1, keepdims=True)
        queue[fits] = 0


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
    places = np.flatnonzero(chosen)
    rows, columns = np.divmod(places, ids.shape[1])
    fate = uniforms_at(keys, rows, columns, stream=FATE_STREAM)
    masked = ids.copy()
    flat = masked.reshape(-1)
    flat[places[fate < 0.8]] = mask_token_id
    is_random = (fate >= 0.8) & (fate < 0.9)
    draw = uniforms_at(keys, rows[is_random], columns[is_random], stream=REPLACEMENT_STREAM)
    flat[places[is_random]] = ordinary_ids[(draw * len(ordinary_ids)).astype(np.int64)]
    return masked
