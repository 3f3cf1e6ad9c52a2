"""Random numbers without a state: each is a hash of a key and a counter.

So the masks of a block do not depend on workers, batch sizes or resuming. The hash is SplitMix64
(Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", figure 15).
"""

from collections.abc import Sequence

import numpy as np
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SPARE_BITS = np.uint64(11)  # of 64: a float64 in [0, 1) holds 53
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
    offset = np.uint64((stream + 1) * int(_GOLDEN) % 2**64)
    seeds = _mix(keys.astype(np.uint64) + offset)  # (B,)
    counters = np.arange(1, n_draws + 1, dtype=np.uint64) * _GOLDEN  # (n_draws,)
    return (_mix(seeds[:, None] + counters) >> _SPARE_BITS) * 2.0**-53


class EpochKeys:
    """Keys of rows that depend on a seed, the epoch and the row only."""

    def __init__(self, seed: int):
        self.seed = seed
        # Shared, so that workers that outlive an epoch see the next one's number.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def keys(self, rows: Sequence[int]) -> np.ndarray:
        return random_keys(self.seed, int(self._epoch), np.array(rows))


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * _FACTORS[0]
    z = (z ^ (z >> np.uint64(27))) * _FACTORS[1]
    return z ^ (z >> np.uint64(31))
