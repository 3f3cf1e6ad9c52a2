"""Counter-based random numbers against SplitMix64 in plain Python integers."""

from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats

from modeling_condenser.pretraining.counter_random import (
    permutations,
    random_keys,
    uniforms,
    uniforms_at,
)

SIXTY_FOUR_BITS = 2**64


def mix(z: int) -> int:
    """The finaliser of Steele, Lea & Flood 2014, figure 15."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % SIXTY_FOUR_BITS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % SIXTY_FOUR_BITS
    return z ^ (z >> 31)


def splitmix64(seed: int) -> Iterator[int]:
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) % SIXTY_FOUR_BITS
        yield mix(seed)


def nth(seed: int, n: int) -> int:
    generator = splitmix64(seed)
    for _ in range(n):
        next(generator)
    return next(generator)


def test_the_plain_generator_gives_the_published_values() -> None:
    # As printed by Vigna's splitmix64.c, whose first outputs many implementations quote.
    generator = splitmix64(1234567)
    assert [next(generator) for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("stream", [0, 1, 3])
@pytest.mark.parametrize("key", [0, 1, 1234567, 2**63 - 1])
def test_uniforms_are_the_sequence_seeded_with_the_stream_th_value_of_the_key(
    key: int, stream: int
) -> None:
    generator = splitmix64(nth(key, stream))
    expected = [(next(generator) >> 11) / 2**53 for _ in range(20)]
    assert uniforms(np.array([key]), 20, stream=stream)[0].tolist() == expected


def test_random_keys_fold_their_parts_in_turn() -> None:
    key = 0
    for part in (7, 0, 123456789):
        key = nth((key + nth(part, 0)) % SIXTY_FOUR_BITS, 0)
    assert random_keys(7, 0, 123456789).tolist() == [key >> 1]


def test_one_key_s_draws_are_uniform() -> None:
    draws = uniforms(np.array([42]), 1_000_000)[0]
    assert draws.min() >= 0.0 and draws.max() < 1.0
    # Four standard errors: of the mean sqrt(1/12/n), of the variance sqrt(1/180/n).
    assert abs(draws.mean() - 1 / 2) < 4 * (1 / 12 / 1e6) ** 0.5
    assert abs(draws.var() - 1 / 12) < 4 * (1 / 180 / 1e6) ** 0.5
    assert 0.001 < stats.chisquare(np.bincount((draws * 256).astype(int))).pvalue < 0.999


def test_first_draws_of_neighbouring_keys_are_uniform() -> None:
    keys = random_keys(1, 0, np.arange(200_000))
    for stream in range(4):
        draws = uniforms(keys, 1, stream=stream)[:, 0]
        assert 0.001 < stats.chisquare(np.bincount((draws * 256).astype(int))).pvalue < 0.999


def test_unhashed_keys_serve_as_well() -> None:
    draws = uniforms(np.arange(200_000), 1)[:, 0]
    assert 0.001 < stats.chisquare(np.bincount((draws * 256).astype(int))).pvalue < 0.999


def test_a_longer_draw_begins_with_a_shorter_one() -> None:
    keys = np.array([3, 99, 2**62])
    longest = uniforms(keys, 100, stream=2)
    for n_draws in (0, 1, 17, 99):
        assert np.array_equal(uniforms(keys, n_draws, stream=2), longest[:, :n_draws])


def test_a_key_s_draws_do_not_depend_on_the_other_keys() -> None:
    keys = random_keys(5, np.arange(50))
    together = uniforms(keys, 8)
    for row, key in enumerate(keys):
        assert np.array_equal(uniforms(np.array([key]), 8)[0], together[row])


def test_streams_and_keys_are_uncorrelated() -> None:
    rows = np.concatenate(
        [uniforms(np.array([key]), 20_000, stream=s) for key in (0, 1, 2) for s in range(4)]
    )
    correlations = np.corrcoef(rows)[np.triu_indices(len(rows), k=1)]
    assert len(correlations) == 66
    assert np.abs(correlations).max() < 4.5 / 20_000**0.5


def test_successive_draws_are_uncorrelated() -> None:
    draws = uniforms(np.array([11]), 200_001)[0]
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4 / 200_000**0.5


def test_the_order_and_number_of_parts_matter() -> None:
    keys = [random_keys(*parts).item() for parts in ((1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (3,))]
    assert len(set(keys)) == len(keys)


def test_arrays_of_parts_broadcast() -> None:
    numbers = np.arange(5)
    together = random_keys(8, 3, numbers)
    assert together.dtype == np.int64 and together.shape == (5,)
    assert together.tolist() == [random_keys(8, 3, int(n)).item() for n in numbers]
    both = random_keys(numbers, 3, numbers)
    assert both.tolist() == [random_keys(int(n), 3, int(n)).item() for n in numbers]


def test_keys_of_a_run_are_distinct_and_not_negative() -> None:
    keys = np.concatenate([random_keys(0, epoch, np.arange(100_000)) for epoch in range(3)])
    assert len(np.unique(keys)) == len(keys)
    assert keys.min() >= 0


@pytest.mark.parametrize("n", [1, 2, 127, 2048, 2049, 5000])
def test_a_permutation_is_the_order_of_the_draws(n: int) -> None:
    keys = random_keys(5, np.arange(40))
    orders = permutations(keys, n, stream=2)
    assert orders.dtype == np.int64 and orders.shape == (40, n)
    for key, order in zip(keys.tolist(), orders.tolist(), strict=True):
        generator = splitmix64(nth(key, 2))
        draws = [next(generator) >> 11 for _ in range(n)]
        assert order == sorted(range(n), key=draws.__getitem__)


def test_some_draws_are_those_among_all() -> None:
    keys = random_keys(6, np.arange(30))
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(0, 30, size=500), rng.integers(0, 1000, size=500)
    for stream in (0, 3):
        every = uniforms(keys, 1000, stream=stream)
        some = uniforms_at(keys, rows, columns, stream=stream)
        assert some.tolist() == every[rows, columns].tolist()
    assert uniforms_at(keys, rows[:0], columns[:0]).shape == (0,)
