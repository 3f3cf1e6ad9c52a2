"""Does a system differ from a baseline, or is it the choice of queries?

In: one measure's values per query for two or more systems, over the same queries. Out: the mean
difference, p values and a bootstrap confidence interval. The paired randomisation test is the one
that Smucker, Allan & Carterette (2007) recommend for retrieval experiments; the thesis (section
4.4) has a paired t-test over the means of ten groups of queries. Where several systems or measures
are compared, `holm` corrects the p values. All speak about the sample of queries only, not about
the training seed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

_BATCH_VALUES = 2_000_000  # resampled values held at once: 16 MB
_ROUNDING = 1e-12


class Comparison(NamedTuple):
    """A system against a baseline, over the same queries."""

    mean_system: float
    mean_baseline: float
    difference: float
    """Mean of system minus baseline."""
    p_value: float
    """Two-sided; of the hypothesis that swapping the two systems on any query changes nothing."""
    interval: tuple[float, float]
    """95 % percentile bootstrap confidence interval of the difference."""
    p_adjusted: float | None = None
    """The p value after Holm's correction; None where the comparison was made alone."""


def compare(
    system: Mapping[str, float],
    baseline: Mapping[str, float],
    *,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare two systems on the values of one measure.

    Args:
        system: query id -> value.
        baseline: query id -> value, for the same queries.
        n_resamples: resamples for the test and for the interval. If the systems differ on n
            queries and 2**n <= n_resamples, the test enumerates all swaps and is exact; otherwise
            the smallest p value it can give is 1 / (n_resamples + 1).
        seed: seeds both.

    Returns:
        Means, difference, p value and interval. If the systems agree on every query, p is 1 and
        the interval (0, 0).

    Raises:
        ValueError: the queries differ, there are fewer than two, or a value is not finite.
    """
    system_values, baseline_values = _paired_values(system, baseline)  # (Q,), (Q,)
    differences = system_values - baseline_values  # (Q,)
    differing = differences[differences != 0]  # a swap changes nothing on the others
    return Comparison(
        mean_system=float(system_values.mean()),
        mean_baseline=float(baseline_values.mean()),
        difference=float(differences.mean()),
        p_value=swap_test(
            # Exchanging the systems on a query flips the sign of its difference.
            lambda swapped: (differing.sum() - 2 * (swapped @ differing)) / len(differences),
            n=len(differing),
            n_resamples=n_resamples,
            seed=seed,
        ),
        interval=_bootstrap_interval(differences, n_resamples=n_resamples, seed=seed),
    )


def compare_in_groups(
    system: Mapping[str, float],
    baseline: Mapping[str, float],
    *,
    n_groups: int = 10,
    seed: int = 0,
) -> float | None:
    """The thesis's test (section 4.4): a paired t-test over the means of ten groups of queries.

    The queries are divided at random into groups without replacement, as equal in size as can be.
    A group's value is the mean over its queries, and the t-test pairs the two systems' values of
    each group. Another seed makes other groups and another p value, on which the randomisation test
    of `compare` does not depend: prefer that one, unless it is the thesis that is reproduced.

    Args:
        system: query id -> value.
        baseline: query id -> value, for the same queries.
        n_groups: number of groups, at least 2.
        seed: of the division. Which query comes into which group depends on the set of query ids
            and the seed only.

    Returns:
        The two-sided p value: 1 if the systems agree in every group, and None if there are fewer
        queries than groups.

    Raises:
        ValueError: the queries differ, there are fewer than two, a value is not finite, or fewer
            than two groups are asked for.
    """
    if n_groups < 2:
        raise ValueError(f"{n_groups} groups, expected at least 2 (the thesis has 10)")
    values = np.stack(_paired_values(system, baseline))  # (2, Q)
    if values.shape[1] < n_groups:
        return None
    order = np.random.default_rng(seed).permutation(values.shape[1])
    groups = np.array_split(order, n_groups)
    means = np.stack([values[:, group].mean(axis=1) for group in groups], axis=1)  # (2, groups)
    differences = means[0] - means[1]
    # Equal differences vary by rounding only, and t would be whatever that makes of it.
    if np.ptp(differences) <= _ROUNDING:
        return 1.0 if abs(differences[0]) <= _ROUNDING else 0.0
    return float(stats.ttest_rel(means[0], means[1]).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for the number of tests (Holm 1979).

    If all those whose corrected value is at most 0.05 are called significant, the chance of even
    one false one is at most 5 %, however the tests depend on each other.

    Args:
        p_values: of all the tests that one table shows.

    Returns:
        The corrected values in the same order, from 0 to 1.

    Raises:
        ValueError: one is not from 0 to 1.
    """
    values = np.asarray(p_values, dtype=np.float64)  # (n,)
    wrong = values[~((values >= 0) & (values <= 1))]
    if len(wrong):
        raise ValueError(
            f"a p value of {wrong[0]}, expected from 0 to 1: leave out tests that gave none"
        )
    order = np.argsort(values, kind="stable")
    raised = values[order] * np.arange(len(values), 0, -1)  # the smallest by n, the next by n - 1
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(raised), 1.0)
    return adjusted.tolist()


def swap_test(
    difference: Callable[[np.ndarray], np.ndarray], *, n: int, n_resamples: int, seed: int
) -> float:
    """P value of a paired randomisation test: how often random swaps give a difference as great.

    Args:
        difference: of two systems, whose values of some of n items are exchanged: (B, n) float64 of
            1 for those that are, else 0, in; (B,) out.
        n: items.
        n_resamples: random swaps to try; all there are, if these are no more.
        seed: of the swaps.

    Returns:
        The two-sided p value. With random swaps, the observed difference counts as one of them.
    """
    observed = abs(difference(np.zeros((1, n)))[0])
    is_exact = n < 63 and 2**n <= n_resamples
    total = 2**n if is_exact else n_resamples
    size = max(1, _BATCH_VALUES // max(1, n))
    rng = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, total, size):
        numbers = np.arange(start, min(start + size, total))
        swapped: np.ndarray  # (B, n)
        if is_exact:
            swapped = (numbers[:, None] >> np.arange(n)) & 1
        else:
            drawn = rng.integers(256, size=(len(numbers), -(-n // 8)), dtype=np.uint8)
            swapped = np.unpackbits(drawn, axis=1, count=n)
        differences = abs(difference(swapped.astype(np.float64)))
        extreme += int((differences >= observed - _ROUNDING).sum())
    return extreme / total if is_exact else (extreme + 1) / (total + 1)


def _paired_values(
    system: Mapping[str, float], baseline: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Both systems' values, (Q,) float64 each, in one order of the queries."""
    apart = sorted(system.keys() ^ baseline.keys())
    if apart:
        raise ValueError(
            f"the two systems were measured on different queries ({len(system)} and"
            f" {len(baseline)}; {len(apart)} in one only, such as {apart[0]!r}): expected the same;"
            " evaluate both runs against the same qrels"
        )
    if len(system) < 2:
        raise ValueError(f"{len(system)} queries to compare on, expected at least 2: use more")
    query_ids = sorted(system)  # not the mapping's order, on which a seeded result would depend
    values = np.array([[s[q] for q in query_ids] for s in (system, baseline)], dtype=np.float64)
    unusable = np.flatnonzero(~np.isfinite(values).all(axis=0))
    if len(unusable):
        query_id = query_ids[unusable[0]]
        raise ValueError(
            f"query {query_id!r} has the values {system[query_id]} and {baseline[query_id]},"
            " expected two finite numbers: measure it again, or leave it out of both"
        )
    return values[0], values[1]


def _bootstrap_interval(
    differences: np.ndarray, *, n_resamples: int, seed: int
) -> tuple[float, float]:
    # The percentile method, since BCa gives NaN where all differences are equal.
    result = stats.bootstrap(
        (differences,),
        np.mean,
        vectorized=True,
        confidence_level=0.95,
        method="percentile",
        n_resamples=n_resamples,
        batch=max(1, _BATCH_VALUES // len(differences)),
        rng=np.random.default_rng(seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
