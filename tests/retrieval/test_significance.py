"""The randomisation test against full enumeration, the interval against theory."""

from itertools import product

import numpy as np
import pytest

from modeling_condenser.retrieval.significance import compare


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
