"""Measures: exact values by hand, plain definitions, and trec_eval's own code (pytrec_eval)."""

import math

import ir_measures
import numpy as np
import pytest
import pytrec_eval

from modeling_condenser.evaluation import measures
from modeling_condenser.evaluation.measures import evaluate_answers, evaluate_run

LOG2_3 = math.log2(3)

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


def random_judgements_and_run(
    *, ties: bool, n_queries: int = 30
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    rng = np.random.default_rng(0)
    passages = [f"p{i}" for i in range(300)]
    qrels, run = {}, {}
    for query in (f"q{i}" for i in range(n_queries)):
        judged, found = (rng.choice(passages, n, False).tolist() for n in (25, 200))
        grades = [3, *rng.integers(-1, 4, size=24).tolist()]
        scores = rng.integers(0, 40, size=200) if ties else rng.permutation(200)
        qrels[query] = dict(zip(judged, grades, strict=True))
        run[query] = dict(zip(found, (scores / 7).tolist(), strict=True))
    return qrels, run


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


@pytest.mark.parametrize("ties", [False, True])
def test_every_measure_is_what_its_definition_says(ties: bool) -> None:
    qrels, run = random_judgements_and_run(ties=ties)
    evaluation = evaluate_run(qrels, run, measures=ALL_MEASURES)
    for name in ALL_MEASURES:
        expected = {
            query: naive(name, grades, sorted(run[query], key=lambda p: (-run[query][p], p)))
            for query, grades in qrels.items()
        }
        assert evaluation.per_query[name] == pytest.approx(expected, abs=1e-12), name
        assert 0 < evaluation.means[name] < 1, name


def test_without_ties_the_values_are_trec_evals() -> None:
    qrels, run = random_judgements_and_run(ties=False)
    names = {
        **{"MRR": "recip_rank", "MAP": "map", "R-Prec": "Rprec", "nDCG": "ndcg"},
        **{"nDCG@10": "ndcg_cut_10", "R@100": "recall_100", "P@5": "P_5", "MAP@10": "map_cut_10"},
    }
    expected = pytrec_eval.RelevanceEvaluator(qrels, set(names.values())).evaluate(run)
    found = evaluate_run(qrels, run, measures=list(names))
    for name, trec_name in names.items():
        values = {query: expected[query][trec_name] for query in qrels}
        assert found.per_query[name] == pytest.approx(values, abs=1e-12), name


def test_which_queries_count() -> None:
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


def test_ties_are_of_float64_scores() -> None:
    run = {"q": {"c": 1.0, "b": 1.0, "a": 1.0 + 1e-12, "d": 1.0}}  # one value in float32
    means = evaluate_run({"q": {"c": 1}}, run, measures=["MRR@10", "nDCG@10", "P@1"]).means
    assert means == {"MRR@10": pytest.approx(1 / 3), "nDCG@10": 0.5, "P@1": 0.0}


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
ANSWERS = {
    "where": ("Kyoto", "Kioto"),
    "what": ("art",),
    "when": ("1894",),
    "nothing": ("x",),
    "absent": ("y",),
    "unknown": (),
}


@pytest.mark.parametrize("queries_at_once", [2, 500])
def test_hits_are_counted_where_a_text_holds_an_answer(
    queries_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modeling_condenser.evaluation.measures._QUERIES_AT_ONCE", queries_at_once)
    names = ["Hit@1", "Hit@2", "Hit@3", "Hit@100"]
    found = evaluate_answers(ANSWERS, RUN, lambda ids: [TEXTS[i] for i in ids], measures=names)
    assert found.per_query["Hit@2"] == {
        **dict.fromkeys(("where", "what", "nothing", "absent"), 0.0),
        "when": 1.0,
    }
    assert found.per_query["Hit@3"]["where"] == 1.0
    assert found.means == {"Hit@1": 0.0, "Hit@2": 0.2, "Hit@3": 0.4, "Hit@100": 0.4}
    assert found.unanswerable == ("unknown",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NDCG@20", "unknown measure 'NDCG@20'.* did you mean 'nDCG'"),
        ("recall@100", "did you mean 'R'"),
        ("R", r"'R': R takes cutoff .required. and rel .optional."),
        ("P@0", "unknown measure"),  # aborts trec_eval's code, as does MAP(rel=9999999)
        ("Hit@20", "use evaluate_answers"),
    ],
)
def test_a_wrong_measure_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_run({"q": {"a": 1}}, {"q": {"a": 1.0}}, measures=["MRR@10", name])


def test_what_cannot_be_measured_is_refused() -> None:
    one = {"q": {"a": 1.0}}
    with pytest.raises(ValueError, match="expected a list of names"):
        evaluate_run({"q": {"a": 1}}, one, measures="MRR@10")
    for qrels, run, message in (
        ({"q": {"a": 0}}, one, "none of the 1 judged queries has a relevant passage"),
        ({"q": {"a": 3_000_000_000}}, one, "the grade 3000000000: check"),
        ({"x": {"a": 1}}, one, "none of the 1 queries of the run is judged"),
        ({"q": {"a": 1}}, {"q": {"a": math.nan}}, "query 'q' has a NaN score"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_run(qrels, run)


def test_an_added_measure_may_have_digits_in_its_name(monkeypatch) -> None:
    def at_most(qrels, run):
        return 0.25

    added = ir_measures.define_byquery(at_most, name="F1")
    monkeypatch.setitem(measures._FAMILIES, "F1", added)
    found = evaluate_run({"q": {"a": 1}}, {"q": {"a": 1.0}}, measures=["F1@3"])
    assert found.means == {"F1@3": 0.25}
