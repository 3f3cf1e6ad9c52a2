"""Tests against full enumeration, theory and textbook formulas; corrections by hand."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from modeling_condenser.evaluation.measures import N_RESAMPLES, compare, correct, holm


def values(numbers) -> dict[str, float]:
    return {f"q{i:03d}": float(number) for i, number in enumerate(numbers)}


def enumerated_p(differences: list[float]) -> float:
    """Share of all sign flips whose mean is as far from 0 as the observed one."""
    observed = abs(np.mean(differences))
    flips = product((1, -1), repeat=len(differences))
    extreme = [abs(np.mean(np.multiply(differences, f))) >= observed - 1e-12 for f in flips]
    return float(np.mean(extreme))


@pytest.mark.parametrize("differences", [[0.5, 0.25, -0.125, 1.0, 0.75], [1.0] * 3, [0.5, -0.5]])
@pytest.mark.parametrize("n_equal", [0, 60])  # queries, which do not count for exactness
def test_few_queries_get_the_exact_p_value(differences, n_equal):
    baseline = np.linspace(0.1, 0.3, len(differences) + n_equal)
    system = baseline.copy()
    system[: len(differences)] += differences
    comparison = compare(values(system), values(baseline))
    assert comparison.p_value == pytest.approx(enumerated_p(differences))
    assert comparison.difference == pytest.approx(sum(differences) / len(baseline))


@pytest.mark.parametrize("n_queries", [2, 37, 900])  # of the last, several batches
def test_the_interval_is_that_of_scipys_bootstrap(n_queries):
    differences = np.random.default_rng(1).normal(size=n_queries)
    comparison = compare(values(differences), values(np.zeros(n_queries)), seed=3)
    expected = stats.bootstrap(
        (differences,),
        np.mean,
        method="percentile",
        n_resamples=N_RESAMPLES,
        batch=1000,
        rng=np.random.default_rng(3),
    ).confidence_interval
    assert comparison.interval == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_many_queries_come_near_the_normal_theory():
    rng = np.random.default_rng(0)
    baseline = rng.random(400)
    differences = rng.normal(0.02, 0.2, size=400)
    comparison = compare(values(baseline + differences), values(baseline))
    error = differences.std(ddof=1) / 20
    low, high = differences.mean() - 1.96 * error, differences.mean() + 1.96 * error
    assert comparison.interval == pytest.approx((low, high), abs=0.1 * error)
    # The same test by flipping signs in plain NumPy; 0.015 is some three standard errors.
    flips = rng.choice((1.0, -1.0), size=(10_000, 400))
    naive = np.mean(abs((flips * differences).mean(axis=1)) >= abs(differences.mean()))
    assert comparison.p_value == pytest.approx(naive, abs=0.015)
    # The smallest p-value counts the observed difference once.
    assert compare(values([0.75] * 40), values([0.5] * 40)).p_value == 1 / 10_001


def test_the_seed_decides_and_the_order_of_queries_does_not():
    rng = np.random.default_rng(1)
    system, baseline = values(rng.random(50)), values(rng.random(50))
    turned = dict(reversed(system.items()))
    first, other = (compare(system, baseline, seed=seed) for seed in (7, 8))
    assert compare(turned, baseline, seed=7) == first
    assert (other.p_value, other.t_test) != (first.p_value, first.t_test)


def test_counts_and_edge_cases_of_comparisons():
    mixed = compare(values([1.0, 1.0, 0.5, 0.1 + 0.2]), values([0.0, 0.5, 1.0, 0.3]))
    assert (mixed.better, mixed.equal, mixed.worse) == (2, 1, 1)  # equal but for the last bits
    assert (mixed.mean_system, mixed.mean_baseline) == (0.7, 0.45)
    single = compare(values([1.0]), values([0.5]))
    assert (single.difference, single.p_value) == (0.5, 1.0)
    assert single.interval is None
    equal = compare(values([0.2, 0.4, 0.9]), values([0.2, 0.4, 0.9]))
    assert (equal.p_value, equal.interval, equal.difference) == (1.0, (0.0, 0.0), 0.0)
    with pytest.raises(ValueError, match="different queries .2 and 3"):
        compare(values([0.1, 0.2]), values([0.1, 0.2, 0.3]))


def test_the_grouped_t_test_pairs_the_means_of_ten_random_groups():
    baseline = np.random.default_rng(5).random(40)
    system = baseline + 0.02 * np.arange(40)
    order = np.random.default_rng(3).permutation(40).reshape(10, 4)
    expected = stats.ttest_rel(system[order].mean(axis=1), baseline[order].mean(axis=1)).pvalue
    assert compare(values(system), values(baseline), seed=3).t_test == pytest.approx(expected)
    same = values([0.1, 0.7] * 10)
    assert compare(same, same).t_test == 1.0
    assert compare(values([0.1] * 9), values([0.2] * 9)).t_test is None


def test_holm_raises_the_smallest_p_value_by_the_number_of_tests():
    # 0.005 x 4, 0.01 x 3, 0.03 x 2 and 0.04 x 1, which is less than 0.06 before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.01, 0.9]) == pytest.approx([1.0, 0.03, 1.0])
    better = compare(values([0.5] * 6), values([0.0] * 6))  # p = 2 / 2**6
    actual = correct({"a": better, "b": better})
    assert better.mark == "▲" and better.p_adjusted == 2 / 64
    assert {key: c.p_adjusted for key, c in actual.items()} == {"a": 4 / 64, "b": 4 / 64}
    assert actual["a"].mark == "○" and actual["a"].p_value == 2 / 64
