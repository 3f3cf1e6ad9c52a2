"""Approximate search with any faiss index: faster or smaller than exact search, but it can miss.

An index is made from a faiss factory string, such as `IVF256,Flat`, `HNSW32` or
`OPQ64_256,IVF1024,PQ64x4fs`, and saved in a folder:

index.faiss   the index, which is mapped into memory when it is opened
index.json    what it was made from

All indices use inner products; cosine similarity is the same, because its vectors have length 1.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from tqdm.auto import tqdm

from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.runs.run_folder import whole_folder
from modeling_condenser.runs.whole_files import write_json

from .exact import check_queries
from .runs import Run, make_run, rank_passages

logger = logging.getLogger(__name__)

INDEX_FILE, IDENTITY_FILE = "index.faiss", "index.json"
_VECTORS_PER_CENTROID = 64  # faiss uses at most 256 and warns below 39
_SMALLEST_TRAINING_SET = 65_536  # 256 vectors for each of product quantisation's 256 centroids
_QUERY_BATCH = 256


def build_approximate(
    embeddings: Embeddings,
    factory: str,
    folder: str | Path,
    *,
    parameters: str | None = None,
    seed: int = 0,
    progress: bool = False,
) -> faiss.Index:
    """Build and save an index, or open it if the folder already holds it.

    Args:
        embeddings: whose rows the index holds.
        factory: a faiss factory string.
        folder: new, empty, or of an earlier call.
        parameters: of the search, `name=value[,name=value]...`, such as "nprobe=16" or
            "efSearch=128"; by default faiss's own (nprobe=1, efSearch=16).
        seed: selects the vectors that the index is trained on.
        progress: show a bar.

    Raises:
        ValueError: faiss cannot make the index, it lacks a parameter, or the folder holds another.
    """
    folder = Path(folder)
    identity = {
        "factory": factory,
        "seed": seed,
        "retriever": embeddings.retriever,
        "passages": embeddings.passages,
    }
    if not folder.exists() or not any(folder.iterdir()):
        index = _build(embeddings, factory, seed, progress=progress)
        with whole_folder(folder) as partial:
            faiss.write_index(index, str(partial / INDEX_FILE))
            write_json(partial / IDENTITY_FILE, identity)
    stored = json.loads((folder / IDENTITY_FILE).read_text())
    if changed := [name for name, value in identity.items() if stored.get(name) != value]:
        raise ValueError(
            f"{folder} holds an index with another {', '.join(changed)}: remove the folder."
        )
    index = faiss.read_index(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP_IFC)
    if parameters:
        with _faiss_errors(f"{factory!r} does not have the parameters {parameters!r}"):
            space: Any = faiss.ParameterSpace()  # whose annotation names one of its overloads
            space.set_index_parameters(index, parameters)
    return index


def _build(embeddings: Embeddings, factory: str, seed: int, *, progress: bool) -> faiss.Index:
    n_passages, dimension = embeddings.n_passages, embeddings.dimension
    with _faiss_errors(f"faiss cannot make an index {factory!r} of {n_passages} vectors"):
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        if not index.is_trained:
            inverted_file = faiss.try_extract_index_ivf(index)
            wanted = _VECTORS_PER_CENTROID * (inverted_file.nlist if inverted_file else 0)
            size = min(max(wanted, _SMALLEST_TRAINING_SET), n_passages)
            logger.info("Training %s on %d vectors", factory, size)
            rows = np.random.default_rng(seed).choice(n_passages, size, replace=False)
            index.train(embeddings.vectors(np.sort(rows)))
        for _, block in embeddings.blocks(progress="index" if progress else ""):
            index.add(np.ascontiguousarray(block))
    return index


def search_approximate(
    index: faiss.Index,
    embeddings: Embeddings,
    queries: np.ndarray,
    query_ids: Sequence[str],
    *,
    depth: int = 100,
    rescore: int = 0,
    progress: bool = False,
) -> Run:
    """Rank up to `depth` passages for each of Q queries, (Q, D) float32, approximately.

    With `rescore`, so many candidates (at least `depth`) are scored with the exact vectors;
    otherwise scores are those of the index, which are estimates for compressed vectors.
    """
    check_queries(queries, query_ids, dimension=embeddings.dimension, depth=depth)
    k = min(max(rescore, depth), embeddings.n_passages)
    run: Run = {}
    starts = range(0, len(queries), _QUERY_BATCH)
    for start in tqdm(starts, desc="search", unit="batch", disable=not progress):
        some = slice(start, start + _QUERY_BATCH)
        scores, rows = index.search(queries[some], k)  # (b, k) both; row -1 for none
        if rescore:
            for query, own, found in zip(queries[some], scores, rows, strict=True):
                is_row = found >= 0
                own[is_row] = embeddings.vectors(found[is_row]) @ query
        run |= make_run(query_ids[some], scores, rows, embeddings.ids, depth=depth)
    return run


def recall_against_exact(run: Run, exact_run: Run, *, depth: int) -> float:
    """The share of exact search's best `depth` passages that another run found, 0 to 1."""
    shares = []
    for query, exact in exact_run.items():
        best = {passage for passage, _ in rank_passages(exact)[:depth]}
        found = {passage for passage, _ in rank_passages(run[query])[:depth]}
        shares.append(len(best & found) / len(best))
    return float(np.mean(shares))


@contextmanager
def _faiss_errors(message: str) -> Iterator[None]:
    """Raise faiss's errors as a ValueError with a message."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).rpartition(": ")[2].strip()  # without the C++ function, file and line
        raise ValueError(f"{message} ({reason}).") from error
