"""Tests against full enumeration, theory and textbook formulas; corrections by hand."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from modeling_condenser.evaluation.significance import (
    compare,
    compare_in_groups,
    correct,
    holm,
    mean_interval,
)


def values(numbers: list[float]) -> dict[str, float]:
    return {f"q{i}": number for i, number in enumerate(numbers)}


def enumerated_p(differences: list[float]) -> float:
    """Share of all sign flips whose mean is as far from 0 as the observed one."""
    observed = abs(np.mean(differences))
    flips = product((1, -1), repeat=len(differences))
    extreme = [abs(np.mean(np.multiply(differences, f))) >= observed - 1e-12 for f in flips]
    return float(np.mean(extreme))


@pytest.mark.parametrize(
    "differences",
    [[0.5, 0.25, -0.125, 1.0, 0.75], [1.0, 1.0, 1.0], [0.5, -0.5], [0.5, -0.25, 0.125, 0.5]],
)
@pytest.mark.parametrize("n_equal", [0, 60])  # queries, which do not count for exactness
def test_few_queries_get_the_exact_p_value(differences: list[float], n_equal: int) -> None:
    expected = enumerated_p(differences)
    differences = [*differences, *[0.0] * n_equal]
    baseline = np.linspace(0.1, 0.3, len(differences))
    comparison = compare(values(list(baseline + differences)), values(list(baseline)))
    assert comparison.p_value == pytest.approx(expected)
    assert comparison.difference == pytest.approx(np.mean(differences))


def test_many_queries_come_near_the_normal_theory() -> None:
    rng = np.random.default_rng(0)
    baseline = rng.random(400)
    differences = rng.normal(0.02, 0.2, size=400)
    comparison = compare(values(list(baseline + differences)), values(list(baseline)))
    error = differences.std(ddof=1) / 20
    low, high = differences.mean() - 1.96 * error, differences.mean() + 1.96 * error
    assert comparison.interval == pytest.approx((low, high), abs=0.1 * error)
    # The same test by flipping signs in plain NumPy; 0.015 is some three standard errors.
    flips = rng.choice((1.0, -1.0), size=(10_000, 400))
    naive = np.mean(abs((flips * differences).mean(axis=1)) >= abs(differences.mean()))
    assert comparison.p_value == pytest.approx(naive, abs=0.015)
    # The smallest p-value counts the observed difference once.
    assert compare(values([0.75] * 40), values([0.5] * 40)).p_value == 1 / 10_001


def test_the_seed_decides_and_the_order_of_queries_does_not() -> None:
    rng = np.random.default_rng(1)
    system, baseline = values(list(rng.random(50))), values(list(rng.random(50)))
    first = compare(system, baseline, seed=7)
    turned = dict(reversed(system.items()))
    assert compare(turned, baseline, seed=7) == first
    assert compare(system, baseline, seed=8).interval != first.interval


def test_the_grouped_t_test_pairs_the_means_of_ten_random_groups() -> None:
    system, baseline = {}, {}
    rng = np.random.default_rng(5)
    for i, value in enumerate(rng.random(40)):
        system[f"q{i:02d}"], baseline[f"q{i:02d}"] = value + 0.02 * i, value
    order = np.random.default_rng(3).permutation(40)
    groups = [set(order[4 * g : 4 * g + 4].tolist()) for g in range(10)]
    means = [
        (np.mean([system[f"q{i:02d}"] for i in g]), np.mean([baseline[f"q{i:02d}"] for i in g]))
        for g in groups
    ]
    expected = stats.ttest_rel(*zip(*means, strict=True)).pvalue
    assert compare_in_groups(system, baseline, seed=3) == pytest.approx(expected)
    turned = dict(reversed(system.items()))
    assert compare_in_groups(turned, baseline, seed=3) == pytest.approx(expected)
    assert compare_in_groups(system, baseline, seed=4) != pytest.approx(expected)


def test_the_grouped_t_test_has_its_edges() -> None:
    same = values([0.1, 0.7] * 10)
    assert compare_in_groups(same, same) == 1.0
    assert compare_in_groups({q: v + 0.1 for q, v in same.items()}, same) == 0.0
    assert compare_in_groups(values([0.1] * 9), values([0.2] * 9)) is None


def test_holm_raises_the_smallest_p_value_by_the_number_of_tests() -> None:
    # 0.005 x 4, 0.01 x 3, 0.03 x 2 and 0.04 x 1, which is less than 0.06 before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.01, 0.9]) == pytest.approx([1.0, 0.03, 1.0])
    assert holm([]) == []


def test_a_table_of_comparisons_is_corrected_together() -> None:
    base = values([0.0, 0.5, 1.0, 0.25, 0.5, 1.0])
    better = values([1.0, 1.0, 1.0, 0.50, 1.0, 1.0])
    mixed = values([1.0, 0.5, 0.5, 0.25, 0.5, 0.1 + 0.9])
    found = correct({"better": compare(better, base), "mixed": compare(mixed, base)})
    first, second = found["better"], found["mixed"]
    assert (first.better, first.equal, first.worse) == (4, 2, 0)
    assert (second.better, second.equal, second.worse) == (1, 4, 1)
    assert (first.mean_system, first.mean_baseline) == (5.5 / 6, 3.25 / 6)
    # All 2^6 sign flips: those of the two zeros change nothing, 2 of the other 16 are as extreme.
    assert first.p_value == 2 / 16
    assert first.p_adjusted == 2 * 2 / 16  # Holm: the smallest times two
    assert second.p_adjusted == max(first.p_adjusted, second.p_value)
    assert compare(better, base).p_adjusted == 2 / 16


def test_edge_cases_of_comparisons() -> None:
    in_last_bits = compare(values([0.1 + 0.2, 1]), values([0.3, 1]))
    assert (in_last_bits.better, in_last_bits.equal, in_last_bits.worse) == (0, 2, 0)
    single = compare(values([1.0]), values([0.5]))
    assert (single.difference, single.p_value, single.better) == (0.5, 1.0, 1)
    assert single.interval == mean_interval(values([1.0])) == (-math.inf, math.inf)
    equal = compare(values([0.2, 0.4, 0.9]), values([0.2, 0.4, 0.9]))
    assert (equal.p_value, equal.interval, equal.difference) == (1.0, (0.0, 0.0), 0.0)
    constant = compare(values([0.75, 0.5, 1.0, 0.25]), values([0.5, 0.25, 0.75, 0.0]))
    assert (constant.p_value, constant.interval) == (2 / 2**4, (0.25, 0.25))


def test_the_interval_of_a_mean_is_that_of_theory() -> None:
    drawn = np.random.default_rng(1).random(1000)
    half = 1.96 * drawn.std() / np.sqrt(1000)
    expected = (drawn.mean() - half, drawn.mean() + half)
    assert mean_interval(values(list(drawn))) == pytest.approx(expected, abs=0.002)


def test_systems_on_different_queries_are_refused() -> None:
    for test in (compare, compare_in_groups):
        with pytest.raises(ValueError, match="different queries .2 and 3"):
            test(values([0.1, 0.2]), values([0.1, 0.2, 0.3]))


def test_holm_rejects_what_its_step_down_procedure_rejects() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        p_values = (rng.random(7) ** 3).tolist()
        rejected = set()
        for step, i in enumerate(np.argsort(p_values).tolist()):  # as Holm (1979) has it
            if p_values[i] > 0.05 / (7 - step):
                break
            rejected.add(i)
        assert {i for i, p in enumerate(holm(p_values)) if p <= 0.05} == rejected


def test_the_grouped_t_test_rejects_a_true_hypothesis_one_time_in_twenty() -> None:
    rng = np.random.default_rng(0)
    p_values = [
        compare_in_groups(values(list(rng.normal(size=25))), values(list(rng.normal(size=25))))
        for _ in range(1000)
    ]
    # 0.05 give or take three standard errors.
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.05, abs=0.021)
