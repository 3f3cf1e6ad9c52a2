"""Exact search against NumPy brute force in float64."""

import numpy as np
import pytest

from modeling_condenser.encoding.embeddings import write_embeddings
from modeling_condenser.retrieval.dense import search_embeddings, search_exact_arrays
from modeling_condenser.retrieval.runs import Run, rank_passages


def check(
    run: Run, passages: np.ndarray, ids: list[str], queries: np.ndarray, *, depth: int
) -> None:
    """Compare passages, their order and scores with brute force."""
    scores = queries.astype(np.float64) @ passages.astype(np.float64).T
    assert list(run) == [f"q{i}" for i in range(len(queries))]
    for found, own in zip(run.values(), scores.tolist(), strict=True):
        expected = rank_passages(dict(zip(ids, own, strict=True)))[:depth]
        assert list(found) == [passage for passage, _ in expected]
        assert list(found.values()) == pytest.approx([score for _, score in expected], abs=1e-5)


@pytest.mark.parametrize("depth", [100, 1000])
@pytest.mark.parametrize("n_queries", [3, 30])  # faiss uses another method from 20 on
@pytest.mark.parametrize("are_tied", [False, True])
def test_search_equals_brute_force_whatever_the_shards(n_queries, depth, are_tied, tmp_path):
    rng = np.random.default_rng(0)
    passages = rng.standard_normal((400, 12)).astype(np.float32)
    ids = [f"é{i}" if i % 3 else f"東 {i}" for i in rng.permutation(400)]
    queries = rng.standard_normal((n_queries, 12)).astype(np.float32)
    if are_tied:  # small whole numbers, whose products are exact in float32
        passages, ids, queries = np.sign(passages[:60]), ids[:60], np.sign(queries)
        depth //= 20
    query_ids = [f"q{i}" for i in range(n_queries)]
    named = {"query_embeddings": queries, "query_ids": query_ids}
    run = search_exact_arrays(passages, ids, depth=depth, **named)
    check(run, passages, ids, queries, depth=depth)
    for size in (7, 64, 1000):
        embeddings = write_embeddings(tmp_path / str(size), passages, ids, shard_size=size)
        run = search_embeddings(embeddings, queries, query_ids, depth=depth)
        check(run, passages, ids, queries, depth=depth)


def test_more_ties_than_places_still_fill_the_depth():
    passages, ids = np.ones((300, 8), dtype=np.float32), [f"p{i:04d}" for i in range(300)]
    query = {"query_embeddings": passages[:1], "query_ids": ["q"]}
    run = search_exact_arrays(passages, ids, depth=3, **query)
    assert list(run["q"].values()) == [8.0] * 3
    assert list(run["q"]) == sorted(run["q"])


@pytest.mark.parametrize(
    ("passages", "queries", "ids", "message"),
    [
        (np.ones((4, 3)), np.ones((2, 3)), ["q", "q"], "1 ids for vectors of shape"),
        (np.ones((4, 3)), np.ones((1, 2)), ["q"], "Queries have 2 numbers, but passages 3"),
        (np.diag([1, 1, np.inf]), np.ones((1, 3)), ["q"], "1 of 3 vectors .* in row 2"),
    ],
)
def test_wrong_vectors_are_refused(passages, queries, ids, message):
    passages, queries = passages.astype(np.float32), queries.astype(np.float32)
    names = [f"p{i}" for i in range(len(passages))]
    with pytest.raises(ValueError, match=message):
        search_exact_arrays(passages, names, query_embeddings=queries, query_ids=ids)
