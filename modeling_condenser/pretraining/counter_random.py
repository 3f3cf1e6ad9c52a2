"""Random numbers without a state: each is a hash of a key and a counter.

So a block's draws do not depend on dataloader workers, batch sizes or resuming. The hash is
SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", figure 15).
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SPARE_BITS = np.uint64(11)  # of 64, which a float64 in [0, 1) has no room for
_SPARE = np.uint64(2**11 - 1)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def random_keys(*parts: int | np.ndarray) -> np.ndarray:
    """Combine integers of at least 0, or (B,) arrays of them, into (B,) int64 keys of 63 bits."""
    keys = np.zeros(1, dtype=np.uint64)
    for part in parts:
        keys = _mix(keys + _GOLDEN + _mix(np.atleast_1d(part).astype(np.uint64) + _GOLDEN))
    return (keys >> np.uint64(1)).astype(np.int64)


def uniforms(keys: np.ndarray, n_draws: int, *, stream: int = 0) -> np.ndarray:
    """Draw (B, n_draws) float64 in [0, 1) for (B,) keys; a longer draw begins with a shorter one.

    Each `stream` of at least 0 is an independent sequence of a key.
    """
    return _as_uniforms(_mix(_bases(keys, stream)[:, None] + _counters(n_draws)))


def uniforms_at(
    keys: np.ndarray, rows: np.ndarray, columns: np.ndarray, *, stream: int = 0
) -> np.ndarray:
    """`uniforms(keys, n, stream=stream)[rows, columns]`, (N,), without drawing the others."""
    counters = (columns + 1).astype(np.uint64) * _GOLDEN
    return _as_uniforms(_mix(_bases(keys, stream)[rows] + counters))


def permutations(keys: np.ndarray, n: int, *, stream: int = 0) -> np.ndarray:
    """The numbers below n in the order of `uniforms(keys, n, stream=stream)`, (B, n) int64."""
    if n > 2**11:
        return np.argsort(uniforms(keys, n, stream=stream), axis=1)
    # The spare bits carry the numbers along: sorting values takes a third of the time of argsort.
    bits = _mix(_bases(keys, stream)[:, None] + _counters(n))
    bits &= ~_SPARE
    bits |= np.arange(n, dtype=np.uint64)
    bits.sort(axis=1)
    bits &= _SPARE
    return bits.view(np.int64)


def _mix(z: np.ndarray) -> np.ndarray:
    """Hash the elements of a new array, in its own memory."""
    shifted = z >> _SHIFTS[0]
    z ^= shifted
    z *= _FACTORS[0]
    z ^= np.right_shift(z, _SHIFTS[1], out=shifted)
    z *= _FACTORS[1]
    z ^= np.right_shift(z, _SHIFTS[2], out=shifted)
    return z


def _counters(n_draws: int) -> np.ndarray:
    return np.arange(1, n_draws + 1, dtype=np.uint64) * _GOLDEN  # (n_draws,)


def _bases(keys: np.ndarray, stream: int) -> np.ndarray:
    """(B,) what a stream's counters are added to."""
    offset = np.uint64((stream + 1) * int(_GOLDEN) % 2**64)
    return _mix(keys.astype(np.uint64) + offset)


def _as_uniforms(bits: np.ndarray) -> np.ndarray:
    return (bits >> _SPARE_BITS) * 2.0**-53
