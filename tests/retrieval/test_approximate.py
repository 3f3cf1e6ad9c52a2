"""Approximate search beside exact search."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modeling_condenser.encoding.embeddings import Embeddings, write_embeddings
from modeling_condenser.retrieval.approximate import build_approximate
from modeling_condenser.retrieval.dense import (
    SearchSettings,
    recall_against_exact,
    search_embeddings,
)
from modeling_condenser.retrieval.runs import Run

N, WIDTH, N_QUERIES = 1500, 16, 40
QUERY_IDS = [f"q{i}" for i in range(N_QUERIES)]


def make_clusters(n: int, *, seed: int) -> np.ndarray:
    """Vectors of length 1 around 30 centres: (n, WIDTH) float32."""
    centres = np.random.default_rng(0).standard_normal((30, WIDTH))
    rng = np.random.default_rng(seed)
    vectors = centres[rng.integers(0, 30, n)] + 0.4 * rng.standard_normal((n, WIDTH))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


QUERIES = make_clusters(N_QUERIES, seed=3)


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    ids = [f"p{i:04d}" for i in np.random.default_rng(1).permutation(N)]
    folder, vectors = tmp_path_factory.mktemp("embeddings"), make_clusters(N, seed=2)
    return write_embeddings(folder, vectors, ids, shard_size=400, retriever_fingerprint="a")


@pytest.fixture
def search(embeddings: Embeddings, tmp_path: Path) -> Any:
    """Searches by an index of a factory and parameters; exactly without a factory."""

    def run(factory: str = "", parameters: str | None = None, **how: int) -> Run:
        index = None
        if factory:
            folder = tmp_path / factory
            index = build_approximate(embeddings, factory, folder, parameters=parameters)
        return search_embeddings(embeddings, QUERIES, QUERY_IDS, index=index, **how)

    return run


@pytest.mark.parametrize(
    ("factory", "parameters", "at_least"),
    [
        ("Flat", None, 1.0),
        ("IVF16,Flat", "nprobe=16", 1.0),  # all cells: nothing is missed
        ("HNSW16", "efSearch=100", 0.98),
        pytest.param("OPQ8_16,IVF8,PQ8x4fs", "nprobe=8", 0.4, marks=pytest.mark.slow),
    ],
)
def test_an_index_finds_what_exact_search_finds(factory, parameters, at_least, search):
    exact, run = search(depth=10), search(factory, parameters, depth=10)
    assert list(run) == QUERY_IDS
    assert {len(found) for found in run.values()} == {10}
    assert recall_against_exact(run, exact, depth=10) >= at_least
    for query in QUERY_IDS if at_least == 1.0 else []:
        assert run[query] == pytest.approx(exact[query], rel=1e-5)


def test_rescored_passages_have_the_scores_of_exact_search(search):
    exact, plain = search(depth=N), search("IVF8,RaBitQ", "nprobe=8", depth=10)
    run = search("IVF8,RaBitQ", "nprobe=8", depth=10, rescore=100)
    for query, found in run.items():
        expected = {passage: exact[query][passage] for passage in found}
        assert len(found) == 10 and found == pytest.approx(expected, abs=1e-5)
    recall = recall_against_exact(run, exact, depth=10)
    assert recall > max(0.9, recall_against_exact(plain, exact, depth=10) + 0.2)


def test_cells_that_hold_too_few_give_fewer_passages(search):
    run = search("IVF32,Flat", depth=1000, rescore=1000)
    sizes = {len(found) for found in run.values()}
    assert min(sizes) > 0 and max(sizes) < 1000
    assert min(score for found in run.values() for score in found.values()) >= -1.0001


def test_a_saved_index_is_opened_and_another_is_refused(embeddings, tmp_path):
    folder = tmp_path / "indexes" / "wiki"
    build_approximate(embeddings, "IVF16,Flat", folder, seed=5)
    written = (folder / "index.faiss").stat().st_mtime_ns
    build_approximate(embeddings, "IVF16,Flat", folder, seed=5)
    assert (folder / "index.faiss").stat().st_mtime_ns == written
    with pytest.raises(ValueError, match="another factory, seed"):
        build_approximate(embeddings, "IVF8,Flat", folder)
    other = write_embeddings(tmp_path / "other", QUERIES, QUERY_IDS)
    with pytest.raises(ValueError, match="another retriever"):
        build_approximate(other, "IVF16,Flat", folder, seed=5)


def test_a_wrong_factory_or_parameter_is_refused(search, tmp_path):
    with pytest.raises(ValueError, match="index 'nonsense' of 1500 .*not parse index string"):
        search("nonsense")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="'Flat' .*with the parameters 'nprobs=3'"):
        search("Flat", "nprobs=3")


def test_parameters_of_an_index_without_one_are_refused():
    with pytest.raises(ValueError, match="search_parameters is 'nprobe=4', but exact search"):
        SearchSettings(search_parameters="nprobe=4")


def test_recall_is_the_mean_share_of_the_exact_answer():
    exact = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"d": 1.0}}
    run = {"q1": {"a": 9.0, "c": 8.0, "x": 7.0}, "q2": {}}
    assert recall_against_exact(run, exact, depth=1) == (1 + 0) / 2
    assert recall_against_exact(run, exact, depth=3) == (2 / 3 + 0) / 2
