"""Dense search: exactly beside brute force, and by indices beside exact search."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import write_embeddings
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.retrieval import indices
from modeling_condenser.retrieval.dense import (
    SearchSettings,
    recall_against_exact,
    search_embeddings,
    search_exact_arrays,
)
from modeling_condenser.retrieval.indices import CANDIDATES, build_approximate, build_quantised
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


def test_wrong_vectors_are_refused():
    passages = np.ones((4, 3), dtype=np.float32)
    for queries, ids, message in (
        (passages[:2], ["q", "q"], "1 ids for vectors of shape"),
        (passages[:1, :2], ["q"], "Queries have 2 numbers, but passages 3"),
    ):
        with pytest.raises(ValueError, match=message):
            search_exact_arrays(passages, list("abcd"), query_embeddings=queries, query_ids=ids)


N, WIDTH, N_QUERIES, DEPTH = 1500, 20, 40, 10  # a width that is no multiple of 8
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
PASSAGES[:, 7] = 0.5  # a dimension without steps


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    folder = tmp_path_factory.mktemp("embeddings")
    return write_embeddings(folder, PASSAGES, IDS, shard_size=400, retriever_fingerprint="a")


@pytest.fixture
def search(embeddings: Embeddings, tmp_path: Path) -> Any:
    """Searches by a factory and parameters, or a precision; exactly without either."""

    def run(kind: str = "", parameters: str | None = None, **how: int) -> Run:
        index: Any = None
        if kind in ("int8", "binary"):
            index = build_quantised(embeddings, kind, tmp_path / kind)  # type: ignore[arg-type]
        elif kind:
            index = build_approximate(embeddings, kind, tmp_path / kind, parameters=parameters)
        how = {"depth": DEPTH, **how}
        return search_embeddings(embeddings, QUERIES, QUERY_IDS, index=index, **how)

    return run


@pytest.mark.parametrize(
    ("factory", "parameters", "at_least"),
    [
        ("Flat", None, 1.0),
        ("IVF16,Flat", "nprobe=16", 1.0),  # all cells: nothing is missed
        ("HNSW16", "efSearch=100", 0.98),
        pytest.param("OPQ10_20,IVF8,PQ10x4fs", "nprobe=8", 0.4, marks=pytest.mark.slow),
    ],
)
def test_an_index_finds_what_exact_search_finds(factory, parameters, at_least, search):
    exact, run = search(), search(factory, parameters)
    assert list(run) == QUERY_IDS
    assert {len(found) for found in run.values()} == {DEPTH}
    assert recall_against_exact(run, exact, depth=DEPTH) >= at_least
    for query in QUERY_IDS if at_least == 1.0 else []:
        assert run[query] == pytest.approx(exact[query], rel=1e-5)


def test_int8_scores_every_passage_by_its_restored_vector(search):
    run, exact = search("int8", depth=N), search(depth=N)
    low, step = PASSAGES.min(0), np.ptp(PASSAGES, axis=0) / 255
    codes = ((PASSAGES - low) / np.where(step, step, 1)).astype(int)
    restored = low + (codes + 0.5) * step
    for name, query in zip(QUERY_IDS, QUERIES, strict=True):
        assert list(run[name].values()) == sorted(run[name].values(), reverse=True)
        errors = abs(query) * step  # of a code that is off by one
        bound = float(errors.sum())
        for scores, most in ((restored @ query, float(errors.max())), (PASSAGES @ query, bound)):
            assert run[name] == pytest.approx(dict(zip(IDS, scores, strict=True)), abs=most)
        assert run[name] == pytest.approx(exact[name], abs=bound)


def test_equal_scores_of_int8_vectors_are_ordered_by_id(tmp_path):
    vectors = np.repeat(PASSAGES[:2], 20, axis=0)
    ids = [f"p{i:02}" for i in reversed(range(40))]
    equal = write_embeddings(tmp_path / "equal", vectors, ids)
    index = build_quantised(equal, "int8", tmp_path / "int8")
    [found] = search_embeddings(equal, vectors[:1], ["q"], depth=5, index=index).values()
    assert list(found) == [f"p{i}" for i in range(20, 25)]


@pytest.mark.parametrize("bytes_a_call", [2**28, 1])
def test_binary_scores_the_nearest_by_hamming_distance(bytes_a_call, search, monkeypatch):
    monkeypatch.setattr(indices, "_BYTES_A_CALL", bytes_a_call)
    bits = PASSAGES > 0
    for query, found in zip(QUERIES, search("binary").values(), strict=True):
        distance = ((query > 0) != bits).sum(1)
        scores = bits @ query
        assert found == pytest.approx({p: scores[IDS.index(p)] for p in found}, abs=1e-5)
        nearest = np.sort(distance)[DEPTH * CANDIDATES - 1]
        chosen = np.array([IDS.index(p) for p in found])
        assert len(chosen) == DEPTH and distance[chosen].max() <= nearest
        # No passage that is surely a candidate has a higher score than the last one found.
        others = np.setdiff1d(np.flatnonzero(distance < nearest), chosen)
        assert scores[others].max(initial=-np.inf) <= min(found.values()) + 1e-5
    assert {len(found) for found in search("binary", depth=10 * N).values()} == {N}


@pytest.mark.parametrize(
    ("kind", "parameters", "rescore"),
    [("int8", None, N), ("binary", None, N), ("IVF8,RaBitQ", "nprobe=8", 100)],
)
def test_candidates_can_be_scored_by_the_exact_vectors(kind, parameters, rescore, search):
    exact, plain = search(depth=N), search(kind, parameters)
    run = search(kind, parameters, rescore=rescore)
    for query, found in run.items():
        expected = {passage: exact[query][passage] for passage in found}
        assert len(found) == DEPTH and found == pytest.approx(expected, abs=1e-5)
    recall = recall_against_exact(run, exact, depth=DEPTH)
    assert recall == 1 if rescore == N else recall > 0.9
    assert recall_against_exact(plain, exact, depth=DEPTH) < 1


def test_cells_that_hold_too_few_give_fewer_passages(search):
    run = search("IVF32,Flat", depth=1000, rescore=1000)
    sizes = {len(found) for found in run.values()}
    assert min(sizes) > 0 and max(sizes) < 1000
    assert min(score for found in run.values() for score in found.values()) >= -1.5


def test_a_saved_index_is_opened_and_another_is_refused(embeddings, tmp_path):
    folder = tmp_path / "indexes" / "wiki"
    build_approximate(embeddings, "IVF16,Flat", folder, seed=5)
    written = (folder / "index.faiss").stat().st_mtime_ns
    build_approximate(embeddings, "IVF16,Flat", folder, seed=5)
    assert (folder / "index.faiss").stat().st_mtime_ns == written
    short = embeddings.truncated(8, retriever="short")
    with pytest.raises(ValueError, match="another factory, seed"):
        build_approximate(embeddings, "IVF8,Flat", folder)
    with pytest.raises(ValueError, match="another retriever"):
        build_approximate(short, "IVF16,Flat", folder, seed=5)
    build_quantised(embeddings, "int8", tmp_path / "index")
    for other, precision, what in ((short, "int8", "retriever"), (embeddings, "binary", "precis")):
        with pytest.raises(ValueError, match=f"another {what}"):
            build_quantised(other, precision, tmp_path / "index")


def test_a_wrong_factory_or_parameter_is_refused(search, tmp_path):
    with pytest.raises(ValueError, match="index 'nonsense' of 1500 .*not parse index string"):
        search("nonsense")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="'Flat' .*with the parameters 'nprobs=3'"):
        search("Flat", "nprobs=3")
    with pytest.raises(ValueError, match="search_parameters is 'nprobe=4', but exact search"):
        SearchSettings(search_parameters="nprobe=4")
    with pytest.raises(ValueError, match="rescore is -5, expected at least 0"):
        SearchSettings(index="HNSW8", rescore=-5)


def test_a_depth_beyond_the_collection_finds_all_passages(search):
    assert {len(found) for found in search(depth=10**12).values()} == {N}


def test_recall_is_the_mean_share_of_the_exact_answer():
    exact = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"d": 1.0}}
    run = {"q1": {"a": 9.0, "c": 8.0, "x": 7.0}, "q2": {}}
    assert recall_against_exact(run, exact, depth=1) == (1 + 0) / 2
    assert recall_against_exact(run, exact, depth=3) == (2 / 3 + 0) / 2


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_truncated_vectors_are_the_first_numbers(embeddings, similarity, tmp_path):
    short = replace(embeddings, contract={"similarity": similarity}).truncated(8, retriever="s")
    expected = PASSAGES[:, :8]
    if similarity == "cosine":
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    found = np.concatenate([*short.blocks()])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    rows = np.array([299, 3, 1471])
    np.testing.assert_allclose(short.vectors(rows), expected[rows], rtol=1e-6)
    run = search_embeddings(short, QUERIES[:, :8], QUERY_IDS, depth=3)
    best = np.argsort(-(QUERIES[:, :8] @ expected.T), axis=1)[:, :3]
    assert [[*found] for found in run.values()] == [[IDS[i] for i in own] for own in best]
    assert build_quantised(short, "int8", tmp_path / "int8").code_size == 8
    assert build_quantised(embeddings, "binary", tmp_path / "binary").code_size == 3
