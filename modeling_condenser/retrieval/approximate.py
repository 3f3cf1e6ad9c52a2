"""Indices for approximate search with faiss: faster or smaller than exact search, but they miss.

An index is made from a faiss factory string, such as `IVF256,Flat`, `HNSW32` or
`OPQ64_256,IVF1024,PQ64x4fs`, and saved in a folder:

index.faiss   the index, which is mapped into memory when it is opened
index.json    what it was made from

All indices use inner products; cosine similarity is the same, because its vectors have length 1.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from modeling_condenser.encoding.embeddings import Embeddings

from .stored_index import build_once

logger = logging.getLogger(__name__)

INDEX_FILE, IDENTITY_FILE = "index.faiss", "index.json"
_VECTORS_PER_CENTROID = 64  # faiss uses at most 256 and warns below 39
_SMALLEST_TRAINING_SET = 65_536  # 256 vectors for each of product quantisation's 256 centroids


def build_approximate(
    embeddings: Embeddings,
    factory: str,
    folder: str | Path,
    *,
    parameters: str | None = None,
    seed: int = 0,
) -> faiss.Index:
    """Build and save an index, or open it if the folder already holds it.

    Args:
        embeddings: whose rows the index holds.
        factory: a faiss factory string.
        folder: new, empty, or of an earlier call.
        parameters: of the search, `name=value[,name=value]...`, such as "nprobe=16" or
            "efSearch=128"; by default faiss's own (nprobe=1, efSearch=16).
        seed: selects the vectors that the index is trained on.

    Raises:
        ValueError: faiss cannot make the index, it lacks a parameter, or the folder holds another.
    """
    make = partial(_make, embeddings, factory, seed)
    try:
        index = open_index(embeddings, Path(folder), make, factory=factory, seed=seed)
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


def _make(embeddings: Embeddings, factory: str, seed: int) -> faiss.Index:
    index = faiss.index_factory(embeddings.dimension, factory, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        inverted_file = faiss.try_extract_index_ivf(index)
        wanted = _VECTORS_PER_CENTROID * (inverted_file.nlist if inverted_file else 0)
        size = min(max(wanted, _SMALLEST_TRAINING_SET), embeddings.n_passages)
        logger.info("Training %s on %d vectors", factory, size)
        rows = np.random.default_rng(seed).choice(embeddings.n_passages, size, replace=False)
        index.train(embeddings.vectors(np.sort(rows)))
    for _, block in embeddings.blocks():
        index.add(np.ascontiguousarray(block))
    return index


def open_index(
    embeddings: Embeddings,
    folder: Path,
    make: Callable[[], Any],
    *,
    is_binary: bool = False,
    **settings: object,
) -> Any:
    """Open the faiss index of a folder, mapped into memory; `make` makes it the first time.

    Its rows are those of the embeddings, and it depends on `settings` too.
    """
    write: Any = faiss.write_index_binary if is_binary else faiss.write_index
    read: Any = faiss.read_index_binary if is_binary else faiss.read_index
    identity = {**settings, "retriever": embeddings.retriever, "passages": embeddings.passages}
    build_once(
        folder / IDENTITY_FILE, identity, lambda partial: write(make(), str(partial / INDEX_FILE))
    )
    return read(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP_IFC)
