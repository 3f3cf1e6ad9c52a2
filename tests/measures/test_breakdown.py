"""Breakdowns by hand-made groups."""

import pytest

from modeling_condenser.measures.breakdown import break_down, group_by_length
from modeling_condenser.measures.significance import compare

BASE = {"q1": 0.0, "q2": 0.5, "q3": 1.0, "q4": 0.0, "q5": 0.5}
GOOD = {"q1": 1.0, "q2": 1.0, "q3": 1.0, "q4": 0.5, "q5": 0.5}
BAD = {"q1": 0.0, "q2": 0.0, "q3": 0.0, "q4": 0.0, "q5": 0.5}


def test_each_group_has_means_and_comparisons_of_its_own_queries() -> None:
    found = break_down(
        {"base": BASE, "good": GOOD, "bad": BAD},
        {"number": ["q1", "q2", "q4"], "human": ["q3", "unmeasured"], "location": ["unknown"]},
        by="answer type",
        measure="MRR@10",
        baseline="base",
    )
    number, human = found.groups  # no query of "location" was measured
    assert (number.name, number.n_queries, human.name, human.n_queries) == ("number", 3, "human", 1)
    assert number.means == pytest.approx({"base": 1 / 6, "good": 5 / 6, "bad": 0.0})
    assert list(number.contrasts) == ["good", "bad"]
    good = number.contrasts["good"]
    assert (good.better, good.equal, good.worse) == (3, 0, 0)
    part = {q: (GOOD[q], BASE[q]) for q in ("q1", "q2", "q4")}
    alone = compare({q: a for q, (a, _) in part.items()}, {q: b for q, (_, b) in part.items()})
    assert good.p_value == alone.p_value == pytest.approx(2 / 8)
    assert good.p_adjusted == pytest.approx(2 * 2 / 8)  # two comparisons, those of "number"
    assert human.contrasts["good"].p_adjusted is None  # a single query
    assert human.means == {"base": 1.0, "good": 1.0, "bad": 0.0}
    assert found.n_left_out == 1  # q5


def test_without_a_baseline_nothing_is_compared() -> None:
    found = break_down({"only": BASE}, {"a": ["q1", "q2"]}, by="x", measure="MRR@10", baseline=None)
    assert found.groups[0].means == {"only": 0.25}
    assert found.groups[0].contrasts == {}
    assert found.n_left_out == 3


def test_no_groups_leave_all_queries_out() -> None:
    found = break_down({"only": BASE}, {}, by="x", measure="MRR@10", baseline=None)
    assert found.groups == () and found.n_left_out == 5


@pytest.mark.parametrize(
    ("values", "groups", "baseline", "message"),
    [
        ({}, {}, None, "no system to break down"),
        ({"a": BASE}, {}, "b", "the baseline 'b' is not among the systems"),
        ({"a": BASE, "b": {"q1": 1.0}}, {}, "a", "measured on different queries"),
        ({"a": BASE}, {"x": ["q1"], "y": ["q1"]}, None, "'q1' of group 'y' is in the groups twice"),
        ({"a": BASE}, {"x": ["q2", "q2"]}, None, "'q2' of group 'x' is in the groups twice"),
    ],
)
def test_what_does_not_fit_is_refused(
    values: dict, groups: dict, baseline: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        break_down(values, groups, by="x", measure="MRR@10", baseline=baseline)


def test_queries_are_sorted_by_their_number_of_words() -> None:
    queries = {str(n): " ".join(["word"] * n) for n in (13, 1, 4, 5, 8, 9, 12, 40, 0)}
    queries["spaced"] = "  two \t words\n"
    groups = group_by_length(queries)
    assert groups == {
        "1-4 words": ["1", "4", "spaced"],
        "5-8 words": ["5", "8"],
        "9-12 words": ["9", "12"],
        "13 words or more": ["13", "40"],
    }
    assert list(group_by_length({"a": "one two three four five six"})) == ["5-8 words"]
