"""Builds approximate indices and compressed vectors, once each, and opens them.

An approximate index is made from a faiss factory string, such as `IVF256,Flat`, `HNSW32` or
`OPQ64_256,IVF1024,PQ64x4fs`. It is faster or smaller than exact search, but misses some passages.
All indices use inner products; vectors of the cosine similarity have length 1.

Compressed vectors take one byte or one bit per number, and faiss searches all of them:

int8      faiss's 8-bit scalar quantiser (SQ8): 255 equal steps between the lowest and the highest
          value of each dimension, in a sample of 65,536 vectors. The score is the inner product of
          the query with the restored vector.
binary    whether each number is above 0. The Hamming distance finds four times as many candidates
          as wanted; sentence-transformers scores them by the sum of the query's numbers where the
          bit is set (similar to Yamada et al. 2021, Efficient Passage Retrieval with Hashing).

An index is a folder: index.faiss, which is mapped into memory, and index.json, its identity.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np

from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.files.atomic import atomic_folder, write_json

logger = logging.getLogger(__name__)

Precision = Literal["float32", "int8", "binary"]

INDEX_FILE, IDENTITY_FILE = "index.faiss", "index.json"
CANDIDATES = 4  # of a binary index, for each wanted passage
_VECTORS_PER_CENTROID = 64  # faiss uses at most 256 and warns below 39
_SMALLEST_TRAINING_SET = 65_536  # 256 vectors for each of product quantisation's 256 centroids
_BYTES_A_CALL = 2**28  # of the candidates' bits, which sentence-transformers unpacks to int64


def build_once(
    file: Path,
    identity: Mapping[str, object],
    build: Callable[[Path], object],
    *,
    of_passages: Sequence[str] = ("passages",),
) -> None:
    """Build an index or a page in the folder of `file`, unless it is already there.

    `file` stores the identity: everything that the result depends on. It is built again if only the
    fields `of_passages` differ; if others do, a ValueError is raised.
    """
    folder = file.parent
    is_new = not folder.exists() or not any(folder.iterdir())
    stored = json.loads(file.read_text()) if file.is_file() else {}
    changed = [name for name, value in identity.items() if stored.get(name) != value]
    if not is_new and not set(changed) <= set(of_passages if stored else ()):
        raise ValueError(
            f"{folder} holds something else, made with another {', '.join(changed)}: name another"
            " folder, or remove this one to build it again."
        )
    if changed:
        with atomic_folder(folder) as new:
            build(new)
            write_json(new / file.name, identity)


def build_approximate(
    embeddings: Embeddings,
    factory: str,
    folder: str | Path,
    *,
    parameters: str | None = None,
    seed: int = 0,
) -> faiss.Index:
    """Build and save an approximate index, or open it if the folder already holds it.

    Args:
        embeddings: the rows of the index.
        factory: a faiss factory string.
        folder: new, empty, or of an earlier call.
        parameters: of the search, such as "nprobe=16" or "efSearch=128"; faiss's own by default.
        seed: selects the vectors that the index is trained on.

    Raises:
        ValueError: faiss refuses the factory or a parameter, or the folder holds another index.
    """
    make = partial(_make, embeddings, factory, seed)
    try:
        index = open_index(embeddings, Path(folder), make, factory=factory, seed=seed)
        if parameters:
            space: Any = faiss.ParameterSpace()  # whose annotation names one of its overloads
            space.set_index_parameters(index, parameters)
    except RuntimeError as error:
        reason = str(error).rpartition(": ")[2].strip()  # without the C++ function, file and line
        what = f"make an index {factory!r} of {embeddings.n_passages} vectors"
        if parameters:
            what += f", or search it with the parameters {parameters!r}"
        raise ValueError(f"faiss cannot {what} ({reason}).") from error
    return index


def _make(embeddings: Embeddings, factory: str, seed: int = 0) -> faiss.Index:
    index = faiss.index_factory(embeddings.dimension, factory, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        inverted_file = faiss.try_extract_index_ivf(index)
        wanted = _VECTORS_PER_CENTROID * (inverted_file.nlist if inverted_file else 0)
        size = min(max(wanted, _SMALLEST_TRAINING_SET), embeddings.n_passages)
        logger.info("Training %s on %d vectors", factory, size)
        rows = np.random.default_rng(seed).choice(embeddings.n_passages, size, replace=False)
        index.train(embeddings.vectors(np.sort(rows)))
    for block in embeddings.blocks():
        index.add(np.ascontiguousarray(block))
    return index


@dataclass(frozen=True)
class BinaryIndex:
    """Vectors as bits, in the order of the passages."""

    bits: Any  # faiss.IndexBinaryFlat, which has no annotations

    @property
    def code_size(self) -> int:
        """Bytes for a vector."""
        return self.bits.code_size

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Find k rows for queries, (Q, D) float32: scores and rows (Q, k), row -1 for none."""
        from sentence_transformers.util.quantization import semantic_search_faiss

        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        size = max(1, _BYTES_A_CALL // (8 * self.bits.d * k * CANDIDATES))
        for first in range(0, len(queries), size):
            found = semantic_search_faiss(
                queries[first : first + size],
                corpus_index=self.bits,
                corpus_precision="ubinary",
                top_k=k,
                rescore_multiplier=CANDIDATES,
            )[0]
            for query, best in enumerate(found, start=first):
                scores[query, : len(best)] = [each["score"] for each in best]
                rows[query, : len(best)] = [each["corpus_id"] for each in best]
        return scores, rows


def build_quantised(
    embeddings: Embeddings, precision: Precision, folder: Path
) -> faiss.Index | BinaryIndex:
    """Quantise vectors to "int8" or "binary" and save them, or open them from the folder."""
    is_binary = precision == "binary"
    make = partial(_make_bits, embeddings) if is_binary else partial(_make, embeddings, "SQ8")
    index = open_index(embeddings, folder, make, is_binary=is_binary, precision=precision)
    return BinaryIndex(index) if is_binary else index


def _make_bits(embeddings: Embeddings) -> faiss.IndexBinary:
    from sentence_transformers.util.quantization import quantize_embeddings

    index = faiss.IndexBinaryFlat(8 * -(-embeddings.dimension // 8))
    for block in embeddings.blocks():
        codes: Any = quantize_embeddings(block, "ubinary")
        index.add(codes)
    return index


def open_index(
    embeddings: Embeddings,
    folder: Path,
    make: Callable[[], Any],
    *,
    is_binary: bool = False,
    **settings: object,
) -> Any:
    """Open the faiss index of a folder, mapped into memory; the first call makes it.

    Its identity is that of the embeddings and the `settings`.
    """
    write: Any = faiss.write_index_binary if is_binary else faiss.write_index
    read: Any = faiss.read_index_binary if is_binary else faiss.read_index
    identity = {**settings, "retriever": embeddings.retriever, "passages": embeddings.passages}
    build_once(folder / IDENTITY_FILE, identity, lambda new: write(make(), str(new / INDEX_FILE)))
    return read(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP_IFC)
