"""Fused runs, worked out by hand; the choice of a fusion; and hybrid search beside its parts."""

import random
from typing import Any

import pytest

from modeling_condenser.collection.load import load_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.retrieval import runs as fusion
from modeling_condenser.retrieval.runs import DEFAULT, FUSIONS, Fusion, choose_fusion, cut_run
from modeling_condenser.retrieval.systems import (
    HybridSearcher,
    SearchSettings,
    StoredRun,
    open_searcher,
    parse_systems,
)

# With three zeros, as the dense run has five: mean 1.2, variance (7.84 + .64 + 3 * 1.44) / 5, that
# is deviation 1.6: a is +1.75, b is +.5, others are -.75.
BM25 = {"q": {"a": 4.0, "b": 2.0}}
# Mean 5, variance (16 + 4 * 1) / 5 = 4, deviation 2: b is +2, the others are -0.5.
DENSE = {"q": {"b": 9.0, "f": 4.0, "e": 4.0, "d": 4.0, "c": 4.0}}


def test_reciprocal_ranks_are_summed_and_equal_scores_ranked_by_id():
    bm25 = {"q": {"c": 1.0, "b": 2.0, "a": 3.0}}  # ranks: a 1, b 2, c 3
    dense = {"q": {"b": 0.9, "d": 0.5}}  # ranks: b 1, d 2
    fused = Fusion().fuse(bm25, dense)
    assert fused == {"q": {"b": 1 / 62 + 1 / 61, "a": 1 / 61, "d": 1 / 62, "c": 1 / 63}}
    assert list(fused["q"]) == ["b", "a", "d", "c"]
    equal = Fusion().fuse({"q": {"b": 1.0, "a": 1.0}}, {})
    assert list(equal["q"].items()) == [("a", 1 / 61), ("b", 1 / 62)]


def test_standardised_scores_are_summed_and_a_missing_one_is_that_of_no_match_or_the_lowest():
    fused = Fusion(0.75).fuse(BM25, DENSE)
    assert list(fused["q"].items()) == [
        ("b", pytest.approx(1.625)),  # 0.25 * 0.5 + 0.75 * 2
        ("a", pytest.approx(0.0625)),  # 0.25 * 1.75 + 0.75 * -0.5
        *((passage, pytest.approx(-0.5625)) for passage in "cdef"),  # 0.25 * -0.75 + 0.75 * -0.5
    ]
    equal = {"q": {"a": 0.1, "b": 0.1}}  # as many as BM25 has, where a is +1 and b is -1
    for other in (equal, {"q": {"c": 7.0}}):  # c is not in BM25, where b is lowest
        points = Fusion(0.5).fuse(BM25, other)["q"]
        assert points == {
            "a": 0.5,
            "b": -0.5,
            **dict.fromkeys(other["q"].keys() - {"a", "b"}, -0.5),
        }
    equal = {"q": {"a": 0.1, "b": 0.1, "c": 0.1}}  # the mean of the three is not 0.1 when rounded
    points = Fusion(0.5).fuse({"q": {"a": 4.0, "b": 2.0, "d": 0.0}}, equal)["q"]
    assert points["c"] == points["d"] == -points["a"] and points["b"] == 0


@pytest.mark.parametrize("n_found", [1, 2, 3])
def test_the_only_passages_with_a_rare_word_are_first_in_a_hybrid(n_found):
    rng = random.Random(0)
    dense = {f"p{i:03}": rng.gauss(0.5, 0.1) for i in range(200)}
    worst = sorted(dense, key=lambda name: dense[name])[:n_found]
    bm25 = {name: 8 + rng.random() for name in worst}
    dense = cut_run({"q": dense}, 100)
    [first] = Fusion(0.5).fuse({"q": bm25}, dense).values()
    assert set(list(first)[:n_found]) <= set(worst)


def test_a_query_of_one_run_is_fused_too():
    one, other = {"q1": {"a": 1.0}, "q3": {}}, {"q2": {"b": 5.0}}
    assert Fusion().fuse(one, other) == {"q1": {"a": 1 / 61}, "q3": {}, "q2": {"b": 1 / 61}}
    assert Fusion(0.5).fuse(one, other) == {"q1": {"a": 0.0}, "q3": {}, "q2": {"b": 0.0}}


def test_a_fusion_is_cut_at_the_depth_and_described():
    assert Fusion(0.75).fuse(BM25, DENSE, depth=2)["q"].keys() == {"b", "a"}
    assert str(Fusion()) == "reciprocal rank fusion (k = 60) of the best 100 passages of each"
    assert str(Fusion(0.3)) == (
        "a sum of standardised scores (BM25 0.7, vectors 0.3) of the best 100 passages of each"
    )


def test_passages_beyond_the_candidates_follow_and_change_nothing(monkeypatch):
    monkeypatch.setattr(fusion, "CANDIDATES", 2)
    bm25 = {"q": {"a": 4.0, "b": 2.0, "x": 1.0, "y": 0.0}}
    dense = {"q": {"b": 9.0, "c": 5.0, "z": 2.0, "x": 1.0, "a": 0.0}}
    # Standardised: a 1, b -1, and b 1, c -1. So a is 0.4 - 0.6, b is 0.6 - 0.4, c is -0.4 - 0.6.
    top = [("b", pytest.approx(0.2)), ("a", pytest.approx(-0.2)), ("c", -1.0)]
    fused = list(Fusion(0.6).fuse(bm25, dense)["q"].items())
    assert fused == [*top, ("x", -2.0), ("z", -2.0), ("y", -3.0)]
    assert list(Fusion(0.6).fuse(cut_run(bm25, 2), cut_run(dense, 2))["q"].items()) == top


def test_the_weights_of_a_hybrid_do_not_depend_on_the_depth():
    rng = random.Random(0)
    ranked = [{"q": {f"p{i}": rng.expovariate(1) for i in range(400)}} for _ in range(2)]
    parts: Any = [StoredRun(run) for run in ranked]
    for each in FUSIONS.values():
        hybrid = HybridSearcher(*parts, each)
        at_100, at_300 = (list(hybrid.search({"q": ""}, n)["q"].items()) for n in (100, 300))
        assert at_300[:100] == at_100 and len(at_300) == 300


@pytest.mark.parametrize(
    ("bm25", "dense", "best"),
    [
        # Ranks of the relevant r: 2 and 2, behind different passages.
        ({"a": 9.0, "r": 8.0, "c": 0.0}, {"b": 9.0, "r": 8.0, "d": 0.0}, "rrf"),
        # r is far ahead for the encoder and last for BM25: a large weight finds it.
        ({"a": 9.0, "b": 5.0, "c": 1.0, "r": 0.9}, {"r": 9.0, "a": 2.0, "b": 1.0, "c": 0.0}, "0.6"),
    ],
)
def test_the_fusion_is_chosen_on_dev_queries(bm25, dense, best):
    runs = alike(bm25), alike(dense)
    first = [next(iter(each.fuse(*runs)["q0"])) for each in FUSIONS.values()]
    chosen = choose_fusion(*runs, alike({"r": 1}))
    assert chosen == FUSIONS[best] == list(FUSIONS.values())[first.index("r")]
    for too_few in (alike({"r": 1}, 19), alike({"r": 0})):
        assert choose_fusion(*runs, too_few) == DEFAULT


def test_the_fusion_is_chosen_by_the_order_in_which_passages_are_found():
    bm25, dense = {"a": 9.0, "b": 1.0, "c": 0.9}, {"r": 9.0, "d": 1.0, "e": 0.9}
    # Up to a weight of .5, a and r tie or a is ahead; of a tie, a comes first.
    assert choose_fusion(alike(bm25), alike(dense), alike({"r": 1})) == FUSIONS["0.6"]


def test_the_fusion_is_chosen_by_ndcg():
    bm25 = {"r": 9.0, **{f"b{i}": 8.0 - i / 2 for i in range(11)}}
    dense = {"x": 9.0, "r": 8.0, "s": 7.9, **{f"d{i}": 1.0 - i / 10 for i in range(9)}}
    # Every fusion has r first, so MRR@10 is 1 for all; from 0.6 on, s is second.
    assert choose_fusion(alike(bm25), alike(dense), alike({"r": 1, "s": 1})) == FUSIONS["0.6"]


def alike(scores, n=20):
    """Queries with the same scores."""
    return {f"q{i}": scores for i in range(n)}


def test_hybrid_search_fuses_the_runs_of_its_parts(bert_folder, collection, tmp_path, monkeypatch):
    monkeypatch.setattr(fusion, "FEWEST_QUERIES", 1)
    opened, init = [], Retriever.__init__

    def note(self: Retriever, *args: Any, **settings: Any) -> None:
        opened.append(args)
        init(self, *args, **settings)

    monkeypatch.setattr(Retriever, "__init__", note)
    encoder = f"{bert_folder},pooling=mean"
    words = ["bm25", encoder, f"hybrid:{encoder}", f"hybrid:{encoder},fusion=rrf"]
    loaded, dev = load_collection(collection), load_collection(collection, split="train")
    searchers: list[Any] = [
        open_searcher(system, loaded.passages, tmp_path, dev=dev)
        for system in parse_systems(words, SearchSettings())
    ]
    assert len(opened) == 1
    runs = [searcher.search(loaded.queries, 100) for searcher in searchers]
    bm25, dense, chosen, _ = searchers
    dev_runs = [part.search(dev.queries, 100) for part in (bm25, dense)]
    assert chosen.fusion == choose_fusion(dev_runs[0], dev_runs[1], dev.qrels)
    assert runs[2] == chosen.fusion.fuse(runs[0], runs[1])
    assert runs[3] == FUSIONS["rrf"].fuse(runs[0], runs[1])
    few = chosen.search(loaded.queries, 3)
    assert few == {query: dict(list(run.items())[:3]) for query, run in runs[2].items()}
    [hybrid] = parse_systems(words[2:3], SearchSettings())
    untuned: Any = open_searcher(hybrid, loaded.passages, tmp_path)
    assert untuned.fusion == DEFAULT


def test_a_dev_query_that_is_a_passage_chooses_as_if_it_were_not():
    queries = [f"q{i}" for i in range(20)]
    bm25 = {q: {"r": 9.0, q: 3.0, "a": 1.0} for q in queries}
    dense = {q: {q: 9.0, "r": 3.0, "a": 1.0} for q in queries}
    # By reciprocal ranks, the first fusion, q ties with r and comes first.
    assert choose_fusion(bm25, dense, {q: {"r": 1} for q in queries}) == FUSIONS["rrf"]
