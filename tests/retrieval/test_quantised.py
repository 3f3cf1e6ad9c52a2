"""Compressed vectors, against NumPy and sentence-transformers' own search."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers.util.quantization import quantize_embeddings, semantic_search_faiss

from modeling_condenser.encoding.embeddings import Embeddings, write_embeddings
from modeling_condenser.retrieval.dense import search_embeddings
from modeling_condenser.retrieval.quantised import CANDIDATES, build_quantised

N, WIDTH, DEPTH = 300, 20, 15  # a width that is no multiple of 8
RNG = np.random.default_rng(0)
PASSAGES = (RNG.standard_normal((N, WIDTH)) * RNG.uniform(0.2, 3, WIDTH)).astype(np.float32)
PASSAGES[:, 7] = 0.5  # a dimension without steps
QUERIES = RNG.standard_normal((30, WIDTH)).astype(np.float32)
IDS, QUERY_IDS = [f"p{i:03d}" for i in range(N)], [f"q{i}" for i in range(len(QUERIES))]


@pytest.fixture
def embeddings(tmp_path: Path) -> Embeddings:
    folder = tmp_path / "embeddings"
    return write_embeddings(folder, PASSAGES, IDS, shard_size=70, retriever_fingerprint="a")


def search(index, embeddings, **how):
    return search_embeddings(embeddings, QUERIES, QUERY_IDS, depth=DEPTH, index=index, **how)


def test_int8_scores_every_passage_by_its_restored_vector(embeddings, tmp_path):
    index = build_quantised(embeddings, "int8", tmp_path / "index")
    assert index.code_size == WIDTH
    run = search(index, embeddings)
    ranges = np.stack([PASSAGES.min(0), PASSAGES.max(0)])
    codes = quantize_embeddings(PASSAGES, "uint8", ranges=ranges)
    # sentence-transformers rescores candidates like this; here they are all passages.
    expected, _ = semantic_search_faiss(
        QUERIES, codes, corpus_precision="uint8", ranges=ranges, top_k=DEPTH, rescore_multiplier=N
    )
    for query, best in zip(QUERY_IDS, expected, strict=True):
        theirs = {IDS[each["corpus_id"]]: each["score"] for each in best}
        assert list(run[query]) == list(theirs)
        assert run[query] == pytest.approx(theirs, rel=1e-4, abs=1e-4)
    step = (ranges[1] - ranges[0]) / 255
    exact = QUERIES @ PASSAGES.T
    for query, own in zip(QUERIES, exact, strict=True):
        bound = (abs(query) * step).sum()
        found = run[QUERY_IDS[np.flatnonzero((query == QUERIES).all(1))[0]]]
        assert all(abs(own[IDS.index(p)] - score) <= bound for p, score in found.items())


def test_binary_scores_the_nearest_by_hamming_distance(embeddings, tmp_path):
    index = build_quantised(embeddings, "binary", tmp_path / "index")
    assert index.code_size == 3
    run = search(index, embeddings)
    bits = PASSAGES > 0
    for query, found in zip(QUERIES, run.values(), strict=True):
        distance = ((query > 0) != bits).sum(1)
        scores = bits @ query
        assert found == pytest.approx({p: scores[IDS.index(p)] for p in found}, abs=1e-5)
        nearest = np.sort(distance)[DEPTH * CANDIDATES - 1]
        chosen = np.array([IDS.index(p) for p in found])
        assert distance[chosen].max() <= nearest
        # No passage that is surely a candidate has a higher score than the last one found.
        others = np.setdiff1d(np.flatnonzero(distance < nearest), chosen)
        assert scores[others].max(initial=-np.inf) <= min(found.values()) + 1e-5
    # All passages as candidates: the best sums of all, as many as there are.
    few = search_embeddings(embeddings, QUERIES, QUERY_IDS, depth=10 * N, index=index)
    assert {len(found) for found in few.values()} == {N}


@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_candidates_can_be_scored_by_the_exact_vectors(embeddings, precision, tmp_path):
    index = build_quantised(embeddings, precision, tmp_path / "index")
    exact, run = search(None, embeddings), search(index, embeddings, rescore=N)
    assert list(run) == list(exact)
    for query in exact:
        assert list(run[query]) == list(exact[query])
        assert run[query] == pytest.approx(exact[query], rel=1e-5)


def test_an_index_of_other_vectors_is_not_used(embeddings, tmp_path):
    build_quantised(embeddings, "int8", tmp_path / "index")
    short = embeddings.truncated(8, retriever="short")
    for other, precision, what in ((short, "int8", "retriever"), (embeddings, "binary", "precis")):
        with pytest.raises(ValueError, match=f"another {what}"):
            build_quantised(other, precision, tmp_path / "index")


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_truncated_vectors_are_the_first_numbers(embeddings, similarity, tmp_path):
    from dataclasses import replace

    whole = replace(embeddings, contract={"similarity": similarity})
    short = whole.truncated(8, retriever="short")
    expected = PASSAGES[:, :8]
    if similarity == "cosine":
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    found = np.concatenate([block for _, block in short.blocks()])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    rows = np.array([299, 3, 71])
    np.testing.assert_allclose(short.vectors(rows), expected[rows], rtol=1e-6)
    run = search_embeddings(short, QUERIES[:, :8], QUERY_IDS, depth=3)
    best = np.argsort(-(QUERIES[:, :8] @ expected.T), axis=1)[:, :3]
    assert [[*found] for found in run.values()] == [[IDS[i] for i in own] for own in best]
    assert build_quantised(short, "binary", tmp_path / "index").code_size == 1
