"""Which systems differ: many comparisons at once, corrected together.

In: values per query for several systems. Out: a `Contrast` for each pair and measure: means,
difference, interval, how many queries went which way, and a p-value that holds for the whole table
(Holm's correction). A table of a report is one list of contrasts, so that none of its figures
stands there without its answer to whether it differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import stats
from tqdm.auto import tqdm

from .significance import Comparison, compare, compare_in_groups, holm

ALPHA = 0.05
"""A difference whose corrected p-value is below this is called significant."""

N_RESAMPLES = 10_000
_BATCH_VALUES = 2_000_000  # resampled values held at once: 16 MB

# One ranking can give two values that differ in the last bits, where sums are taken in other order.
_SAME = 1e-9

Values = Mapping[str, float]
"""Query id -> value of one measure for one system."""


class Pair(NamedTuple):
    """Two systems to compare in one measure, on the same queries."""

    system: str
    baseline: str
    measure: str
    system_values: Values
    baseline_values: Values


@dataclass(frozen=True)
class Contrast:
    """A system against another in one measure.

    Attributes:
        system: whose difference it is.
        baseline: what it is compared with.
        measure: such as "MRR@10".
        n_queries: that both were measured on.
        mean_system: over these queries.
        mean_baseline: over these queries.
        better: queries on which the system's value is higher.
        equal: queries on which both have the same value, to 1e-9.
        worse: queries on which the system's value is lower.
        interval: 95 % bootstrap interval of the mean difference; None below two queries.
        p_value: of the paired randomisation test; None below two queries.
        p_adjusted: the same after Holm's correction over the list that the contrast belongs to.
    """

    system: str
    baseline: str
    measure: str
    n_queries: int
    mean_system: float
    mean_baseline: float
    better: int
    equal: int
    worse: int
    interval: tuple[float, float] | None
    p_value: float | None
    p_adjusted: float | None

    @property
    def difference(self) -> float:
        """Mean of system minus baseline."""
        return self.mean_system - self.mean_baseline

    @property
    def is_significant(self) -> bool:
        """Whether a difference was shown, at `ALPHA` after the correction."""
        return self.p_adjusted is not None and self.p_adjusted < ALPHA


class GroupTest(NamedTuple):
    """A pair by the thesis's paired t-test over ten groups of queries (section 4.4)."""

    p_value: float | None
    """None where there are too few queries for ten groups."""
    p_adjusted: float | None


class QueryDifference(NamedTuple):
    """One query on which two systems differ."""

    query_id: str
    system: float
    baseline: float

    @property
    def difference(self) -> float:
        return self.system - self.baseline


def contrast(pairs: Sequence[Pair], *, seed: int = 0, progress: bool = False) -> list[Contrast]:
    """Compare pairs of systems, with p-values corrected over all of them.

    Args:
        pairs: in any order; each needs the same queries in both mappings, at least one.
        seed: of the tests and intervals.
        progress: whether to show a progress bar.

    Returns:
        One contrast a pair, in order. A pair with fewer than two queries has means and no test.

    Raises:
        ValueError: the two systems of a pair were measured on different queries, or on none.
    """
    shown = progress and len(pairs) > 0
    comparisons = [_compare(p, seed) for p in tqdm(pairs, desc="comparing", disable=not shown)]
    adjusted = adjust([c.p_value if c else None for c in comparisons])
    return [
        _contrast_of(pair, comparison, p)
        for pair, comparison, p in zip(pairs, comparisons, adjusted, strict=True)
    ]


def _compare(pair: Pair, seed: int) -> Comparison | None:
    if pair.system_values.keys() == pair.baseline_values.keys():
        if not pair.system_values:
            raise ValueError(
                f"{pair.system} and {pair.baseline} have no query to be compared on in"
                f" {pair.measure}: leave the pair out"
            )
        if len(pair.system_values) == 1:
            return None
    return compare(pair.system_values, pair.baseline_values, seed=seed)


def _contrast_of(pair: Pair, comparison: Comparison | None, p_adjusted: float | None) -> Contrast:
    differences = [value - pair.baseline_values[q] for q, value in pair.system_values.items()]
    better = sum(difference > _SAME for difference in differences)
    worse = sum(difference < -_SAME for difference in differences)
    return Contrast(
        system=pair.system,
        baseline=pair.baseline,
        measure=pair.measure,
        n_queries=len(differences),
        mean_system=sum(pair.system_values.values()) / len(differences),
        mean_baseline=sum(pair.baseline_values.values()) / len(differences),
        better=better,
        equal=len(differences) - better - worse,
        worse=worse,
        interval=comparison.interval if comparison else None,
        p_value=comparison.p_value if comparison else None,
        p_adjusted=p_adjusted,
    )


def adjust(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction over those that there are; None stays None."""
    tested = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(tested) for p in p_values]


def all_pairs(values: Mapping[str, Values], *, measure: str) -> list[Pair]:
    """Each two systems once, the later one as the system and the earlier one as its baseline."""
    return [
        Pair(later, earlier, measure, values[later], values[earlier])
        for earlier, later in combinations(values, 2)
    ]


def group_tests(pairs: Sequence[Pair], *, seed: int = 0) -> list[GroupTest]:
    """The thesis's t-test for each pair, corrected over all of them."""
    p_values = [
        compare_in_groups(pair.system_values, pair.baseline_values, seed=seed)
        if len(pair.system_values) > 1
        else None
        for pair in pairs
    ]
    return [GroupTest(p, a) for p, a in zip(p_values, adjust(p_values), strict=True)]


def wins_and_losses(
    system: Values, baseline: Values, *, most: int = 10
) -> tuple[list[QueryDifference], list[QueryDifference]]:
    """The queries on which a system gains and loses most.

    Args:
        system: query id -> value.
        baseline: query id -> value, for the same queries.
        most: of each to return.

    Returns:
        Wins, the greatest first, and losses, the greatest first; of two that are equal, the one
        with the smaller query id comes first.
    """
    differences = [QueryDifference(q, value, baseline[q]) for q, value in system.items()]
    wins = sorted(
        (d for d in differences if d.difference > _SAME), key=lambda d: (-d.difference, d.query_id)
    )
    losses = sorted(
        (d for d in differences if d.difference < -_SAME), key=lambda d: (d.difference, d.query_id)
    )
    return wins[:most], losses[:most]


def mean_interval(values: Values, *, seed: int = 0) -> tuple[float, float] | None:
    """95 % percentile bootstrap interval of a mean over queries; None below two queries."""
    if len(values) < 2:
        return None
    result = stats.bootstrap(
        (np.array([values[q] for q in sorted(values)], dtype=np.float64),),
        np.mean,
        vectorized=True,
        confidence_level=0.95,
        method="percentile",
        n_resamples=N_RESAMPLES,
        batch=max(1, _BATCH_VALUES // len(values)),
        rng=np.random.default_rng(seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
