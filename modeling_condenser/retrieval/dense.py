"""Dense search: rank passages by inner product with queries, exactly or by a faiss index.

Exact search reads one shard after another, in float32. Passages with equal scores are ordered by
id, also at the last place of a run unless more than 32 passages share its score.

A faiss index is made from a factory string, such as `IVF256,Flat`, `HNSW32`, `SQ8` or
`IVF256,RaBitQ`. It is faster or smaller than exact search, but misses some passages. Vectors of the
cosine similarity have length 1. This module does not import torch.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from modeling_condenser.encoding.embeddings import Embeddings, check_vectors, find_best
from modeling_condenser.files.run_folder import build_once

from .runs import Run, cut_run

if TYPE_CHECKING:
    from modeling_condenser.encoding.retriever import Retriever

logger = logging.getLogger(__name__)

EXACT = "Flat"
INDEX_FILE = "index.faiss"
EMBEDDINGS_FOLDER = "embeddings"
_RECALL_QUERIES = 1000
_SPARE = 32  # candidates beyond the depth, for breaking ties


_VECTORS_PER_CENTROID = 64  # faiss uses at most 256 and warns below 39
_SMALLEST_TRAINING_SET = 65_536  # 256 vectors for each of product quantisation's 256 centroids


@dataclass(frozen=True)
class SearchSettings:
    """How a dense system encodes and searches a collection.

    Attributes:
        index: a faiss factory string, such as IVF256,Flat or SQ8; "Flat" is exact search.
        search_parameters: of the index, such as "nprobe=16" or "efSearch=128".
        devices: to encode on, one worker each, such as "cuda:0,cuda:1"; by default all GPUs, or the
            CPU.

    Raises:
        ValueError: `search_parameters` are given without an index.
    """

    index: str = EXACT
    search_parameters: str | None = None
    devices: str | None = None

    def __post_init__(self) -> None:
        if self.is_exact and self.search_parameters is not None:
            raise ValueError(
                f"search_parameters is {self.search_parameters!r}, but exact search has none: name"
                " an index, such as IVF256,Flat, or leave it out."
            )

    @property
    def is_exact(self) -> bool:
        return self.index == EXACT

    @property
    def device_list(self) -> list[str] | None:
        return self.devices.split(",") if self.devices else None


@dataclass(frozen=True)
class DenseSearcher:
    """Encodes queries and ranks passages by their embeddings."""

    retriever: "Retriever"
    embeddings: Embeddings
    index: faiss.Index | None = None
    bytes_per_vector: float | None = None  # in the index, or in the embeddings

    def search(self, queries: Mapping[str, str], depth: int) -> Run:
        """Find the best `depth` passages for each query; a blank one finds none, as in BM25."""
        queries = {name: text for name, text in queries.items() if text.strip()}
        if not queries:
            return {}
        vectors = self.retriever.encode_queries(list(queries.values()))
        return search_embeddings(
            self.embeddings, vectors, list(queries), depth=depth, index=self.index
        )

    def measure_recall(self, queries: Mapping[str, str], run: Run, *, depth: int) -> dict[str, Any]:
        """Measure the recall against exact search on 1,000 queries; empty for exact search."""
        sample = dict(islice(queries.items(), _RECALL_QUERIES))
        if self.index is None or not sample:
            return {}
        exact = replace(self, index=None).search(sample, depth)
        recall = recall_against_exact(run, exact, depth=depth)
        return {"recall_against_exact": recall, "recall_queries": len(sample)}


def search_embeddings(
    embeddings: Embeddings,
    queries: np.ndarray,
    query_ids: Sequence[str],
    *,
    depth: int = 100,
    index: faiss.Index | None = None,
) -> Run:
    """Rank a collection's passages for queries, (Q, D) float32.

    An index may find fewer than `depth` passages, and its scores may be estimates.
    """
    _check_queries(queries, query_ids, embeddings.dimension)
    k = min(depth + _SPARE, embeddings.n_passages)
    if index is None:
        scores, rows = find_best(queries, embeddings.blocks(), depth=k)
    else:
        scores, rows = index.search(queries, k)  # (Q, k) both; row -1 for none
    return _make_run(query_ids, scores, rows, embeddings.ids, depth=depth)


def search_exact_arrays(
    passage_embeddings: np.ndarray,
    passage_ids: Sequence[str],
    *,
    query_embeddings: np.ndarray,
    query_ids: Sequence[str],
    depth: int = 100,
) -> Run:
    """Rank passages in memory, (N, D) float32, by inner product with queries, (Q, D) float32."""
    check_vectors(passage_embeddings, len(set(passage_ids)))
    _check_queries(query_embeddings, query_ids, passage_embeddings.shape[1])
    scores, rows = find_best(query_embeddings, [passage_embeddings], depth=depth + _SPARE)
    return _make_run(query_ids, scores, rows, lambda r: [passage_ids[i] for i in r], depth=depth)


def _make_run(
    query_ids: Sequence[str], scores: np.ndarray, rows: np.ndarray, ids: Callable, *, depth: int
) -> Run:
    """Make a run of scores and rows, (Q, k), with row -1 for none; `ids` maps rows to ids."""
    unique = np.unique(rows[rows >= 0])
    id_of = dict(zip(unique.tolist(), ids(unique), strict=True))  # queries share the strings
    run: Run = {}
    for query, query_id in enumerate(query_ids):
        pairs = zip(rows[query].tolist(), scores[query].tolist(), strict=True)
        run[query_id] = {id_of[row]: score for row, score in pairs if row >= 0}
    return cut_run(run, depth)


def _check_queries(queries: np.ndarray, query_ids: Sequence[str], dimension: int) -> None:
    check_vectors(queries, len(set(query_ids)))
    if queries.shape[1] != dimension:
        raise ValueError(
            f"Queries have {queries.shape[1]} numbers, but passages {dimension}: use one model."
        )


def recall_against_exact(run: Run, exact_run: Run, *, depth: int) -> float:
    """Return the share of exact search's best `depth` passages that a run found, 0 to 1."""
    run, exact_run = cut_run(run, depth), cut_run(exact_run, depth)
    shares = []
    for query, best in exact_run.items():
        shares.append(len(best.keys() & run.get(query, {}).keys()) / len(best))
    return float(np.mean(shares))


def build_approximate(
    embeddings: Embeddings,
    factory: str,
    folder: str | Path,
    *,
    parameters: str | None = None,
) -> faiss.Index:
    """Build and save a faiss index, or open the one in the folder; it is mapped into memory.

    Args:
        embeddings: the rows of the index.
        factory: a faiss factory string; if faiss refuses it, a ValueError is raised.
        folder: new, empty, or of an earlier call.
        parameters: of the search, such as "nprobe=16" or "efSearch=128"; faiss's own by default.
    """
    folder = Path(folder)
    identity = {
        "factory": factory,
        "retriever": embeddings.retriever,
        "passages": embeddings.passages,
    }

    def build(new: Path) -> None:
        faiss.write_index(_make(embeddings, factory), str(new / INDEX_FILE))

    try:
        build_once(folder, identity, build)
        read: Any = faiss.read_index  # whose annotation lacks the flags
        index = read(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP_IFC)
        if parameters:
            space: Any = faiss.ParameterSpace()  # whose annotation names one of its overloads
            space.set_index_parameters(index, parameters)
    except RuntimeError as error:
        reason = str(error).rpartition(": ")[2].strip()  # without the C++ function, file and line
        raise ValueError(
            f"faiss cannot make an index {factory!r} of {embeddings.n_passages} vectors, or search"
            f" it with the parameters {parameters!r} ({reason})."
        ) from error
    return index


def _make(embeddings: Embeddings, factory: str) -> faiss.Index:
    index = faiss.index_factory(embeddings.dimension, factory, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        inverted_file = faiss.try_extract_index_ivf(index)
        wanted = _VECTORS_PER_CENTROID * (inverted_file.nlist if inverted_file else 0)
        size = min(max(wanted, _SMALLEST_TRAINING_SET), embeddings.n_passages)
        logger.info("Training %s on %d vectors", factory, size)
        rows = np.random.default_rng(0).choice(embeddings.n_passages, size, replace=False)
        index.train(embeddings.vectors(np.sort(rows)))
    for block in embeddings.blocks():
        index.add(np.ascontiguousarray(block))
    return index
