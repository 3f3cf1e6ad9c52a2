"""Fused runs: sums worked out by hand, missing passages, ties and depth."""

from modeling_condenser.retrieval.fusion import Fusion, reciprocal_rank_fusion, weighted_sum

# Mean 3, deviation 1: a is +1, b is -1.
BM25 = {"q": {"a": 4.0, "b": 2.0}}
# Mean 5, variance (16 + 4 * 1) / 5 = 4, deviation 2: b is +2, the others are -0.5.
DENSE = {"q": {"b": 9.0, "f": 4.0, "e": 4.0, "d": 4.0, "c": 4.0}}


def test_reciprocal_ranks_are_summed_and_equal_scores_ranked_by_id():
    bm25 = {"q": {"c": 1.0, "b": 2.0, "a": 3.0}}  # ranks: a 1, b 2, c 3
    dense = {"q": {"b": 0.9, "d": 0.5}}  # ranks: b 1, d 2
    fused = reciprocal_rank_fusion([bm25, dense])
    assert fused == {"q": {"b": 1 / 62 + 1 / 61, "a": 1 / 61, "d": 1 / 62, "c": 1 / 63}}
    assert list(fused["q"]) == ["b", "a", "d", "c"]
    equal = reciprocal_rank_fusion([{"q": {"b": 1.0, "a": 1.0}}])
    assert list(equal["q"].items()) == [("a", 1 / 61), ("b", 1 / 62)]


def test_standardised_scores_are_summed_and_a_missing_one_is_the_lowest():
    fused = weighted_sum([BM25, DENSE], [0.25, 0.75])
    assert list(fused["q"].items()) == [
        ("b", 1.25),  # 0.25 * -1 + 0.75 * 2
        ("a", -0.125),  # 0.25 * 1 + 0.75 * -0.5
        *((passage, -0.625) for passage in "cdef"),  # 0.25 * -1 + 0.75 * -0.5
    ]
    equal = {"q": {"a": 0.1, "b": 0.1, "c": 0.1}}  # the mean of the three is not 0.1 when rounded
    for other in (equal, {"q": {"c": 7.0}}):  # c is not in BM25, where b is lowest
        assert weighted_sum([BM25, other], [0.5, 0.5])["q"] == {"a": 0.5, "b": -0.5, "c": -0.5}


def test_a_query_of_one_run_is_fused_too():
    one, other = {"q1": {"a": 1.0}, "q3": {}}, {"q2": {"b": 5.0}}
    fused = reciprocal_rank_fusion([one, other])
    assert fused == {"q1": {"a": 1 / 61}, "q3": {}, "q2": {"b": 1 / 61}}
    assert weighted_sum([one, other], [0.5, 0.5]) == {"q1": {"a": 0.0}, "q3": {}, "q2": {"b": 0.0}}


def test_a_fusion_weighs_the_dense_run_and_cuts_at_the_depth():
    fused = Fusion(0.75).fuse(BM25, DENSE, depth=3)
    assert fused == {"q": {"b": 1.25, "a": -0.125, "c": -0.625}}
    assert Fusion().fuse(BM25, DENSE, depth=1) == {"q": {"b": 1 / 62 + 1 / 61}}
    assert str(Fusion()) == "reciprocal rank fusion (k = 60)"
    assert str(Fusion(0.3)) == "a sum of standardised scores (weights 0.7 and 0.3)"
