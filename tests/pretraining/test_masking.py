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


@pytest.mark.parametrize("share", [0.15, 0.4, 0.9])
@pytest.mark.parametrize("longest", [1, 3, 12])
def test_the_choice_equals_the_reference_s_loop(longest: int, share: float) -> None:
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


def test_whole_words_are_chosen_and_never_more_than_the_budget() -> None:
    rng = np.random.default_rng(1)
    words = np.stack([make_words(rng, width=120, longest=6) for _ in range(400)])
    budget = rng.integers(0, 30, size=400)
    chosen = choose_words(words, budget, random_keys(0, np.arange(400)))
    assert (chosen.sum(axis=1) <= budget).all()
    assert not chosen[words == -1].any()
    for row, marks in zip(words, chosen, strict=True):
        assert not set(row[marks]) & set(row[~marks])


def test_the_budget_is_met_exactly_where_enough_words_are_one_token_long() -> None:
    rng = np.random.default_rng(2)
    long_words = np.repeat(np.arange(20), 4)  # 80 tokens
    words = np.stack([rng.permutation(np.append(long_words, range(20, 40))) for _ in range(300)])
    budget = np.full(300, 15)
    chosen = choose_words(words, budget, random_keys(3, np.arange(300)))
    assert (chosen.sum(axis=1) == 15).all()
    assert chosen[:, :].any(axis=0).all()


def test_one_available_word_of_one_token_is_taken_after_longer_ones_are_skipped() -> None:
    words = np.array([[0, 0, 0, 1, 1, 1, 2, 3, 3, 3]] * 50)
    chosen = choose_words(words, np.ones(50, dtype=np.int64), random_keys(0, np.arange(50)))
    assert (chosen == (words == 2)).all()


def test_no_word_fits_where_all_are_longer_than_the_budget() -> None:
    words = np.array([[0, 0, 0, 1, 1, 1]])
    assert not choose_words(words, np.array([2]), np.array([5])).any()


def test_rows_without_words_have_none_chosen() -> None:
    words = np.array([[-1, -1, -1], [0, 1, 2]])
    chosen = choose_words(words, np.array([1, 3]), np.array([1, 2]))
    assert chosen.tolist() == [[False] * 3, [True] * 3]
    assert not choose_words(np.full((1, 4), -1), np.array([1]), np.array([0])).any()


def test_the_choice_equals_the_loop_where_only_the_last_of_many_words_fit() -> None:
    """Words are looked at some at a time: here most rows must be followed to their end."""
    rng = np.random.default_rng(7)
    lengths = [rng.permutation([5] * 69 + [1] * 4 + [2] * 2) for _ in range(30)]
    words = np.stack([np.repeat(np.arange(75), row) for row in lengths])
    keys = random_keys(8, np.arange(30))
    chosen = choose_words(words, np.full(30, 4), keys)
    for row, key, got in zip(words.tolist(), keys, chosen, strict=True):
        assert got.tolist() == choose_naively(row, 4, order_of(row, key))
        assert sum(got) == 4


def test_words_of_one_length_are_chosen_equally_often() -> None:
    words = np.tile(np.arange(20), (20_000, 1))
    chosen = choose_words(words, np.full(20_000, 3), random_keys(9, np.arange(20_000)))
    counts = chosen.sum(axis=0)
    assert counts.sum() == 60_000
    # Drawing without replacement spreads counts less than the test assumes; only p near 0 is bad.
    assert stats.chisquare(counts).pvalue > 0.001


def test_pairs_of_words_are_chosen_equally_often() -> None:
    words = np.tile(np.arange(6), (30_000, 1))
    chosen = choose_words(words, np.full(30_000, 2), random_keys(10, np.arange(30_000)))
    pairs = chosen.astype(np.int64) @ (1 << np.arange(6))
    counts = np.unique(pairs, return_counts=True)[1]
    assert len(counts) == 15
    assert 0.001 < stats.chisquare(counts).pvalue < 0.999


def test_the_choice_does_not_depend_on_the_other_rows_nor_on_padding() -> None:
    rng = np.random.default_rng(4)
    rows = [make_words(rng, width=int(rng.integers(5, 60)), longest=4) for _ in range(30)]
    keys = random_keys(1, np.arange(30))
    budget = np.array([masking_budget(np.array((row >= 0).sum()), 0.3) for row in rows])
    padded = np.stack([np.pad(row, (0, 64 - len(row)), constant_values=-1) for row in rows])
    together = choose_words(padded, budget, keys)
    for i, row in enumerate(rows):
        alone = choose_words(row[None], budget[i : i + 1], keys[i : i + 1])
        assert together[i, : len(row)].tolist() == alone[0].tolist()


def test_the_budget_is_a_rounded_share_and_at_least_one() -> None:
    n_tokens = np.arange(600)
    expected = [0] + [max(1, round(n * 0.15)) for n in range(1, 600)]
    assert masking_budget(n_tokens, 0.15).tolist() == expected


@pytest.mark.parametrize(("n", "budget"), [(0, 0), (1, 1), (2, 1), (3, 2), (5, 2), (7, 4), (9, 4)])
def test_halves_round_to_even(n: int, budget: int) -> None:
    assert masking_budget(np.array([n]), 0.5).tolist() == [budget]


ORDINARY = np.arange(100, 150)
MASK = 7


def replace(n_rows: int, width: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens 1000 and up, half of them chosen: what they became, and which were chosen."""
    ids = 1000 + np.arange(n_rows * width).reshape(n_rows, width)
    chosen = np.random.default_rng(seed).random(ids.shape) < 0.5
    replaced = replace_tokens(
        ids,
        chosen,
        random_keys(seed, np.arange(n_rows)),
        mask_token_id=MASK,
        ordinary_ids=ORDINARY,
    )
    assert (replaced[~chosen] == ids[~chosen]).all()
    kept = replaced[chosen] >= 1000
    assert (replaced[chosen][kept] == ids[chosen][kept]).all()
    return replaced[chosen], chosen


def test_eighty_per_cent_are_masked_ten_replaced_and_ten_kept() -> None:
    replaced, _ = replace(4000, 100, seed=0)
    n = len(replaced)
    assert n > 190_000
    for share, expected in [
        ((replaced == MASK).mean(), 0.8),
        ((replaced < 1000).mean(), 0.9),
        ((replaced >= 1000).mean(), 0.1),
    ]:
        assert abs(share - expected) < 4 * (expected * (1 - expected) / n) ** 0.5


def test_replacements_are_ordinary_tokens_all_equally_often() -> None:
    replaced, _ = replace(4000, 100, seed=1)
    drawn = replaced[(replaced != MASK) & (replaced < 1000)]
    assert set(drawn.tolist()) == set(ORDINARY.tolist())
    counts = np.bincount(drawn, minlength=150)[100:]
    assert 0.001 < stats.chisquare(counts).pvalue < 0.999


def test_what_a_token_becomes_does_not_depend_on_the_width_of_the_batch() -> None:
    ids = np.full((3, 40), 1000)
    chosen = np.ones_like(ids, dtype=bool)
    keys = np.array([1, 2, 3])
    wide = replace_tokens(ids, chosen, keys, mask_token_id=MASK, ordinary_ids=ORDINARY)
    narrow = replace_tokens(
        ids[1:2, :11], chosen[1:2, :11], keys[1:2], mask_token_id=MASK, ordinary_ids=ORDINARY
    )
    assert wide[1:2, :11].tolist() == narrow.tolist()
