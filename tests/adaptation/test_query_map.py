"""Maps of query vectors, on small collections of vectors."""

import numpy as np
import pytest
import torch

from modeling_condenser.adaptation import query_map
from modeling_condenser.adaptation.query_map import (
    Candidates,
    choose_candidates,
    learn_map,
    move,
    ranking_losses,
)
from tests.adaptation.making import judged, store, unit


def naive_loss(change, queries, passages, bm25):
    """The cross-entropy of each query, from the equation; `bm25` are (Q, N)."""
    losses = []
    for i, q in enumerate(queries.vectors):
        moved = q + change @ q
        scores = [20 * (p @ moved) / np.linalg.norm(moved) for p in passages] + 2 * bm25[i]
        weights = np.exp(scores)
        weights[queries.excluded[i]] = 0
        losses.append(-np.log(weights[queries.positives[i]].sum() / weights.sum()))
    return losses


@pytest.mark.parametrize("with_bm25", [True, False])
def test_the_loss_is_that_of_the_equation(with_bm25):
    random = np.random.default_rng(0)
    passages, change = unit(random.normal(size=(9, 4))), 0.3 * random.normal(size=(4, 4))
    queries = judged(unit(random.normal(size=(3, 4))), [[2, 5], [8], [0]], excluded=[[], [5], [7]])
    bm25 = np.zeros((3, 9))
    for place, (row, score) in enumerate([(5, 2.0), (1, 1.5)]):
        queries.bm25[1, place], queries.bm25_scores[1, place] = row, score
        bm25[1, row] = score
    everything = Candidates(np.arange(9), passages, np.zeros(9, dtype=np.float32))
    moved = torch.from_numpy(move(queries.vectors, change.astype(np.float32)))
    found = ranking_losses(
        moved, torch.from_numpy(passages), queries, everything, with_bm25=with_bm25
    )
    expected = naive_loss(change, queries, passages, bm25 * with_bm25)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.fixture
def rotated():
    """Queries that are their passages, turned."""
    random = np.random.default_rng(0)
    passages = unit(random.normal(size=(300, 8)))
    turn = np.linalg.qr(random.normal(size=(8, 8)))[0].astype(np.float32)
    return passages, passages @ turn


def test_a_map_learned_from_some_queries_holds_for_others(rotated, tmp_path):
    passages, vectors = rotated
    queries = judged(vectors[:100], [[i] for i in range(100)])
    candidates = choose_candidates(queries, store(passages, tmp_path))
    change = learn_map(queries, candidates, ridge=0.01, with_bm25=True)
    assert ((vectors[100:] @ passages.T).argmax(axis=1) == np.arange(100, 300)).mean() < 0.1
    moved = move(vectors[100:], change)
    assert ((moved @ passages.T).argmax(axis=1) == np.arange(100, 300)).mean() > 0.9
    again = learn_map(queries, candidates, ridge=0.01, with_bm25=True)
    np.testing.assert_array_equal(change, again)
    weak = learn_map(queries, candidates, ridge=10, with_bm25=True)
    assert np.linalg.norm(weak) < np.linalg.norm(change) / 2


def test_a_map_of_both_sides_has_the_least_loss_of_moved_passages(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    passages, vectors = unit(random.normal(size=(40, 4))), unit(random.normal(size=(20, 4)))
    queries = judged(vectors, [[i] for i in range(20)])
    candidates = choose_candidates(queries, store(passages, tmp_path))
    monkeypatch.setattr(query_map, "_STEPS", 100)
    monkeypatch.setattr(query_map, "_QUERIES_AT_ONCE", 7)
    change = learn_map(queries, candidates, ridge=1, with_bm25=False, sides="both")

    def objective(change):
        moved = unit(passages + passages @ change.T)
        penalty = 1 / 4 * (change**2).sum()
        return np.mean(naive_loss(change, queries, moved, np.zeros((20, 40)))) + penalty

    least = objective(change)
    assert least < objective(np.zeros((4, 4))) - 0.1
    for _ in range(20):
        assert objective(change + 0.03 * random.normal(size=(4, 4))) > least


def test_passages_are_sampled_with_the_hard_and_relevant_ones(rotated, tmp_path):
    passages, vectors = rotated
    queries = judged(vectors[:3], [[0], [100], [200]], dense=[[7, 8], [9, 7], [7, 10]])
    chosen = choose_candidates(queries, store(passages, tmp_path), most=20)
    assert len(chosen.rows) == 20 and {0, 100, 200, 7, 8, 9, 10} <= {*chosen.rows.tolist()}
    np.testing.assert_array_equal(chosen.vectors, passages[chosen.rows])
    # The candidates stand for all passages.
    assert np.exp(chosen.bias).sum() == pytest.approx(300, rel=1e-5)
    assert (chosen.bias[np.isin(chosen.rows, [0, 7, 8, 9, 10, 100, 200])] == 0).all()
    # A passage of BM25 that is no candidate changes nothing.
    queries.bm25[:], queries.bm25_scores[:] = np.setdiff1d(np.arange(300), chosen.rows)[0], 5
    both = torch.from_numpy(queries.vectors), torch.from_numpy(chosen.vectors)
    losses = [
        ranking_losses(*both, queries, chosen, with_bm25=with_bm25) for with_bm25 in (True, False)
    ]
    torch.testing.assert_close(*losses)
