"""Exact search against NumPy brute force in float64."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import pytest

from modeling_condenser.encoding.embeddings import write_embeddings
from modeling_condenser.retrieval import exact, vectors
from modeling_condenser.retrieval.exact import search_exact, search_exact_arrays
from modeling_condenser.retrieval.runs import Run, order_of_ids, rank_passages


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


@dataclass
class Shards:
    """What search reads of `Embeddings`, in memory."""

    vectors: np.ndarray
    ids: list[str]
    sizes: Sequence[int]

    @property
    def dimension(self) -> int:
        return self.vectors.shape[1]

    @property
    def n_passages(self) -> int:
        return len(self.vectors)

    @property
    def id_order(self) -> np.ndarray:
        return order_of_ids(self.ids)

    @property
    def passage_ids(self) -> SimpleNamespace:
        return SimpleNamespace(take=lambda rows: [self.ids[row] for row in rows])

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        assert sum(self.sizes) == len(self.vectors)
        ends = np.cumsum(self.sizes)
        for size, end in zip(self.sizes, ends, strict=True):
            yield int(end - size), self.vectors[end - size : end]


def cut(n: int, rng: np.random.Generator) -> list[int]:
    """Shard sizes that sum up to n."""
    cuts = np.sort(rng.choice(np.arange(1, n), size=min(int(rng.integers(0, 9)), n - 1)))
    return np.diff([0, *np.unique(cuts), n]).tolist()


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("depth", [1, 10, 100, 400, 1000])
def test_search_equals_brute_force(depth: int, integers: bool) -> None:
    passages, ids = make_vectors(400, 12, seed=0, integers=integers)
    queries, _ = make_vectors(30, 12, seed=1, integers=integers)
    query_ids = [f"q{i}" for i in range(30)]
    run = search_exact_arrays(
        passages, ids, query_embeddings=queries, query_ids=query_ids, depth=depth
    )
    assert_same(run, brute_force(passages, ids, queries, query_ids, depth))
    assert {len(scores) for scores in run.values()} == {min(depth, 400)}


def test_any_shards_and_any_batches_give_brute_forces_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        n, width, depth = (int(rng.integers(1, high)) for high in (150, 20, 40))
        passages, ids = make_vectors(n, width, seed=seed, integers=seed % 2 == 0)
        passages = passages[rng.integers(0, n, n)]  # some are copies of others
        passages *= np.float32(10.0 ** rng.integers(-3, 4))
        passages[rng.random(n) < 0.1] = 0
        queries, _ = make_vectors(9, width, seed=seed + 1000, integers=seed % 4 == 0)
        queries[0] = 0
        query_ids = [f"q{i}" for i in range(9)]
        expected = brute_force(passages, ids, queries, query_ids, depth)
        for batch, numbers in ((1024, 4_000_000), (4, 300)):
            monkeypatch.setattr(exact, "_QUERY_BATCH", batch)
            monkeypatch.setattr(exact, "_ROW_BATCH", 2 * batch)
            monkeypatch.setattr(exact, "_WORK_NUMBERS", numbers)
            monkeypatch.setattr(vectors, "_NUMBERS_AT_ONCE", numbers)
            shards = Shards(passages, ids, cut(n, rng))
            assert_same(search_exact(shards, queries, query_ids, depth=depth), expected)
            alone = Shards(passages, ids, [1] * n)
            assert_same(search_exact(alone, queries, query_ids, depth=depth), expected)


@pytest.mark.parametrize("shard_size", [1, 7, 64, 1000])
def test_shards_on_disk_give_the_same_run_as_one_array(shard_size: int, tmp_path: Path) -> None:
    passages, ids = make_vectors(200, 16, seed=7)
    ids = [f"é{name}" if i % 3 else f"東 {name}" for i, name in enumerate(ids)]
    queries, query_ids = make_vectors(20, 16, seed=8)
    embeddings = write_embeddings(tmp_path / "e", passages, ids, shard_size=shard_size)
    run = search_exact(embeddings, queries, query_ids, depth=50)
    assert_same(run, brute_force(passages, ids, queries, query_ids, 50))
    in_memory = search_exact_arrays(
        passages, ids, query_embeddings=queries, query_ids=query_ids, depth=50
    )
    assert_same(run, in_memory)


def test_a_run_does_not_depend_on_the_batch_of_queries() -> None:
    passages, ids = make_vectors(500, 768, seed=5)
    queries, _ = make_vectors(300, 768, seed=6)
    names = [f"q{i}" for i in range(300)]
    shards = Shards(passages, ids, [123, 377])
    together = search_exact(shards, queries, names, depth=20)
    alone = {
        q: search_exact(shards, queries[i : i + 1], [q], depth=20)[q] for i, q in enumerate(names)
    }
    assert_same(together, alone)
    flat = faiss.IndexFlatIP(768)
    flat.add(passages)
    scores, places = flat.search(queries, 20)
    for query, name in enumerate(names):
        own = together[name]
        assert list(own.values()) == pytest.approx(scores[query].tolist(), rel=1e-4)
        assert len(set(own) & {ids[place] for place in places[query]}) >= 19


def test_equal_passages_tie_wherever_they_stand() -> None:
    distinct, _ = make_vectors(40, 96, seed=2)
    passages = np.tile(distinct, (25, 1))  # 25 copies of each, so cut-offs fall inside ties
    ids = [f"p{i:04d}" for i in np.random.default_rng(3).permutation(len(passages))]
    queries, _ = make_vectors(37, 96, seed=4)
    query_ids = [f"q{i}" for i in range(37)]
    run = search_exact(Shards(passages, ids, [310, 1, 689]), queries, query_ids, depth=60)
    assert_same(run, brute_force(passages, ids, queries, query_ids, 60))
    assert {len(set(scores.values())) for scores in run.values()} == {3}  # 25 + 25 + 10


def test_collapsed_embeddings_give_the_lowest_ids_and_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "_WORK_NUMBERS", 8000)
    sizes: list[int] = []
    score = exact.inner_products

    def record(*arguments: np.ndarray) -> np.ndarray:
        sizes.append(len(arguments[1]))
        return score(*arguments)

    monkeypatch.setattr(exact, "inner_products", record)
    passages = np.ones((3000, 8), dtype=np.float32)
    ids = [f"p{i:04d}" for i in reversed(range(3000))]
    with caplog.at_level(logging.WARNING):
        run = search_exact(Shards(passages, ids, [2000, 1000]), passages[:1], ["q"], depth=3)
    assert list(run["q"].items()) == [("p0000", 8.0), ("p0001", 8.0), ("p0002", 8.0)]
    assert "Have the embeddings collapsed?" in caplog.text
    assert max(sizes) == 1000  # of 8 numbers: the work space, whatever the number of copies


def test_ordinary_embeddings_give_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    passages, ids = make_vectors(300, 32, seed=0)
    with caplog.at_level(logging.WARNING):
        search_exact(Shards(passages, ids, [300]), passages[:50], ids[:50], depth=10)
    assert caplog.text == ""


@pytest.mark.parametrize("scale", [1.0, 1e-22])
@pytest.mark.parametrize("noise", [1e-6, 2e-7])
def test_near_ties_that_float32_ranks_wrongly_are_ranked_by_float64(
    noise: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "_ROW_BATCH", 100)
    rng = np.random.default_rng(0)
    direction = scale * rng.standard_normal(64)
    passages = (direction + scale * noise * rng.standard_normal((900, 64))).astype(np.float32)
    ids = [f"p{i}" for i in range(900)]
    queries = (direction + scale * noise * rng.standard_normal((20, 64))).astype(np.float32)
    names = [f"q{i}" for i in range(20)]
    expected = brute_force(passages, ids, queries, names, 5)
    assert_same(search_exact(Shards(passages, ids, [300, 600]), queries, names, depth=5), expected)
    by_float32 = np.argsort(-(queries @ passages.T), axis=1, kind="stable")[:, :5]
    wrong = [{ids[i] for i in by_float32[q]} != set(expected[name]) for q, name in enumerate(names)]
    assert sum(wrong) >= 5


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-20, 1e-10, 1e10, 1e19, 1e25, 1e37])
def test_tiny_and_huge_vectors_are_ranked_as_any_other(scale: float) -> None:
    passages, ids = make_vectors(60, 16, seed=0)
    queries, _ = make_vectors(5, 16, seed=1)
    passages, queries = (np.float32(scale) * each for each in (passages, queries))
    query_ids = [f"q{i}" for i in range(5)]
    expected = brute_force(passages, ids, queries, query_ids, 10)
    assert_same(
        search_exact(Shards(passages, ids, [45, 15]), queries, query_ids, depth=10), expected
    )


def test_minus_zero_is_zero() -> None:
    passages = np.array([[-0.0, 0.0], [0.0, 0.0], [0.0, -1.0]], dtype=np.float32)
    query = np.array([[1.0, -0.0]], dtype=np.float32)
    run = search_exact(Shards(passages, ["c", "b", "a"], [3]), query, ["q"])
    assert list(run["q"]) == ["a", "b", "c"]
    assert [str(score) for score in run["q"].values()] == ["0.0"] * 3


def test_a_query_of_a_nan_passage_names_its_row() -> None:
    passages, ids = make_vectors(10, 4, seed=0)
    passages[7, 2] = np.nan
    with pytest.raises(ValueError, match="passage embedding in row 7 holds NaN or infinity"):
        search_exact(Shards(passages, ids, [4, 6]), passages[:1], ["q"])
    passages[7, 2] = -np.inf
    with pytest.raises(ValueError, match="passage embedding in row 7 holds NaN or infinity"):
        search_exact_arrays(passages, ids, query_embeddings=passages[:1], query_ids=["q"])


def test_vectors_that_do_not_fit_are_refused() -> None:
    passages, ids = make_vectors(4, 3, seed=0)
    shards = Shards(passages, ids, [4])
    with pytest.raises(ValueError, match=r"shape \(4, 3\) and type float64: expected .* float32"):
        search_exact(shards, passages.astype(np.float64), ids)
    with pytest.raises(ValueError, match=r"query embeddings of shape \(3,\) and type float32"):
        search_exact(shards, passages[0], ids)
    with pytest.raises(ValueError, match="4 query embeddings and 3 ids"):
        search_exact(shards, passages, ids[:3])
    with pytest.raises(ValueError, match="0 query embeddings and 0 ids"):
        search_exact(shards, passages[:0], [])
    with pytest.raises(ValueError, match="2 query ids of which 1 differ, 'q' is there twice"):
        search_exact(shards, passages[:2], ["q", "q"])
    with pytest.raises(ValueError, match="queries of width 2 against passages of width 3"):
        search_exact(shards, passages[:1, :2].copy(), ["q"])
    bad = np.array([[1, 2, 3], [1, np.nan, 3]], dtype=np.float32)
    with pytest.raises(ValueError, match="1 of 2 query embeddings .* first that of query 'b'"):
        search_exact(shards, bad, ["a", "b"])
    with pytest.raises(ValueError, match="depth 0: expected at least 1"):
        search_exact(shards, passages[:1], ["q"], depth=0)
    with pytest.raises(ValueError, match="4 passage ids of which 3 differ, 'p2' is there twice"):
        search_exact_arrays(
            passages, ["p2", "p1", "p3", "p2"], query_embeddings=passages[:1], query_ids=["q"]
        )
