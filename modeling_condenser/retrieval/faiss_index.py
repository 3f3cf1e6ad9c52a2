"""Approximate search of vectors by an index of faiss.

An index is made from a factory string, such as `IVF256,Flat`, `HNSW32`, `SQ8` or `IVF256,RaBitQ`.
It is faster or smaller than exact search, but misses some passages.
"""

import logging
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.files.run_folder import build_once

from .runs import Run, cut_run

logger = logging.getLogger(__name__)

INDEX_FILE = "index.faiss"
_VECTORS_PER_CENTROID = 64  # faiss uses at most 256 and warns below 39
_SMALLEST_TRAINING_SET = 65_536  # 256 vectors for each of product quantisation's 256 centroids


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
