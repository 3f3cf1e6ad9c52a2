"""Tests against full enumeration, theory and textbook formulas; corrections by hand."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from modeling_condenser.measures.significance import (
    compare,
    compare_in_groups,
    holm,
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
    [[0.5, 0.25, -0.125, 1.0, 0.75], [1.0, 1.0, 1.0], [0.5, -0.5], [0.0, 0.3, 0.3, -0.1, 0.0, 0.2]],
)
def test_few_queries_get_the_exact_p_value(differences: list[float]) -> None:
    baseline = np.linspace(0.1, 0.3, len(differences))
    comparison = compare(values(list(baseline + differences)), values(list(baseline)))
    assert comparison.p_value == pytest.approx(enumerated_p(differences))
    assert comparison.difference == pytest.approx(np.mean(differences))


def test_only_queries_on_which_the_systems_differ_count_for_exactness() -> None:
    differences = [0.5, -0.25, 0.125, 0.5] + [0.0] * 60
    baseline = np.linspace(0.25, 0.5, 64)
    comparison = compare(values(list(baseline + differences)), values(list(baseline)))
    assert comparison.p_value == enumerated_p(differences[:4]) == 6 / 16


def test_the_smallest_sampled_p_value_counts_the_observed_difference_once() -> None:
    assert compare(values([0.75] * 40), values([0.5] * 40), n_resamples=999).p_value == 1 / 1000


def test_means_and_difference_are_those_of_the_values() -> None:
    comparison = compare(values([1.0, 0.5, 0.0]), values([0.5, 0.25, 0.0]))
    assert comparison.mean_system == 0.5
    assert comparison.mean_baseline == 0.25
    assert comparison.difference == 0.25


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


def test_equal_systems_give_p_1() -> None:
    comparison = compare(values([0.2, 0.4, 0.9]), values([0.2, 0.4, 0.9]))
    assert comparison.p_value == 1.0
    assert comparison.interval == (0.0, 0.0)
    assert comparison.difference == 0.0


def test_a_constant_gain_has_an_interval_of_no_width() -> None:
    comparison = compare(values([0.75, 0.5, 1.0, 0.25]), values([0.5, 0.25, 0.75, 0.0]))
    assert comparison.interval == (0.25, 0.25)
    assert comparison.p_value == 2 / 2**4


def test_the_seed_decides_and_the_order_of_queries_does_not() -> None:
    rng = np.random.default_rng(1)
    system, baseline = values(list(rng.random(50))), values(list(rng.random(50)))
    first = compare(system, baseline, n_resamples=500, seed=7)
    turned = dict(reversed(system.items()))
    assert compare(turned, baseline, n_resamples=500, seed=7) == first
    assert compare(system, baseline, n_resamples=500, seed=8).interval != first.interval


def test_swapping_the_systems_turns_the_sign() -> None:
    system, baseline = values([0.9, 0.3, 0.5]), values([0.1, 0.4, 0.2])
    forth, back = compare(system, baseline), compare(baseline, system)
    assert back.difference == pytest.approx(-forth.difference)
    assert back.p_value == forth.p_value


def test_different_queries_are_refused() -> None:
    with pytest.raises(ValueError, match="different queries .2 and 3; 1 in one only, such as 'q2'"):
        compare(values([0.1, 0.2]), values([0.1, 0.2, 0.3]))
    with pytest.raises(ValueError, match="1 queries to compare on, expected at least 2"):
        compare(values([0.1]), values([0.2]))


def test_a_value_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="query 'q1' has the values nan and 0.2, expected two"):
        compare(values([0.1, math.nan]), values([0.1, 0.2]))


def test_the_grouped_t_test_is_students_where_a_group_is_one_query() -> None:
    rng = np.random.default_rng(0)
    system, baseline = rng.random(10), rng.random(10)
    differences = system - baseline
    t = differences.mean() / (differences.std(ddof=1) / math.sqrt(10))
    expected = 2 * stats.t.sf(abs(t), df=9)
    for seed in (0, 1):
        p = compare_in_groups(values(list(system)), values(list(baseline)), seed=seed)
        assert p == pytest.approx(expected)


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


def test_the_grouped_t_test_rejects_a_true_hypothesis_one_time_in_twenty() -> None:
    rng = np.random.default_rng(0)
    p_values = [
        compare_in_groups(values(list(rng.normal(size=25))), values(list(rng.normal(size=25))))
        for _ in range(1000)
    ]
    # 0.05 give or take three standard errors.
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.05, abs=0.021)


def test_the_grouped_t_test_has_its_edges() -> None:
    same = values([0.1, 0.7] * 10)
    assert compare_in_groups(same, same) == 1.0
    assert compare_in_groups({q: v + 0.1 for q, v in same.items()}, same) == 0.0
    assert compare_in_groups(values([0.1] * 9), values([0.2] * 9)) is None
    assert compare_in_groups(values([0.1, 0.5, 0.7]), values([0.2, 0.3, 0.9]), n_groups=3) < 1
    with pytest.raises(ValueError, match="1 groups, expected at least 2"):
        compare_in_groups(same, same, n_groups=1)
    with pytest.raises(ValueError, match="different queries"):
        compare_in_groups(same, values([0.1, 0.2]))


def test_holm_raises_the_smallest_p_value_by_the_number_of_tests() -> None:
    # 0.005 x 4, 0.01 x 3, 0.03 x 2 and 0.04 x 1, which is less than 0.06 before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.01, 0.9]) == pytest.approx([1.0, 0.03, 1.0])
    assert holm([0.02, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.3]) == [0.3]
    assert holm([]) == []
    with pytest.raises(ValueError, match="a p value of nan, expected from 0 to 1"):
        holm([0.1, math.nan])


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
