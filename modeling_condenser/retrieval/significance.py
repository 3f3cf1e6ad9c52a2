"""Does a system differ from a baseline, or is it the choice of queries?

In: one measure's values per query for two systems, over the same queries. Out: the mean difference,
the p value of a paired randomisation test and a bootstrap confidence interval. The randomisation
test is the one that Smucker, Allan & Carterette (2007) recommend for retrieval experiments.
It speaks about the sample of queries only, not about the training seed.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

_BATCH_VALUES = 2_000_000  # resampled values held at once: 16 MB


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
        n_resamples: resamples for the test and for the interval. With n queries and
            2**n <= n_resamples the test enumerates all sign flips and is exact; otherwise the
            smallest p value it can give is 2 / (n_resamples + 1).
        seed: seeds both.

    Returns:
        Means, difference, p value and interval. If the systems agree on every query, p is 1 and
        the interval (0, 0).

    Raises:
        ValueError: the queries differ, or there are fewer than two.
    """
    _check_queries(system, baseline)
    query_ids = sorted(system)  # not the mapping's order, on which a seeded result would depend
    system_values = np.array([system[q] for q in query_ids], dtype=np.float64)  # (Q,)
    baseline_values = np.array([baseline[q] for q in query_ids], dtype=np.float64)  # (Q,)
    differences = system_values - baseline_values  # (Q,)
    return Comparison(
        mean_system=float(system_values.mean()),
        mean_baseline=float(baseline_values.mean()),
        difference=float(differences.mean()),
        p_value=_randomisation_p(differences, n_resamples=n_resamples, seed=seed),
        interval=_bootstrap_interval(differences, n_resamples=n_resamples, seed=seed),
    )


def _check_queries(system: Mapping[str, float], baseline: Mapping[str, float]) -> None:
    apart = sorted(system.keys() ^ baseline.keys())
    if apart:
        raise ValueError(
            f"the two systems were measured on different queries ({len(system)} and"
            f" {len(baseline)}; {len(apart)} in one only, such as {apart[0]!r}): expected the same;"
            " evaluate both runs against the same qrels"
        )
    if len(system) < 2:
        raise ValueError(f"{len(system)} queries to compare on, expected at least 2: use more")


def _randomisation_p(differences: np.ndarray, *, n_resamples: int, seed: int) -> float:
    if not differences.any():
        return 1.0
    # Exchanging the systems on a query flips the sign of its difference, and with one sample
    # that is what scipy's permutation_type="samples" does.
    result = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        alternative="two-sided",
        n_resamples=n_resamples,
        batch=max(1, _BATCH_VALUES // len(differences)),
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


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
