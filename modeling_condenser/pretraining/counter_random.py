"""Random numbers without a state: each is a hash of a key and a counter.

A generator with a state gives one sequence only if everybody draws in one order, which dataloader
workers, resumed runs and other batch sizes do not. Here a block's key and the place of a draw
within the block decide its value, so neither who draws nor what was drawn before matters.

The hash is the finaliser of SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom
number generators", figure 15), applied to key + (counter + 1) * golden ratio, which is that
generator's own sequence for the seed `key`.
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_keys(*parts: int | np.ndarray) -> np.ndarray:
    """Combine integers (a seed, an epoch, block numbers, ...) into keys.

    Args:
        *parts: integers of at least 0, or arrays of them that broadcast to (B,); order matters.

    Returns:
        (B,) int64 keys of 63 bits.
    """
    keys = np.zeros(1, dtype=np.uint64)
    for part in parts:
        keys = _mix(keys + _GOLDEN + _mix(np.atleast_1d(part).astype(np.uint64) + _GOLDEN))
    return (keys >> np.uint64(1)).astype(np.int64)


def uniforms(keys: np.ndarray, n_draws: int, *, stream: int = 0) -> np.ndarray:
    """Draw numbers in [0, 1) for each key.

    Args:
        keys: (B,) integer keys.
        n_draws: how many for each key.
        stream: which of a key's independent sequences, at least 0.

    Returns:
        (B, n_draws) float64; a longer draw begins with a shorter one's values.
    """
    offsets = np.arange(stream + 1, stream + 2, dtype=np.uint64) * _GOLDEN  # (1,)
    base = _mix(keys.astype(np.uint64) + offsets)  # (B,)
    counters = np.arange(1, n_draws + 1, dtype=np.uint64) * _GOLDEN  # (n_draws,)
    bits = _mix(base[:, None] + counters[None, :])  # (B, n_draws)
    return (bits >> np.uint64(11)) * 2.0**-53
