"""Dense search: exactly beside brute force, and by indices beside exact search."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import write_embeddings
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.retrieval.faiss_index import build_approximate, recall_against_exact
from modeling_condenser.retrieval.runs import Run, rank_passages
from modeling_condenser.retrieval.systems import SearchSettings, search_embeddings


def check(
    run: Run, passages: np.ndarray, ids: list[str], queries: np.ndarray, *, depth: int
) -> None:
    """Compare passages, their order and scores with brute force."""
    scores = queries.astype(np.float64) @ passages.astype(np.float64).T
    assert list(run) == [f"q{i}" for i in range(len(queries))]
    for query, hits in enumerate(run.values()):
        expected = rank_passages(dict(zip(ids, scores[query].tolist(), strict=True)))[:depth]
        assert list(hits) == [passage for passage, _ in expected]
        assert list(hits.values()) == pytest.approx([score for _, score in expected], abs=1e-5)


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
    for size in (7, 64, 1000):
        embeddings = write_embeddings(tmp_path / str(size), passages, ids, shard_size=size)
        run = search_embeddings(embeddings, queries, query_ids, depth=depth)
        check(run, passages, ids, queries, depth=depth)


N, WIDTH, N_QUERIES, DEPTH = 1500, 64, 40, 10
IDS = [f"p{i:04d}" for i in np.random.default_rng(1).permutation(N)]
QUERY_IDS = [f"q{i}" for i in range(N_QUERIES)]


def make_clusters(n: int, *, seed: int) -> np.ndarray:
    """Vectors of length 1 around 30 centres: (n, WIDTH) float32."""
    centres = np.random.default_rng(0).standard_normal((30, WIDTH))
    rng = np.random.default_rng(seed)
    vectors = centres[rng.integers(0, 30, n)] + 0.4 * rng.standard_normal((n, WIDTH))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


PASSAGES, QUERIES = make_clusters(N, seed=2), make_clusters(N_QUERIES, seed=3)


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    folder = tmp_path_factory.mktemp("embeddings")
    return write_embeddings(folder, PASSAGES, IDS, shard_size=400, retriever_fingerprint="a")


@pytest.fixture
def search(embeddings: Embeddings, tmp_path: Path) -> Any:
    """Searches by a factory and parameters; exactly without."""

    def run(factory: str = "", parameters: str | None = None, depth: int = DEPTH) -> Run:
        index: Any = None
        if factory:
            index = build_approximate(embeddings, factory, tmp_path / "x", parameters=parameters)
        return search_embeddings(embeddings, QUERIES, QUERY_IDS, index=index, depth=depth)

    return run


@pytest.mark.parametrize(
    ("factory", "parameters", "at_least"),
    [
        ("Flat", None, 1.0),
        ("IVF16,Flat", "nprobe=16", 1.0),  # all cells: nothing is missed
        ("HNSW16", "efSearch=100", 0.98),
        ("SQ8", None, 0.96),
        ("IVF8,RaBitQ", "nprobe=8", 0.3),
        ("IVF8,RaBitQ,Refine(SQ8)", "nprobe=8,k_factor_rf=4", 0.95),
        pytest.param("OPQ16_64,IVF8,PQ16x4fs", "nprobe=8", 0.25, marks=pytest.mark.slow),
    ],
)
def test_an_index_finds_what_exact_search_finds(factory, parameters, at_least, search):
    exact, run = search(), search(factory, parameters)
    assert list(run) == QUERY_IDS
    assert {len(hits) for hits in run.values()} == {DEPTH}
    recall = recall_against_exact(run, exact, depth=DEPTH)
    assert at_least <= recall <= 1
    for query in QUERY_IDS if at_least == 1.0 else []:
        assert run[query] == pytest.approx(exact[query], rel=1e-5)


def test_equal_scores_of_an_index_are_ordered_by_id(tmp_path):
    vectors = np.repeat(PASSAGES[:2], 20, axis=0)
    equal = write_embeddings(tmp_path / "equal", vectors, [f"p{i:02}" for i in range(39, -1, -1)])
    index = build_approximate(equal, "SQ8", tmp_path / "index")
    [hits] = search_embeddings(equal, vectors[:1], ["q"], depth=5, index=index).values()
    assert list(hits) == [f"p{i}" for i in range(20, 25)]


def test_cells_that_hold_too_few_give_fewer_passages(search):
    run = search("IVF32,Flat", depth=1000)
    sizes = {len(hits) for hits in run.values()}
    assert min(sizes) > 0 and max(sizes) < 1000


def test_a_saved_index_is_opened_and_built_again_if_anything_differs(embeddings, tmp_path):
    folder, built = tmp_path / "indexes" / "wiki", []
    other = replace(embeddings, retriever="other")
    for vectors, factory in (
        (embeddings, "IVF16,Flat"),
        (embeddings, "IVF16,Flat"),
        (embeddings, "IVF8,Flat"),
        (other, "IVF8,Flat"),
    ):
        index = build_approximate(vectors, factory, folder)
        assert (index.d, index.ntotal) == (vectors.dimension, N)
        built.append((folder / "index.faiss").stat().st_mtime_ns)
    assert built[0] == built[1] and len(set(built)) == 3
    assert [file.name for file in folder.parent.glob("[!.]*")] == ["wiki"]


def test_a_wrong_factory_or_parameter_is_refused(search, tmp_path):
    with pytest.raises(ValueError, match="index 'nonsense' of 1500 .*not parse index string"):
        search("nonsense")
    assert not list(tmp_path.glob("[!.]*"))
    with pytest.raises(ValueError, match="'Flat' .*with the parameters 'nprobs=3'"):
        search("Flat", "nprobs=3")
    with pytest.raises(ValueError, match="search_parameters is 'nprobe=4', but exact search"):
        SearchSettings(search_parameters="nprobe=4")


def test_a_depth_beyond_the_collection_finds_all_passages(search):
    assert {len(hits) for hits in search(depth=10**12).values()} == {N}


def test_recall_is_the_mean_share_of_the_exact_answer():
    exact = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"d": 1.0}}
    run = {"q1": {"a": 9.0, "c": 8.0, "x": 7.0}, "q2": {}}
    assert recall_against_exact(run, exact, depth=1) == (1 + 0) / 2
    assert recall_against_exact(run, exact, depth=3) == (2 / 3 + 0) / 2
