"""The choice of a fusion, on queries whose best weights follow by hand."""

from modeling_condenser.evaluation.fusion_choice import choose_fusion
from modeling_condenser.retrieval.fusion import Fusion

QRELS = {"q1": {"z": 1}, "q2": {"r": 1}}
# q1: standardised, z is +2 by BM25 and -0.5 by vectors, x the other way round. With weight w for
# vectors, z is 2 - 2.5 w and x is 2.5 w - 0.5: z is first below w = 0.5. Their ranks are swapped,
# so their reciprocal ranks tie, and x is first by its id.
# q2: x is +1 and r -1 by BM25; by vectors, r is +3 (of 10 scores, one of which stands out), and
# the others are -1/3, as is x, which is missing. r is 4 w - 1 and x is 1 - 4/3 w: r is first above
# w = 0.375. By reciprocal ranks it is first too: 1/62 + 1/61 against 1/61.
BM25 = {"q1": {"z": 9.0, "x": 4.0, "a1": 4.0, "a2": 4.0, "a3": 4.0}, "q2": {"x": 4.0, "r": 2.0}}
DENSE = {
    "q1": {"x": 9.0, "z": 4.0, "b1": 4.0, "b2": 4.0, "b3": 4.0},
    "q2": {"r": 10.0, **{f"c{i}": 0.0 for i in range(9)}},
}


def test_the_only_weight_that_is_right_for_all_queries_is_chosen() -> None:
    assert choose_fusion(BM25, DENSE, QRELS) == Fusion("weighted", 0.4)


def test_of_equally_good_fusions_the_first_is_chosen() -> None:
    assert choose_fusion(BM25, DENSE, {"q2": QRELS["q2"]}) == Fusion("rrf")
    assert choose_fusion(BM25, DENSE, {"q1": QRELS["q1"]}) == Fusion("weighted", 0.1)


def test_the_measure_decides() -> None:
    assert choose_fusion(BM25, DENSE, QRELS, measure="R@100") == Fusion("rrf")
