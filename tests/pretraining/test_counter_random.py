"""Counter-based random numbers against SplitMix64 in plain Python integers."""

from collections.abc import Iterator

import numpy as np
import pytest

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


def test_the_plain_generator_gives_the_published_values():
    # As printed by Vigna's splitmix64.c, whose first outputs many implementations quote.
    generator = splitmix64(1234567)
    assert [next(generator) for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize(("key", "stream"), [(0, 0), (1234567, 1), (2**63 - 1, 3)])
def test_uniforms_are_the_sequence_seeded_with_the_stream_th_value_of_the_key(key, stream):
    generator = splitmix64(nth(key, stream))
    expected = [(next(generator) >> 11) / 2**53 for _ in range(20)]
    keys = np.array([5, key])
    assert uniforms(keys, 20, stream=stream)[1].tolist() == expected
    assert uniforms(keys, 7, stream=stream)[1].tolist() == expected[:7]
    places = np.array([3, 19])
    some = uniforms_at(keys, np.array([1, 1]), places, stream=stream)
    assert some.tolist() == [expected[3], expected[19]]


def test_random_keys_fold_their_parts_in_turn_and_broadcast():
    key = 0
    for part in (7, 0, 123456789):
        key = nth((key + nth(part, 0)) % SIXTY_FOUR_BITS, 0)
    assert random_keys(7, 0, np.array([3, 123456789]))[1] == key >> 1


@pytest.mark.parametrize("n", [1, 127, 2048, 2049])
def test_a_permutation_is_the_order_of_the_draws(n):
    keys = random_keys(5, np.arange(5))
    orders = permutations(keys, n, stream=2)
    assert orders.dtype == np.int64 and orders.shape == (5, n)
    for key, order in zip(keys.tolist(), orders.tolist(), strict=True):
        generator = splitmix64(nth(key, 2))
        draws = [next(generator) >> 11 for _ in range(n)]
        assert order == sorted(range(n), key=draws.__getitem__)
