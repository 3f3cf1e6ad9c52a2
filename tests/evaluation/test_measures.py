"""Measures: exact values by hand, and plain definitions."""

import logging
import math

import ir_measures
import numpy as np
import pytest
from datasets import Dataset

from modeling_condenser.evaluation.measures import evaluate_run

ALL_MEASURES = [
    *("MRR", "MRR@10", "MRR@100", "nDCG", "nDCG@5", "nDCG@10", "nDCG@100", "nDCG@1000"),
    *("R@20", "R@100", "R@1000", "MAP", "MAP@10", "R-Prec", "P@5", "Success@1", "Success@10"),
    *("MRR(rel=2)@10", "MRR(rel=2)", "MAP(rel=2)", "MAP(rel=2)@100", "R(rel=2)@1000"),
    *("R-Prec(rel=2)", "P(rel=2)@10", "Success(rel=3)@5"),
]


def naive(name: str, grades: dict[str, int], ranking: list[str]) -> float:
    """A measure of one query from its definition."""
    family, _, cutoff = name.partition("@")
    family, _, level = family.rstrip(")").partition("(rel=")
    k = int(cutoff) if cutoff else len(ranking)
    relevant = {p for p, grade in grades.items() if grade >= int(level or 1)}
    hits = [rank for rank, p in enumerate(ranking[:k], 1) if p in relevant]
    if family == "nDCG":
        gains = [max(grades.get(p, 0), 0) for p in ranking[:k]]
        best = sorted((g for g in grades.values() if g > 0), reverse=True)
        best = best[: int(cutoff)] if cutoff else best
        dcg, ideal = (sum(g / math.log2(r + 1) for r, g in enumerate(x, 1)) for x in (gains, best))
        return dcg / ideal
    if not relevant:
        return 0.0
    r = len(relevant)
    return {
        "MRR": 1 / hits[0] if hits else 0.0,
        "R": len(hits) / r,
        "MAP": sum(n / rank for n, rank in enumerate(hits, 1)) / r,
        "R-Prec": sum(rank <= r for rank in hits) / r,
        "P": len(hits) / k if k else 0.0,
        "Success": float(bool(hits)),
    }[family]


def test_every_measure_is_what_its_definition_says():
    rng = np.random.default_rng(0)
    passages = [f"p{i}" for i in range(300)]
    qrels, run = {}, {}
    for query in (f"q{i}" for i in range(30)):
        judged, actual = (rng.choice(passages, n, False).tolist() for n in (25, 200))
        grades = [3, *rng.integers(-1, 4, size=24).tolist()]
        scores = rng.integers(0, 40, size=200)  # with ties
        qrels[query] = dict(zip(judged, grades, strict=True))
        run[query] = dict(zip(actual, (scores / 7).tolist(), strict=True))
    evaluation = evaluate_run(qrels, run, measures=ALL_MEASURES)
    for name in ALL_MEASURES:
        expected = {
            query: naive(name, grades, sorted(run[query], key=lambda p: (-run[query][p], p)))
            for query, grades in qrels.items()
        }
        assert evaluation.per_query[name] == pytest.approx(expected, abs=1e-12), name
        assert evaluation.means[name] == pytest.approx(np.mean(list(expected.values()))), name
        assert 0 < evaluation.means[name] < 1, name


def test_which_queries_count(caplog):
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 1}, "low": {"a": 1, "b": 0}}
    qrels |= {"none": {"a": 0, "b": -1}, "empty": {}}
    run = {"q1": {"a": 1.0}, "q2": {}, "low": {"a": 1.0}, "none": {"a": 1.0}, "extra": {"a": 1.0}}
    evaluation = evaluate_run(qrels, run, measures=["MRR@10", "MRR(rel=2)@10"])
    assert evaluation.per_query == {
        "MRR@10": {"q1": 1.0, "q2": 0.0, "q3": 0.0, "low": 1.0},  # without results: 0
        "MRR(rel=2)@10": {"q1": 0.0, "q2": 0.0, "q3": 0.0, "low": 0.0},
    }
    assert evaluation.means["MRR@10"] == 0.5
    assert evaluation.unanswerable == ("none", "empty")
    assert "2 of 4 queries have no results" in caplog.text


TEXTS = {
    "p1": "The river Leeds flows north.",
    "p2": "He moved to Kyoto, in 1894, with his sister.",
    "p3": "An engine of party politics.",
    "p4": "KYOTO again",
}
RUN = {
    "where": {"p1": 4.0, "p3": 3.0, "p4": 1.0, "p2": 1.0},  # first hit: p2, third by id
    "what": {"p3": 2.0, "p1": 1.0},  # "art" stands in "party" only
    "when": {"p4": 2.0, "p2": 1.0},
    "nothing": {},
}
PASSAGES = {"_id": list(TEXTS), "title": [""] * 4, "text": list(TEXTS.values())}
ANSWERS = {"where": ("Kyoto", "Kioto"), "what": ("art",), "when": ("1894",)}
ANSWERS |= {"nothing": ("x",), "absent": ("y",), "unknown": ()}
JUDGED = {"answers": ANSWERS, "passages": Dataset.from_dict(PASSAGES)}


def test_hits_are_counted_where_a_text_holds_an_answer():
    assert list(evaluate_run({}, RUN, **JUDGED).means) == ["Hit@20", "Hit@100"]
    actual = evaluate_run({}, RUN, measures=["Hit@1", "Hit@2", "Hit@3", "Hit@100"], **JUDGED)
    others = dict.fromkeys(("where", "what", "nothing", "absent"), 0.0)
    assert actual.per_query["Hit@2"] == {**others, "when": 1.0}
    assert actual.per_query["Hit@3"]["where"] == 1.0
    assert actual.means == {"Hit@1": 0.0, "Hit@2": 0.2, "Hit@3": 0.4, "Hit@100": 0.4}
    assert actual.unanswerable == ("unknown",)


def test_only_a_run_of_others_may_be_too_short(caplog):
    for is_given in (False, True):
        evaluate_run({"q": {"p4": 1}}, {"q": {"p4": 1.0}}, measures=["R@9"], is_given=is_given)
        assert bool(caplog.records) == is_given


def test_answers_and_judgements_are_measured_on_the_same_queries(caplog):
    qrels = {"when": {"p4": 1}, "where": {"p1": 0}, "what": {"p1": 2}}
    with caplog.at_level(logging.WARNING):
        actual = evaluate_run(qrels, RUN, measures=["Hit@2", "MRR@10"], **JUDGED)
    assert "The run has 2 passages a query, too few for MRR@10." in caplog.text
    hits, reciprocal = {"when": 1.0, "what": 0.0}, {"when": 1.0, "what": 0.5}
    assert actual.per_query == {"Hit@2": hits, "MRR@10": reciprocal}
    assert list(actual.means) == ["Hit@2", "MRR@10"] and actual.unanswerable == ("where",)


ONE, GRADED = {"q": {"a": 1.0}}, {"q": {"a": 1}}


@pytest.mark.parametrize(
    ("qrels", "measure", "message"),
    [
        (GRADED, "NCDG@20", "'NCDG@20' is not a measure: expected MRR, nDCG, R,"),
        (GRADED, "R", "'R' is not a measure: .* with a cut-off"),
        (GRADED, "Hit(rel=2)@5", "is not a measure"),  # answers have no grades
        (GRADED, "P@0", "'P@0' is not a measure"),  # ends the process in trec_eval's code
        (GRADED, "Hit@20", "The collection has no answers"),
        ({"q": {"a": 0}}, "MRR@10", "None of the judged queries has a relevant passage"),
        ({"x": {"a": 1}}, "MRR@10", "The run has none of the judged queries"),
    ],
)
def test_what_cannot_be_measured_is_refused(qrels, measure, message):
    with pytest.raises(ValueError, match=message):
        evaluate_run(qrels, ONE, measures=["MRR@10", measure])


def test_queries_have_numbers_as_names_because_a_provider_needs_them(monkeypatch):
    """gdeval, which computes ERR, reads other names as 0 or refuses them."""
    added = ir_measures.define_byquery(lambda qrels, run: int(run.query_id.iloc[0]) / 4, name="F1")
    monkeypatch.setitem(ir_measures.measures.registry, "F1", added)
    qrels = {"what is": {"p1": 1}, "q/2": {"p2": 1}, "empty": {"p2": 1}}
    run = {"q/2": {"p1": 2.0, "p2": 1.0}, "what is": {"p1": 1.0}}
    actual = evaluate_run(qrels, run, measures=["F1@3"]).per_query
    assert actual == {"F1@3": {"what is": 0.0, "q/2": 0.25, "empty": 0.0}}


def test_the_query_itself_is_not_counted_unless_it_is_judged_relevant():
    """As in BEIR: "a" is its own passage; "b" is another text that has the id of its query."""
    qrels = {"a": {"a2": 1}, "b": {"b": 1}}
    run = {"a": {"a": 3.0, "a2": 2.0, "a3": 1.0}, "b": {"x": 2.0, "b": 1.0}}
    actual = evaluate_run(qrels, run, measures=["MRR@10", "P@1"]).per_query
    assert actual == {"MRR@10": {"a": 1.0, "b": 0.5}, "P@1": {"a": 1.0, "b": 0.0}}
