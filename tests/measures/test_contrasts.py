"""Contrasts against significance's own functions and hand-made examples."""

from statistics import fmean

import numpy as np
import pytest

from modeling_condenser.measures.contrasts import (
    Pair,
    adjust,
    all_pairs,
    contrast,
    group_tests,
    mean_interval,
    wins_and_losses,
)
from modeling_condenser.measures.significance import compare


def values(*numbers: float) -> dict[str, float]:
    return {f"q{i}": number for i, number in enumerate(numbers)}


def test_a_contrast_counts_queries_and_corrects_over_the_list() -> None:
    base = values(0.0, 0.5, 1.0, 0.25, 0.5, 1.0)
    better = values(1.0, 1.0, 1.0, 0.50, 1.0, 1.0)
    mixed = values(1.0, 0.5, 0.5, 0.25, 0.5, 1.0)
    first, second = contrast(
        [Pair("a", "base", "MRR@10", better, base), Pair("b", "base", "MRR@10", mixed, base)]
    )
    assert (first.better, first.equal, first.worse) == (4, 2, 0)
    assert (second.better, second.equal, second.worse) == (1, 4, 1)
    assert first.n_queries == 6
    assert first.difference == pytest.approx(fmean([1, 0.5, 0, 0.25, 0.5, 0]))
    # All 2^6 sign flips: those of the two zeros change nothing, 2 of the other 16 are as extreme.
    assert first.p_value == pytest.approx(2 / 16)
    assert second.p_value == pytest.approx(compare(mixed, base).p_value)
    assert first.interval == compare(better, base).interval
    assert first.p_adjusted == pytest.approx(min(1, 2 * 2 / 16))  # Holm: the smallest times two
    assert second.p_adjusted == pytest.approx(max(first.p_adjusted, second.p_value))


def test_values_that_differ_in_the_last_bits_are_equal() -> None:
    [c] = contrast([Pair("a", "b", "nDCG@10", values(0.1 + 0.2, 1), values(0.3, 1))])
    assert (c.better, c.equal, c.worse) == (0, 2, 0)


def test_one_query_has_means_and_no_test() -> None:
    untested, tested = contrast(
        [
            Pair("a", "b", "MRR@10", values(1.0), values(0.5)),
            Pair("a", "b", "MRR@10", values(1.0, 1.0), values(0.5, 0.0)),
        ]
    )
    assert (untested.mean_system, untested.mean_baseline, untested.better) == (1.0, 0.5, 1)
    assert (untested.p_value, untested.p_adjusted, untested.interval) == (None, None, None)
    assert not untested.is_significant
    assert tested.p_adjusted == tested.p_value  # the untested one does not count


@pytest.mark.parametrize(
    ("system", "baseline", "message"),
    [
        ({}, {}, "have no query to be compared on"),
        (values(1.0), {"other": 1.0}, "different queries"),
        (values(1.0, 0.5), values(1.0), "different queries"),
    ],
)
def test_pairs_without_common_queries_are_refused(
    system: dict[str, float], baseline: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        contrast([Pair("a", "b", "MRR@10", system, baseline)])


def test_nothing_to_compare_gives_nothing() -> None:
    assert contrast([]) == []
    assert adjust([]) == []
    assert adjust([None, 0.01, None, 0.04]) == [
        None,
        pytest.approx(0.02),
        None,
        pytest.approx(0.04),
    ]


def test_all_pairs_names_each_two_systems_once() -> None:
    pairs = all_pairs({"a": values(1.0), "b": values(0.0), "c": values(0.5)}, measure="P@1")
    assert [(p.system, p.baseline) for p in pairs] == [("b", "a"), ("c", "a"), ("c", "b")]
    assert pairs[2].system_values == values(0.5)
    assert pairs[2].baseline_values == values(0.0)


def test_group_tests_see_a_constant_gain_and_no_groups_in_nine_queries() -> None:
    generator = np.random.default_rng(0)
    base = generator.random(200)
    noisy_gain = base + 0.2 + 0.05 * generator.standard_normal(200)
    clear = Pair("a", "b", "MRR@10", values(*noisy_gain), values(*base))
    few = Pair("a", "b", "MRR@10", values(*noisy_gain[:9]), values(*base[:9]))
    gain, untested = group_tests([clear, few])
    assert gain.p_value is not None and gain.p_value < 1e-6
    assert gain.p_adjusted == gain.p_value
    assert untested == (None, None)


def test_wins_and_losses_are_ordered_by_difference_and_then_by_id() -> None:
    system = {"q3": 1.0, "q1": 1.0, "q2": 0.5, "q5": 0.0, "q4": 0.0, "q6": 0.2}
    baseline = {"q3": 0.5, "q1": 0.5, "q2": 0.5, "q5": 1.0, "q4": 0.1, "q6": 0.1 + 0.1}
    wins, losses = wins_and_losses(system, baseline)
    assert [(w.query_id, w.difference) for w in wins] == [("q1", 0.5), ("q3", 0.5)]
    assert [(loss.query_id, loss.difference) for loss in losses] == [("q5", -1.0), ("q4", -0.1)]
    assert [w.query_id for w in wins_and_losses(system, baseline, most=1)[0]] == ["q1"]


def test_the_interval_of_a_mean_is_that_of_theory() -> None:
    drawn = np.random.default_rng(1).random(1000)
    low, high = mean_interval(values(*drawn)) or (0, 0)
    half = 1.96 * drawn.std() / np.sqrt(1000)
    assert low == pytest.approx(drawn.mean() - half, abs=0.002)
    assert high == pytest.approx(drawn.mean() + half, abs=0.002)
    assert mean_interval(values(0.5)) is None
    assert mean_interval(values(0.5, 0.5, 0.5)) == (0.5, 0.5)
