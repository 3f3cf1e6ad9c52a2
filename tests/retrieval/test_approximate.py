"""Approximate search beside exact search, and what its folder refuses."""

import resource
from pathlib import Path

import faiss
import numpy as np
import pytest

from modeling_condenser.encoding.embeddings import Embeddings, write_embeddings
from modeling_condenser.retrieval.approximate import (
    ApproximateIndex,
    build_approximate,
    recall_against_exact,
)
from modeling_condenser.retrieval.exact import search_exact

N, WIDTH, N_QUERIES = 1500, 16, 40
QUERY_IDS = [f"q{i}" for i in range(N_QUERIES)]


def make_clusters(n: int, *, seed: int) -> np.ndarray:
    """Vectors of length 1 around 30 centres: (n, WIDTH) float32."""
    centres = np.random.default_rng(0).standard_normal((30, WIDTH))
    rng = np.random.default_rng(seed)
    vectors = centres[rng.integers(0, 30, n)] + 0.4 * rng.standard_normal((n, WIDTH))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    ids = [f"p{i:04d}" for i in np.random.default_rng(1).permutation(N)]
    return write_embeddings(
        tmp_path_factory.mktemp("embeddings") / "wiki",
        make_clusters(N, seed=2),
        ids,
        shard_size=400,
        retriever_fingerprint="a retriever",
        passages_fingerprint="some passages",
    )


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return make_clusters(N_QUERIES, seed=3)


@pytest.mark.parametrize(
    ("factory", "parameters", "at_least"),
    [
        ("Flat", None, 1.0),
        ("IVF16,Flat", "nprobe=16", 1.0),  # all cells: nothing is missed
        ("IVF16,Flat", "nprobe=4", 0.8),
        ("HNSW16", "efSearch=100", 0.98),
        ("SQ8", None, 0.9),
        ("IVF8,RaBitQ", "nprobe=8", 0.3),
        pytest.param("PQ8x4fs", None, 0.4, marks=pytest.mark.slow),
        pytest.param("OPQ8_16,IVF8,PQ8x4fs", "nprobe=8", 0.4, marks=pytest.mark.slow),
    ],
)
def test_an_index_finds_what_exact_search_finds(
    factory: str,
    parameters: str | None,
    at_least: float,
    embeddings: Embeddings,
    queries: np.ndarray,
    tmp_path: Path,
) -> None:
    exact = search_exact(embeddings, queries, QUERY_IDS, depth=10)
    index = build_approximate(embeddings, factory, tmp_path / "index")
    run = index.search(queries, QUERY_IDS, depth=10, parameters=parameters)
    assert list(run) == QUERY_IDS
    assert {len(found) for found in run.values()} == {10}
    assert recall_against_exact(run, exact, depth=10) >= at_least
    for found in run.values():
        assert list(found.items()) == sorted(found.items(), key=lambda item: (-item[1], item[0]))
    if at_least == 1.0:
        for query in QUERY_IDS:
            assert list(run[query].values()) == pytest.approx(list(exact[query].values()), 1e-5)


def test_more_cells_find_more(embeddings: Embeddings, queries: np.ndarray, tmp_path: Path) -> None:
    exact = search_exact(embeddings, queries, QUERY_IDS, depth=50)
    index = build_approximate(embeddings, "IVF32,Flat", tmp_path / "index")
    recalls = [
        recall_against_exact(
            index.search(queries, QUERY_IDS, depth=50, parameters=f"nprobe={n}"), exact, depth=50
        )
        for n in (1, 2, 4, 32)
    ]
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.95 < recalls[2] < recalls[3] == 1


def test_parameters_hold_for_one_search_only(
    embeddings: Embeddings, queries: np.ndarray, tmp_path: Path
) -> None:
    index = build_approximate(embeddings, "IVF32,Flat", tmp_path / "index")
    plain = index.search(queries, QUERY_IDS, depth=50)
    wide = index.search(queries, QUERY_IDS, depth=50, parameters="nprobe=8")
    assert plain != wide
    assert index.search(queries, QUERY_IDS, depth=50) == plain


def test_scored_anew_the_scores_are_those_of_exact_search(
    embeddings: Embeddings, queries: np.ndarray, tmp_path: Path
) -> None:
    exact = search_exact(embeddings, queries, QUERY_IDS, depth=N)
    index = build_approximate(embeddings, "IVF8,RaBitQ", tmp_path / "index")
    plain = index.search(queries, QUERY_IDS, depth=10, parameters="nprobe=8")
    run = index.search(queries, QUERY_IDS, depth=10, parameters="nprobe=8", rescore=100)
    for query, found in run.items():
        assert len(found) == 10
        assert found == {passage: exact[query][passage] for passage in found}
    assert any(plain[q][p] != exact[q][p] for q in plain for p in plain[q])
    first_ten = {q: dict(list(found.items())[:10]) for q, found in exact.items()}
    recall = recall_against_exact(run, first_ten, depth=10)
    assert recall > recall_against_exact(plain, first_ten, depth=10) + 0.2
    assert recall > 0.9


def test_ties_are_ordered_by_id(tmp_path: Path) -> None:
    vectors = np.tile(make_clusters(3, seed=0), (10, 1))
    ids = [f"p{i:02d}" for i in np.random.default_rng(0).permutation(30)]
    embeddings = write_embeddings(tmp_path / "e", vectors, ids, shard_size=7)
    index = build_approximate(embeddings, "Flat", tmp_path / "i")
    run = index.search(vectors[:1], ["q"], depth=10)
    assert list(run["q"]) == sorted(ids[0::3])


def test_cells_that_hold_too_few_give_fewer_passages(
    embeddings: Embeddings, queries: np.ndarray, tmp_path: Path
) -> None:
    index = build_approximate(embeddings, "IVF32,Flat", tmp_path / "index")
    run = index.search(queries, QUERY_IDS, depth=1000, parameters="nprobe=1")
    sizes = {len(found) for found in run.values()}
    assert min(sizes) > 0 and max(sizes) < 1000
    assert min(score for found in run.values() for score in found.values()) >= -1.0001
    deep = index.search(queries, QUERY_IDS, depth=10 * N, parameters="nprobe=32", rescore=20 * N)
    assert deep == search_exact(embeddings, queries, QUERY_IDS, depth=N)


def test_the_same_seed_gives_the_same_index_and_another_seed_another(
    embeddings: Embeddings, tmp_path: Path
) -> None:
    settings = {"train_size": 700}
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        build_approximate(embeddings, "IVF16,SQ8", tmp_path / name, seed=seed, **settings)
    contents = [(tmp_path / name / "index.faiss").read_bytes() for name in "abc"]
    assert contents[0] == contents[1] != contents[2]


def test_what_is_there_is_opened_and_something_else_is_refused(
    embeddings: Embeddings, tmp_path: Path
) -> None:
    folder = tmp_path / "indexes" / "wiki"
    build_approximate(embeddings, "IVF16,Flat", folder)
    assert sorted(file.name for file in folder.iterdir()) == ["index.faiss", "index.json"]
    assert [file.name for file in folder.parent.iterdir()] == ["wiki"]
    written = (folder / "index.faiss").stat().st_mtime_ns
    again = build_approximate(embeddings, "IVF16,Flat", folder)
    assert (folder / "index.faiss").stat().st_mtime_ns == written
    assert again.index.ntotal == N
    assert ApproximateIndex.open(folder, embeddings).identity == again.identity
    with pytest.raises(ValueError, match="factory 'IVF16,Flat', expected 'IVF8,Flat'"):
        build_approximate(embeddings, "IVF8,Flat", folder)
    with pytest.raises(ValueError, match="seed 0, expected 1"):
        build_approximate(embeddings, "IVF16,Flat", folder, seed=1)
    other = write_embeddings(
        tmp_path / "other",
        make_clusters(N, seed=9),
        [str(i) for i in range(N)],
        retriever_fingerprint="another",
        passages_fingerprint="some passages",
    )
    with pytest.raises(ValueError, match="retriever 'a retriever', expected 'another'"):
        build_approximate(other, "IVF16,Flat", folder)
    with pytest.raises(ValueError, match="retriever 'a retriever', expected 'another'"):
        ApproximateIndex.open(folder, other)


def test_a_broken_folder_is_refused(embeddings: Embeddings, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no index \(index.json is missing"):
        ApproximateIndex.open(tmp_path, embeddings)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileNotFoundError, match=r"index.json is missing"):
        build_approximate(embeddings, "Flat", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    folder = tmp_path / "index"
    build_approximate(embeddings, "Flat", folder)
    content = (folder / "index.faiss").read_bytes()
    (folder / "index.faiss").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"index.faiss is damaged; remove"):
        ApproximateIndex.open(folder, embeddings)
    small = faiss.IndexFlatIP(WIDTH)
    small.add(make_clusters(3, seed=0))
    faiss.write_index(small, str(folder / "index.faiss"))
    with pytest.raises(ValueError, match=f"holds 3 vectors, expected {N}"):
        ApproximateIndex.open(folder, embeddings)
    (folder / "index.json").write_text('{"factory": "Flat"}')
    with pytest.raises(ValueError, match=r"index.json is damaged"):
        ApproximateIndex.open(folder, embeddings)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nonsense", "index 'nonsense' for 16 numbers [(]could not parse index string"),
        ("HNSW32,RaBitQ", "IndexHNSWRaBitQ supports only the L2 metric"),
        ("NSG16", "cannot add vectors in several parts .* NSG does not support incremental"),
        ("IVF2000,Flat", "cannot train 'IVF2000,Flat' on 1500 of 1500 vectors; with too few"),
    ],
)
def test_a_factory_that_cannot_work_is_refused_and_leaves_nothing(
    factory: str, message: str, embeddings: Embeddings, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        build_approximate(embeddings, factory, tmp_path / "index")
    assert ".cpp" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("nprobs=3", "'IVF16,Flat' has no parameter 'nprobs'; known: nprobe"),
        ("nprobe", "'nprobe' is not name=number"),
        ("nprobe=0", "'nprobe=0' is not name=number with a number above 0"),
    ],
)
def test_parameters_that_do_not_exist_are_refused(
    parameters: str, message: str, embeddings: Embeddings, queries: np.ndarray, tmp_path: Path
) -> None:
    index = build_approximate(embeddings, "IVF16,Flat", tmp_path / "index")
    with pytest.raises(ValueError, match=message):
        index.search(queries, QUERY_IDS, parameters=parameters)


def test_queries_that_do_not_fit_are_refused(
    embeddings: Embeddings, queries: np.ndarray, tmp_path: Path
) -> None:
    index = build_approximate(embeddings, "Flat", tmp_path / "index")
    with pytest.raises(ValueError, match="Queries have 3 numbers and passages 16"):
        index.search(np.ones((1, 3), dtype=np.float32), ["q"])
    with pytest.raises(ValueError, match="rescore is 5 and depth 10"):
        index.search(queries, QUERY_IDS, depth=10, rescore=5)
    with pytest.raises(ValueError, match="hold NaN or infinity"):
        index.search(np.full((1, 16), np.inf, dtype=np.float32), ["q"])


def test_an_opened_index_is_mapped_not_read(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((100_000, 64)).astype(np.float32)
    embeddings = write_embeddings(tmp_path / "e", vectors, [str(i) for i in range(100_000)])
    build_approximate(embeddings, "Flat", tmp_path / "i")
    before = resident_bytes()
    ApproximateIndex.open(tmp_path / "i", embeddings)
    assert resident_bytes() - before < vectors.nbytes / 4


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_recall_is_the_mean_share_of_the_exact_answer() -> None:
    exact = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"d": 1.0}}
    run = {"q1": {"a": 9.0, "c": 8.0, "x": 7.0}, "q2": {}}
    assert recall_against_exact(run, exact, depth=1) == (1 + 0) / 2
    assert recall_against_exact(run, exact, depth=2) == (1 / 2 + 0) / 2
    assert recall_against_exact(run, exact, depth=3) == (2 / 3 + 0) / 2
    assert recall_against_exact(exact, exact, depth=9) == 1
    with pytest.raises(ValueError, match="runs of 1 and 2 queries, of which 1 are in both"):
        recall_against_exact({"q1": {}}, exact, depth=3)
    with pytest.raises(ValueError, match="depth is 0"):
        recall_against_exact(run, exact, depth=0)
