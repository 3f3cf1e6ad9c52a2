"""Exact search against NumPy brute force in float64."""

from pathlib import Path

import numpy as np
import pytest

from modeling_condenser.encoding.embeddings import write_embeddings
from modeling_condenser.retrieval.exact import search_exact, search_exact_arrays
from modeling_condenser.retrieval.runs import Run, rank_passages


def brute_force(
    passages: np.ndarray, ids: list[str], queries: np.ndarray, query_ids: list[str], depth: int
) -> Run:
    scores = queries.astype(np.float64) @ passages.astype(np.float64).T
    rows = (dict(zip(ids, own, strict=True)) for own in scores.tolist())
    return {q: dict(rank_passages(own)[:depth]) for q, own in zip(query_ids, rows, strict=True)}


def make_vectors(n: int, width: int, *, seed: int) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((n, width)).astype(np.float32)
    return vectors, [f"é{i}" if i % 3 else f"東 {i}" for i in rng.permutation(n)]


def assert_same(run: Run, expected: Run) -> None:
    """Same queries and passages, in the same order, with the same scores."""
    assert list(run) == list(expected)
    for query_id, scores in expected.items():
        assert list(run[query_id]) == list(scores)
        assert list(run[query_id].values()) == pytest.approx(list(scores.values()), abs=1e-5)


@pytest.mark.parametrize("depth", [100, 1000])
@pytest.mark.parametrize("n_queries", [3, 30])  # faiss uses another method from 20 on
def test_search_equals_brute_force_whatever_the_shards(
    n_queries: int, depth: int, tmp_path: Path
) -> None:
    passages, ids = make_vectors(400, 12, seed=0)
    queries, query_ids = make_vectors(n_queries, 12, seed=1)
    expected = brute_force(passages, ids, queries, query_ids, depth)
    named = {"query_embeddings": queries, "query_ids": query_ids}
    assert_same(search_exact_arrays(passages, ids, depth=depth, **named), expected)
    for size in (7, 64, 1000):
        embeddings = write_embeddings(tmp_path / str(size), passages, ids, shard_size=size)
        assert_same(search_exact(embeddings, queries, query_ids, depth=depth), expected)
    assert {len(scores) for scores in expected.values()} == {min(depth, 400)}


def test_equal_scores_are_ordered_by_id(tmp_path: Path) -> None:
    """Small whole numbers, whose products are exact in float32."""
    rng = np.random.default_rng(2)
    passages = rng.integers(-1, 2, (60, 8)).astype(np.float32)
    ids = [f"p{i:04d}" for i in rng.permutation(60)]
    queries, query_ids = rng.integers(-1, 2, (25, 8)).astype(np.float32), [*map(str, range(25))]
    embeddings = write_embeddings(tmp_path, passages, ids, shard_size=11)
    for depth in (5, 60):
        run = search_exact(embeddings, queries, query_ids, depth=depth)
        assert_same(run, brute_force(passages, ids, queries, query_ids, depth))
    assert max(len(set(scores.values())) for scores in run.values()) < 20


def test_more_ties_than_places_still_fill_the_depth(tmp_path: Path) -> None:
    passages = np.ones((300, 8), dtype=np.float32)
    embeddings = write_embeddings(tmp_path, passages, [f"p{i:04d}" for i in range(300)])
    run = search_exact(embeddings, passages[:1], ["q"], depth=3)
    assert list(run["q"].values()) == [8.0] * 3
    assert list(run["q"]) == sorted(run["q"])


def test_wrong_vectors_are_refused() -> None:
    passages, ids = make_vectors(4, 3, seed=0)

    def search(queries: np.ndarray, query_ids: list[str], depth: int = 1) -> Run:
        return search_exact_arrays(
            passages, ids, query_embeddings=queries, query_ids=query_ids, depth=depth
        )

    with pytest.raises(ValueError, match="1 ids for vectors of shape"):
        search(passages[:2], ["q", "q"])
    with pytest.raises(ValueError, match="Queries have 2 numbers and passages 3"):
        search(passages[:1, :2].copy(), ["q"])
    with pytest.raises(ValueError, match="depth is 0"):
        search(passages[:1], ["q"], depth=0)
    passages[3, 2] = -np.inf
    with pytest.raises(ValueError, match="1 of 4 vectors hold NaN or infinity, the first in row 3"):
        search(passages[:1], ["q"])
