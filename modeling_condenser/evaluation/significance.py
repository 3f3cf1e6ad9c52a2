"""Decide whether two systems differ, from their values per query.

The paired randomisation test is the one that Smucker, Allan & Carterette (2007) recommend for
retrieval experiments. All tests are about the sample of queries, not about training seeds.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import stats

ALPHA = 0.05  # a difference is called significant if its corrected p-value is below this
N_RESAMPLES = 10_000
_BATCH_VALUES = 2_000_000  # resampled values in memory at once: 16 MB
_N_GROUPS = 10
_ROUNDING = 1e-12
_EQUAL = 1e-9  # one ranking gives values that differ in the last bits if sums change their order

Values = Mapping[str, float]
"""Query id -> value of one measure of one system."""
Interval = tuple[float, float]

Key = TypeVar("Key", bound=Hashable)


class Comparison(NamedTuple):
    """A system against a baseline in one measure, over the same queries."""

    mean_system: float
    mean_baseline: float
    difference: float  # mean of the system minus mean of the baseline
    p_value: float  # two-sided, of the paired randomisation test
    interval: Interval | None  # 95 % bootstrap interval of the difference; None with a single query
    p_adjusted: float  # after Holm's correction; `p_value` itself for a comparison made alone
    t_test: float | None = None  # p-value of `compare_in_groups`, corrected like `p_adjusted`
    better: int = 0  # queries on which the system's value is higher
    equal: int = 0
    worse: int = 0

    @property
    def is_significant(self) -> bool:
        return self.p_adjusted < ALPHA

    @property
    def mark(self) -> str:
        """▲ or ▼ for a significant difference, ○ if no difference was shown."""
        if not self.is_significant:
            return "○"
        return "▲" if self.difference > 0 else "▼"


def compare(system: Values, baseline: Values, *, seed: int = 0) -> Comparison:
    """Compare two systems in one measure; a ValueError unless the queries are the same.

    The test is exact if the systems differ on few queries. The result does not depend on the order
    of the queries.
    """
    values = _paired_values(system, baseline)  # (2, Q)
    differences = values[0] - values[1]  # (Q,)
    differing = differences[differences != 0]  # swapping the other queries has no effect
    better, worse = int((differences > _EQUAL).sum()), int((differences < -_EQUAL).sum())

    def difference(swapped: np.ndarray) -> np.ndarray:  # a swap flips the sign of a difference
        return (differing.sum() - 2 * (swapped @ differing)) / len(differences)

    p_value = randomisation_test(difference, n=len(differing), seed=seed)
    return Comparison(
        float(values[0].mean()),
        float(values[1].mean()),
        difference=float(differences.mean()),
        p_value=p_value,
        interval=bootstrap_interval(np.mean, differences, seed=seed),
        p_adjusted=p_value,
        t_test=compare_in_groups(values, seed=seed),
        better=better,
        equal=len(differences) - better - worse,
        worse=worse,
    )


def correct(comparisons: Mapping[Key, Comparison]) -> dict[Key, Comparison]:
    """The same comparisons, with p-values corrected over all of them (Holm)."""
    adjusted = holm([c.p_value for c in comparisons.values()])
    t_tests = {key: c.t_test for key, c in comparisons.items() if c.t_test is not None}
    adjusted_t = dict(zip(t_tests, holm(list(t_tests.values())), strict=True))
    return {
        key: c._replace(p_adjusted=p, t_test=adjusted_t.get(key))
        for (key, c), p in zip(comparisons.items(), adjusted, strict=True)
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for the number of tests (Holm 1979), which may depend on each other."""
    values = np.asarray(p_values, dtype=np.float64)  # (n,)
    order = np.argsort(values, kind="stable")
    raised = values[order] * np.arange(len(values), 0, -1)  # the smallest by n, the next by n - 1
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(raised), 1.0)
    return adjusted.tolist()


def compare_in_groups(values: np.ndarray, *, seed: int = 0) -> float | None:
    """A paired t-test over the means of ten random groups of queries; `values` are (2, Q).

    The queries are divided at random into groups of nearly equal size, so the p-value depends on
    the seed: prefer the randomisation test. It is two-sided, and None for fewer than ten queries.
    """
    if values.shape[1] < _N_GROUPS:
        return None
    shuffled = np.random.default_rng(seed).permutation(values, axis=1)
    groups = np.array_split(shuffled, _N_GROUPS, axis=1)
    means = np.stack([group.mean(axis=1) for group in groups], axis=1)  # (2, groups)
    differences = means[0] - means[1]
    if np.ptp(differences) <= _ROUNDING:  # t would depend on rounding errors only
        return 1.0 if abs(differences).max() <= _ROUNDING else 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def randomisation_test(
    difference: Callable[[np.ndarray], np.ndarray], *, n: int, seed: int = 0
) -> float:
    """Two-sided p-value of a paired randomisation test of two systems on n items.

    All 2**n swaps are enumerated if they are at most 10,000. `difference` maps swaps, (B, n)
    float64 with a 1 for each item whose values are swapped, to the systems' differences, (B,).
    scipy's `permutation_test` gives the same, and takes three times as long.
    """
    if 2**n <= N_RESAMPLES:
        swaps = (np.arange(2**n)[:, None] >> np.arange(n)) & 1  # (2**n, n)
    else:
        swaps = np.random.default_rng(seed).integers(2, size=(N_RESAMPLES + 1, n), dtype=np.uint8)
        swaps[0] = 0
    batches = np.array_split(swaps, 1 + swaps.size // _BATCH_VALUES)
    differences = np.concatenate([abs(difference(b.astype(np.float64))) for b in batches])
    # The first one is the observed difference.
    return float((differences >= differences[0] - _ROUNDING).mean())


def bootstrap_interval(
    statistic: Callable[..., np.ndarray], *samples: np.ndarray, seed: int = 0
) -> Interval | None:
    """95 % bootstrap interval of a statistic of paired samples, (N,) each; None for a single item.

    The method is "percentile", because BCa gives NaN where all values are equal.
    """
    if len(samples[0]) < 2:
        return None
    low, high = stats.bootstrap(
        samples,
        statistic,
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=N_RESAMPLES,
        batch=max(1, _BATCH_VALUES // len(samples[0])),
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(low), float(high)


def _paired_values(first: Values, second: Values) -> np.ndarray:
    """The values of both systems, (2, Q) float64, in the order of the sorted query ids."""
    if not first or first.keys() != second.keys():
        raise ValueError(
            f"The systems were measured on different queries ({len(first)} and {len(second)}): "
            "evaluate both with the same judgements."
        )
    return np.array([[s[query] for query in sorted(s)] for s in (first, second)], dtype=np.float64)
