"""Exact search against NumPy brute force in float64."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from modeling_condenser.encoding.embeddings import Embeddings, write_embeddings
from modeling_condenser.retrieval import exact
from modeling_condenser.retrieval.exact import search_exact, search_exact_arrays
from modeling_condenser.retrieval.runs import Run, rank_passages


def brute_force(
    passages: np.ndarray, ids: list[str], queries: np.ndarray, query_ids: list[str], depth: int
) -> Run:
    run = {}
    for query_id, query in zip(query_ids, queries.astype(np.float64), strict=True):
        scores = [float((row * query).sum()) for row in passages.astype(np.float64)]
        run[query_id] = dict(rank_passages(dict(zip(ids, scores, strict=True)))[:depth])
    return run


def make_vectors(
    n: int, width: int, *, seed: int, integers: bool = False
) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-1, 2, (n, width)) if integers else rng.standard_normal((n, width))
    return numbers.astype(np.float32), [f"p{i}" for i in rng.permutation(n)]


def assert_same(run: Run, expected: Run) -> None:
    """Same queries and passages, in the same order, with the same bits."""
    assert [(q, list(scores.items())) for q, scores in run.items()] == [
        (q, list(scores.items())) for q, scores in expected.items()
    ]


def store(folder: Path, vectors: np.ndarray, ids: list[str], shard_size: int) -> Embeddings:
    return write_embeddings(folder / str(shard_size), vectors, ids, shard_size=shard_size)


@pytest.mark.parametrize("depth", [1, 10, 100, 400, 1000])
def test_search_equals_brute_force(depth: int) -> None:
    passages, ids = make_vectors(400, 12, seed=0)
    queries, query_ids = make_vectors(30, 12, seed=1)
    run = search_exact_arrays(
        passages, ids, query_embeddings=queries, query_ids=query_ids, depth=depth
    )
    assert_same(run, brute_force(passages, ids, queries, query_ids, depth))
    assert {len(scores) for scores in run.values()} == {min(depth, 400)}


@pytest.mark.parametrize("seed", range(6))
def test_neither_shards_nor_batches_change_a_bit(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages, ids = make_vectors(100, 16, seed=seed, integers=seed % 2 == 0)
    passages[::7] = passages[3]  # 15 copies
    passages[1::10] = 0
    ids = [f"é{name}" if i % 3 else f"東 {name}" for i, name in enumerate(ids)]
    queries, query_ids = make_vectors(23, 16, seed=seed + 1000)
    expected = brute_force(passages, ids, queries, query_ids, 60)
    for shard_size, numbers in ((1, 4_000_000), (7, 1), (64, 5000), (1000, 4_000_000)):
        monkeypatch.setattr(exact, "_NUMBERS_AT_ONCE", numbers)
        embeddings = store(tmp_path, passages, ids, shard_size)
        assert_same(search_exact(embeddings, queries, query_ids, depth=60), expected)


def test_a_run_does_not_depend_on_the_other_queries(tmp_path: Path) -> None:
    passages, ids = make_vectors(500, 768, seed=5)
    queries, names = make_vectors(300, 768, seed=6)
    embeddings = store(tmp_path, passages, ids, 123)
    together = search_exact(embeddings, queries, names, depth=20)
    for i in (0, 17, 299):
        alone = search_exact(embeddings, queries[i : i + 1], [names[i]], depth=20)
        assert_same(alone, {names[i]: together[names[i]]})
    flat = faiss.IndexFlatIP(768)
    flat.add(passages)
    scores, _ = flat.search(queries, 20)
    for query, name in enumerate(names):
        assert list(together[name].values()) == pytest.approx(scores[query].tolist(), rel=1e-4)


def test_equal_passages_tie_and_the_lower_ids_come_first(tmp_path: Path) -> None:
    distinct, _ = make_vectors(40, 96, seed=2)
    passages = np.tile(distinct, (25, 1))  # depth 60 cuts off within 25 copies
    ids = [f"p{i:04d}" for i in np.random.default_rng(3).permutation(len(passages))]
    queries, query_ids = make_vectors(37, 96, seed=4)
    run = search_exact(store(tmp_path, passages, ids, 310), queries, query_ids, depth=60)
    assert_same(run, brute_force(passages, ids, queries, query_ids, 60))
    assert {len(set(scores.values())) for scores in run.values()} == {3}  # 25 + 25 + 10


def test_more_ties_than_spare_candidates_still_fill_the_depth(tmp_path: Path) -> None:
    passages = np.ones((300, 8), dtype=np.float32)
    ids = [f"p{i:04d}" for i in range(300)]
    run = search_exact(store(tmp_path, passages, ids, 128), passages[:1], ["q"], depth=3)
    assert list(run["q"].values()) == [8.0] * 3
    assert list(run["q"]) == sorted(run["q"])


def test_near_ties_that_float32_exchanges_are_ordered_by_float64() -> None:
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(64)
    passages = (direction + 2e-6 * rng.standard_normal((30, 64))).astype(np.float32)
    ids = [f"p{i}" for i in range(30)]
    queries = (direction + 1e-6 * rng.standard_normal((20, 64))).astype(np.float32)
    names = [f"q{i}" for i in range(20)]
    expected = brute_force(passages, ids, queries, names, 5)
    run = search_exact_arrays(passages, ids, query_embeddings=queries, query_ids=names, depth=5)
    assert_same(run, expected)
    by_float32 = np.argsort(-(queries @ passages.T), axis=1, kind="stable")[:, :5]
    wrong = [
        [ids[i] for i in by_float32[q]] != list(expected[name]) for q, name in enumerate(names)
    ]
    assert sum(wrong) >= 5


def test_minus_zero_is_zero() -> None:
    passages = np.array([[-0.0, 0.0], [0.0, 0.0], [0.0, -1.0]], dtype=np.float32)
    query = np.array([[1.0, -0.0]], dtype=np.float32)
    run = search_exact_arrays(
        passages, ["c", "b", "a"], query_embeddings=query, query_ids=["q"], depth=3
    )
    assert list(run["q"]) == ["a", "b", "c"]
    assert [str(score) for score in run["q"].values()] == ["0.0"] * 3


def test_vectors_that_do_not_fit_are_refused() -> None:
    passages, ids = make_vectors(4, 3, seed=0)

    def search(queries: np.ndarray, query_ids: list[str], depth: int = 1) -> Run:
        return search_exact_arrays(
            passages, ids, query_embeddings=queries, query_ids=query_ids, depth=depth
        )

    with pytest.raises(ValueError, match=r"shape \(4, 3\) and type float64; expected .* float32"):
        search(passages.astype(np.float64), ids)
    with pytest.raises(ValueError, match="4 query embeddings and 3 ids"):
        search(passages, ids[:3])
    with pytest.raises(ValueError, match="query id 'q' occurs twice"):
        search(passages[:2], ["q", "q"])
    with pytest.raises(ValueError, match="Queries have 2 numbers and passages 3"):
        search(passages[:1, :2].copy(), ["q"])
    with pytest.raises(ValueError, match="depth is 0"):
        search(passages[:1], ["q"], depth=0)
    queries = passages[:2].copy()
    queries[1, 1] = np.nan
    with pytest.raises(ValueError, match="1 of 2 query embeddings .* first that of 'b'"):
        search(queries, ["a", "b"])
    passages[3, 2] = -np.inf
    with pytest.raises(ValueError, match="1 of 4 passage embeddings hold NaN or infinity"):
        search(queries[:1], ["q"])
