"""Draws: seeded for each query by itself, nested, uniform."""

from collections import Counter

import pytest

from modeling_condenser.mining.candidates import Candidate
from modeling_condenser.mining.drawing import draw_order

CANDIDATES = [Candidate(rank, f"p{rank}", -float(rank)) for rank in range(30, 201)]


def ranks(**changes: object) -> list[int]:
    settings = {"query_id": "q1", "seed": 0, "sampling": "random", **changes}
    return [candidate.rank for candidate in draw_order(CANDIDATES, **settings)]  # type: ignore[arg-type]


def test_a_draw_is_a_permutation_that_seed_and_query_decide():
    assert sorted(ranks()) == list(range(30, 201))
    assert ranks() == ranks() != list(range(30, 201))
    assert ranks(seed=1) != ranks()
    assert ranks(query_id="q2") != ranks()


def test_top_is_the_order_of_the_ranks():
    assert ranks(sampling="top") == list(range(30, 201))


@pytest.mark.parametrize("missing", [{30}, {200}, set(range(31, 200, 2))])
def test_a_candidate_less_changes_nothing_about_the_others(missing):
    left = [candidate for candidate in CANDIDATES if candidate.rank not in missing]
    order = draw_order(left, query_id="q1", seed=0, sampling="random")
    assert [candidate.rank for candidate in order] == [r for r in ranks() if r not in missing]


def test_every_candidate_is_first_equally_often():
    few = CANDIDATES[:5]
    first = Counter(
        draw_order(few, query_id=f"q{i}", seed=3, sampling="random")[0].rank for i in range(5000)
    )
    assert set(first) == {30, 31, 32, 33, 34}
    # Five standard deviations of a binomial with n 5000 and p 0.2.
    assert all(abs(count - 1000) < 142 for count in first.values())


def test_no_candidates_give_no_order():
    assert draw_order([], query_id="é", seed=0, sampling="random") == []
