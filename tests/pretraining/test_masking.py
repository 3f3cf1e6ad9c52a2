"""Whole-word masking against the reference's loop over words, written out naively."""

import numpy as np
import pytest
from scipy import stats

from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.pretraining.masking import (
    ORDER_STREAM,
    choose_words,
    masking_budget,
    replace_tokens,
)


def make_words(rng: np.random.Generator, *, width: int, longest: int) -> np.ndarray:
    """A row of words of random lengths, with stretches that belong to none."""
    row: list[int] = []
    word = 0
    while len(row) < width:
        length = int(rng.integers(1, longest + 1))
        if rng.random() < 0.15:
            row += [-1] * length
        else:
            row += [word] * length
            word += 1
    return np.array(row[:width])


def choose_naively(words: list[int], budget: int, order: list[int]) -> list[bool]:
    """Words in random order; take one if all of its tokens still fit, otherwise skip it."""
    chosen: set[int] = set()
    n_chosen = 0
    for word in order:
        if n_chosen >= budget:
            break
        length = words.count(word)
        if n_chosen + length > budget:
            continue
        chosen.add(word)
        n_chosen += length
    return [word in chosen for word in words]


def order_of(words: list[int], key: int) -> list[int]:
    n_words = max(words) + 1
    draws = uniforms(np.array([key]), max(n_words, 0), stream=ORDER_STREAM)[0]
    return sorted(range(n_words), key=lambda word: draws[word])


@pytest.mark.parametrize(("longest", "share"), [(1, 0.15), (3, 0.4), (12, 0.9), (12, 0.15)])
def test_the_choice_equals_the_reference_s_loop(longest, share):
    rng = np.random.default_rng(longest)
    n_skipped = 0
    for batch in range(40):
        width = int(rng.integers(1, 90))
        words = np.stack([make_words(rng, width=width, longest=longest) for _ in range(8)])
        keys = random_keys(batch, np.arange(8))
        budget = masking_budget((words >= 0).sum(axis=1), share)
        chosen = choose_words(words, budget, keys)
        assert chosen.dtype == bool
        for row, key, limit, got in zip(words.tolist(), keys, budget, chosen, strict=True):
            expected = choose_naively(row, limit, order_of(row, key))
            assert got.tolist() == expected
            n_skipped += sum(expected) < limit
    assert longest == 1 or n_skipped > 0  # the case in which words are skipped did come up


def test_the_budget_is_a_rounded_share_and_at_least_one():
    n_tokens = np.arange(600)
    expected = [0] + [max(1, round(n * 0.15)) for n in range(1, 600)]
    assert masking_budget(n_tokens, 0.15).tolist() == expected


def test_eighty_per_cent_are_masked_ten_replaced_and_ten_kept():
    ids = 1000 + np.arange(400_000).reshape(4000, 100)
    chosen = np.random.default_rng(0).random(ids.shape) < 0.5
    keys, ordinary = random_keys(0, np.arange(4000)), np.arange(100, 150)
    replaced = replace_tokens(ids, chosen, keys, mask_token_id=7, ordinary_ids=ordinary)
    assert (replaced[~chosen] == ids[~chosen]).all()
    became, original = replaced[chosen], ids[chosen]
    n, is_random = len(became), (became != 7) & (became < 1000)
    for share, expected in [
        ((became == 7).mean(), 0.8),
        (is_random.mean(), 0.1),
        ((became == original).mean(), 0.1),
    ]:
        assert abs(share - expected) < 4 * (expected * (1 - expected) / n) ** 0.5
    counts = np.bincount(became[is_random], minlength=150)[100:]
    assert 0.001 < stats.chisquare(counts).pvalue < 0.999
