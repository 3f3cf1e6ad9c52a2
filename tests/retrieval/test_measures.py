"""Measures: exact values by hand, and agreement with trec_eval's own code (pytrec_eval)."""

import math

import numpy as np
import pytest
import pytrec_eval

from modeling_condenser.retrieval.measures import evaluate_run

LOG2_3 = math.log2(3)


def test_measures_of_a_hand_made_run() -> None:
    qrels = {
        "q1": {"a": 2, "b": 1, "c": 0},  # found third, second, first
        "q2": {"d": 1, "x": 1},  # d first, x never
    }
    run = {"q1": {"c": 3.0, "b": 2.0, "a": 1.0}, "q2": {"d": 0.5, "a": 0.4}}
    evaluation = evaluate_run(qrels, run)
    assert evaluation.per_query["MRR@10"] == {"q1": 0.5, "q2": 1.0}
    assert evaluation.per_query["nDCG@10"] == pytest.approx(
        {"q1": (1 / LOG2_3 + 2 / 2) / (2 + 1 / LOG2_3), "q2": 1 / (1 + 1 / LOG2_3)}
    )
    assert evaluation.per_query["R@100"] == {"q1": 1.0, "q2": 0.5}
    assert evaluation.means["MRR@10"] == 0.75
    assert evaluation.means["R@100"] == 0.75
    assert list(evaluation.means) == ["MRR@10", "nDCG@10", "R@100"]


def test_a_relevant_passage_beyond_the_cut_off_counts_for_nothing() -> None:
    run = {"q": {f"p{i:02d}": -float(i) for i in range(1, 21)}}
    qrels = {"q": {"p11": 1}}
    means = evaluate_run(qrels, run, measures=["MRR@10", "MRR@11", "R@10", "R@11"]).means
    assert means == {"MRR@10": 0.0, "MRR@11": pytest.approx(1 / 11), "R@10": 0.0, "R@11": 1.0}


def test_other_families_have_their_textbook_values() -> None:
    qrels = {"q": {"a": 1, "b": 1, "c": 1}}
    run = {"q": {"a": 4.0, "x": 3.0, "b": 2.0, "y": 1.0}}
    means = evaluate_run(qrels, run, measures=["P@4", "MAP@100", "Success@1"]).means
    assert means == {"P@4": 0.5, "MAP@100": pytest.approx((1 + 2 / 3) / 3), "Success@1": 1.0}


def test_a_query_without_results_counts_as_zero() -> None:
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 1}, "q4": {"a": 1}}
    evaluation = evaluate_run(qrels, {"q1": {"a": 1.0}, "q2": {}})
    for measure in ("MRR@10", "nDCG@10", "R@100"):
        assert evaluation.per_query[measure] == {"q1": 1.0, "q2": 0.0, "q3": 0.0, "q4": 0.0}
        assert evaluation.means[measure] == 0.25


def test_queries_that_nobody_can_answer_or_that_nobody_judged_are_left_out() -> None:
    qrels = {"judged": {"a": 1}, "none": {"a": 0, "b": -1}}
    run = {"judged": {"a": 1.0}, "none": {"a": 1.0}, "extra": {"a": 1.0}}
    evaluation = evaluate_run(qrels, run)
    assert evaluation.unanswerable == ("none",)
    assert evaluation.per_query["MRR@10"] == {"judged": 1.0}
    assert evaluation.means == {"MRR@10": 1.0, "nDCG@10": 1.0, "R@100": 1.0}


def test_every_measure_breaks_ties_by_ascending_id() -> None:
    run = {"q": {"c": 1.0, "b": 1.0, "a": 1.0 + 1e-12, "d": 1.0}}  # one value in float32
    measures = ["MRR@10", "nDCG@10", "P@1", "R@1"]
    first = evaluate_run({"q": {"a": 1}}, run, measures=measures).means
    assert first == {"MRR@10": 1.0, "nDCG@10": 1.0, "P@1": 1.0, "R@1": 1.0}
    third = evaluate_run({"q": {"c": 1}}, run, measures=measures).means
    assert third == {"MRR@10": pytest.approx(1 / 3), "nDCG@10": 0.5, "P@1": 0.0, "R@1": 0.0}


def test_values_agree_with_trec_eval() -> None:
    rng = np.random.default_rng(0)
    passages = [f"p{i}" for i in range(300)]
    qrels, run = {}, {}
    for query in (f"q{i}" for i in range(40)):
        grades = rng.integers(0, 4, size=25)
        qrels[query] = {p: int(g) for p, g in zip(rng.choice(passages, 25, False), grades)}  # noqa: B905
        scores = rng.permutation(200) / 7  # no ties
        run[query] = {p: float(s) for p, s in zip(rng.choice(passages, 200, False), scores)}  # noqa: B905
    names = {"ndcg_cut_10", "recall_100"}
    expected = pytrec_eval.RelevanceEvaluator(qrels, names).evaluate(run)
    top = {q: dict(sorted(s.items(), key=lambda i: -i[1])[:10]) for q, s in run.items()}
    ranks = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(top)
    evaluation = evaluate_run(qrels, run)
    for query in qrels:
        values = {name: evaluation.per_query[name][query] for name in evaluation.means}
        assert values == pytest.approx(
            {
                "MRR@10": ranks[query]["recip_rank"],
                "nDCG@10": expected[query]["ndcg_cut_10"],
                "R@100": expected[query]["recall_100"],
            }
        )
    assert 0 < evaluation.means["MRR@10"] < 1


def test_an_unknown_measure_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown measure 'NDCG@20'.* did you mean 'nDCG@20'"):
        evaluate_run({"q": {"a": 1}}, {}, measures=["NDCG@20"])
    with pytest.raises(ValueError, match="unknown measure 'MRR'.* did you mean 'MRR@10'"):
        evaluate_run({"q": {"a": 1}}, {}, measures=["MRR"])


def test_qrels_without_anything_relevant_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the 1 judged queries has a relevant passage"):
        evaluate_run({"q": {"a": 0}}, {"q": {"a": 1.0}})
