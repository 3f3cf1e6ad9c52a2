"""Exact search against NumPy brute force in float64."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from modeling_condenser.retrieval.index import ExactIndex, search_exact
from modeling_condenser.retrieval.runs import Run, rank_passages


def brute_force(
    passages: np.ndarray, ids: list[str], queries: np.ndarray, query_ids: list[str], depth: int
) -> Run:
    run = {}
    for query_id, query in zip(query_ids, queries.astype(np.float64), strict=True):
        scores = [float((row * query).sum()) for row in passages.astype(np.float64)]
        run[query_id] = dict(rank_passages(dict(zip(ids, scores, strict=True)))[:depth])
    return run


def make_embeddings(
    n: int, width: int, *, seed: int, integers: bool = False
) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-1, 2, (n, width)) if integers else rng.standard_normal((n, width))
    return numbers.astype(np.float32), [f"p{i}" for i in rng.permutation(n)]


def assert_same_order(run: Run, expected: Run) -> None:
    assert run == expected
    assert {q: list(scores) for q, scores in run.items()} == {
        q: list(scores) for q, scores in expected.items()
    }


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("depth", [1, 10, 100, 400, 1000])
def test_search_equals_brute_force(depth: int, integers: bool) -> None:
    passages, ids = make_embeddings(400, 12, seed=0, integers=integers)
    queries, _ = make_embeddings(30, 12, seed=1, integers=integers)
    query_ids = [f"q{i}" for i in range(30)]
    run = search_exact(passages, ids, query_embeddings=queries, query_ids=query_ids, depth=depth)
    assert_same_order(run, brute_force(passages, ids, queries, query_ids, depth))
    assert {len(scores) for scores in run.values()} == {min(depth, 400)}


def test_equal_passages_tie_wherever_they_stand() -> None:
    distinct, _ = make_embeddings(40, 96, seed=2)
    passages = np.tile(distinct, (25, 1))  # 25 copies of each, so cut-offs fall inside ties
    ids = [f"p{i:04d}" for i in np.random.default_rng(3).permutation(len(passages))]
    queries, _ = make_embeddings(37, 96, seed=4)
    query_ids = [f"q{i}" for i in range(37)]
    run = search_exact(passages, ids, query_embeddings=queries, query_ids=query_ids, depth=60)
    assert_same_order(run, brute_force(passages, ids, queries, query_ids, 60))
    assert {len(set(scores.values())) for scores in run.values()} == {3}  # 25 + 25 + 10


def test_collapsed_embeddings_give_the_lowest_ids() -> None:
    passages = np.ones((3000, 8), dtype=np.float32)
    ids = [f"p{i:04d}" for i in reversed(range(3000))]
    run = search_exact(passages, ids, query_embeddings=passages[:1], query_ids=["q"], depth=3)
    assert list(run["q"].items()) == [("p0000", 8.0), ("p0001", 8.0), ("p0002", 8.0)]


def test_a_run_does_not_depend_on_the_batch_of_queries() -> None:
    passages, ids = make_embeddings(500, 768, seed=5)
    queries, _ = make_embeddings(300, 768, seed=6)
    names = [f"q{i}" for i in range(300)]
    index = ExactIndex.from_embeddings(passages, ids)
    together = index.search(queries, names, depth=20)
    alone = {q: index.search(queries[i : i + 1], [q], depth=20)[q] for i, q in enumerate(names)}
    assert_same_order(together, alone)


def test_a_saved_index_gives_the_same_run(tmp_path: Path) -> None:
    passages, ids = make_embeddings(200, 16, seed=7)
    queries, query_ids = make_embeddings(5, 16, seed=8)
    index = ExactIndex.from_embeddings(passages, ids)
    folder = index.save(tmp_path / "indexes" / "wiki")
    assert sorted(file.name for file in folder.iterdir()) == ["index.faiss", "passage_ids.json"]
    assert [file.name for file in folder.parent.iterdir()] == ["wiki"]
    loaded = ExactIndex.load(folder)
    assert loaded.passage_ids == ids
    assert_same_order(
        loaded.search(queries, query_ids, depth=50), index.search(queries, query_ids, depth=50)
    )


def test_a_folder_with_content_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    passages, ids = make_embeddings(3, 2, seed=0)
    with pytest.raises(FileExistsError, match="is not empty, expected a new folder"):
        ExactIndex.from_embeddings(passages, ids).save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_broken_index_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no index.faiss"):
        ExactIndex.load(tmp_path)
    passages, ids = make_embeddings(3, 2, seed=0)
    folder = ExactIndex.from_embeddings(passages, ids).save(tmp_path / "index")
    (folder / "passage_ids.json").write_text('["p0"]')
    with pytest.raises(ValueError, match="3 vectors but 1 passage ids"):
        ExactIndex.load(folder)
    faiss.write_index(faiss.IndexHNSWFlat(2, 4), str(folder / "index.faiss"))
    with pytest.raises(ValueError, match="is a IndexHNSWFlat, expected a flat index"):
        ExactIndex.load(folder)


def test_embeddings_that_do_not_fit_are_refused() -> None:
    passages, ids = make_embeddings(4, 3, seed=0)
    build = ExactIndex.from_embeddings
    with pytest.raises(ValueError, match="float64: expected .* float32"):
        build(passages.astype(np.float64), ids)
    with pytest.raises(ValueError, match="4 passage embeddings and 3 ids"):
        build(passages, ids[:3])
    with pytest.raises(ValueError, match="4 passage ids of which 3 differ"):
        build(passages, [*ids[:3], ids[0]])
    with pytest.raises(ValueError, match="hold NaN or infinity"):
        build(np.full((4, 3), np.nan, dtype=np.float32), ids)
    with pytest.raises(ValueError, match="queries of width 2 against passages of width 3"):
        build(passages, ids).search(passages[:1, :2].copy(), ["q"])
    with pytest.raises(ValueError, match="depth 0: expected at least 1"):
        build(passages, ids).search(passages[:1], ["q"], depth=0)
