"""Whole-word masking of a batch; `word_starts.py` says what a word is.

The budget is the reference implementation's: of a block of n tokens, without CLS and SEP,
max(1, round(0.15 n)) are masked, as whole words in random order, skipping a word that no longer
fits; then 80 % of them become [MASK], 10 % a random token, 10 % stay (Devlin et al. 2019, which
Condenser follows in section 3.3). If no word of a block fits its budget, a word is masked in part.
"""

import numpy as np

from .counter_random import uniforms

# Streams of a block's key, so that the draws of different steps are independent.
WINDOW_STREAM, ORDER_STREAM, FATE_STREAM, REPLACEMENT_STREAM, HEAD_STREAM = range(5)


def masking_budget(n_tokens: np.ndarray, mlm_probability: float) -> np.ndarray:
    """How many tokens of blocks of `n_tokens`, (B,), are masked at most, (B,) int64.

    At least 1, except of an empty block; halves round to even, as in the reference.
    """
    budget = np.round(n_tokens * mlm_probability).astype(np.int64)
    return np.where(n_tokens > 0, np.maximum(budget, 1), 0)


def choose_words(words: np.ndarray, budget: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Take the words of each row in random order, except those that exceed the budget.

    Where no word fits, the first is taken in part.

    `words`, (B, T), are numbers of words, -1 outside; `budget` and random `keys` are of rows, (B,).
    Returns (B, T) bool, the tokens of the chosen words.
    """
    n_words = max(int(words.max(initial=-1)) + 1, 1)
    orders = uniforms(keys, n_words, stream=ORDER_STREAM).argsort(axis=1)
    # One flat index for all rows' words is faster than row and column. Word -1 has a column, too.
    first_cells = np.arange(len(words))[:, None] * (n_words + 1) + 1  # (B, 1), of words 0
    cells = words + first_cells  # (B, T)
    lengths = np.bincount(cells.ravel(), minlength=len(words) * (n_words + 1))
    chosen = np.zeros(len(lengths), dtype=bool)
    left = budget.astype(np.int64)
    for cell in (orders + first_cells).T:  # (B,)
        chosen[cell] = lengths[cell] <= left
        left -= lengths[cell] * chosen[cell]
        if not left.any():
            break
    is_chosen = chosen[cells]
    for row in np.flatnonzero((left == budget) & (left > 0) & (words >= 0).any(axis=1)):
        order = orders[row]
        first = order[np.isin(order, words[row])][0]
        is_chosen[row, np.flatnonzero(words[row] == first)[: left[row]]] = True
    return is_chosen


def replace_tokens(
    ids: np.ndarray,
    chosen: np.ndarray,
    keys: np.ndarray,
    *,
    mask_token_id: int,
    ordinary_ids: np.ndarray,
) -> np.ndarray:
    """Replace the `chosen` tokens, (B, T) bool, of `ids`, (B, T); `keys`, (B,), decide how.

    80 % become [MASK], 10 % one of `ordinary_ids`, (N,), and 10 % stay.
    """
    width = ids.shape[1]
    fate = uniforms(keys, width, stream=FATE_STREAM)
    draws = uniforms(keys, width, stream=REPLACEMENT_STREAM)
    random_ids = ordinary_ids[(draws * len(ordinary_ids)).astype(np.int64)]  # (B, T)
    is_kept = ~chosen | (fate >= 0.9)
    return np.where(is_kept, ids, np.where(fate < 0.8, mask_token_id, random_ids))
