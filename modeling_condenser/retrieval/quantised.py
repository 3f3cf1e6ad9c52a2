"""Search among compressed vectors with faiss: one byte or one bit for each number.

int8      255 equal steps between the least and the greatest value of each dimension in the
          collection. The score is the inner product of the query with the restored vector.
binary    whether each number is above 0. Four times as many candidates as wanted are found by the
          Hamming distance, and scored by the sum of the query's numbers where a passage's bit is
          set (much as in Yamada et al. 2021, Efficient Passage Retrieval with Hashing).
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np

from modeling_condenser.encoding.embeddings import Embeddings

from .approximate import open_index

Precision = Literal["float32", "int8", "binary"]

CANDIDATES = 4  # for each passage that is wanted of a binary index


@dataclass(frozen=True)
class BinaryIndex:
    """Vectors as bits, in the order of the passages."""

    bits: Any  # faiss.IndexBinaryFlat, which the library's annotations leave out

    @property
    def code_size(self) -> int:
        """Bytes for a vector."""
        return self.bits.code_size

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Find k of the N rows for each of (Q, D) float32: scores and rows (Q, k), best first."""
        n_candidates = min(CANDIDATES * k, self.bits.ntotal)
        _, rows = self.bits.search(np.packbits(queries > 0, axis=1), n_candidates)
        scores = np.empty(rows.shape, dtype=np.float32)  # (Q, candidates), as are the rows
        for query, found, own in zip(queries, rows.tolist(), scores, strict=True):
            codes = np.stack([self.bits.reconstruct(row) for row in found])
            own[:] = np.unpackbits(codes, axis=1, count=len(query)) @ query
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)


def build_quantised(
    embeddings: Embeddings, precision: Precision, folder: Path, *, progress: bool = False
) -> faiss.Index | BinaryIndex:
    """Quantise vectors into an index and save it, or open it if the folder already holds it.

    Args:
        embeddings: whose rows the index holds.
        precision: "int8" or "binary".
        folder: new, empty, or of an earlier call.
        progress: show a bar.
    """
    is_binary = precision == "binary"
    build = partial(_build_bits if is_binary else _build_bytes, embeddings, progress)
    index = open_index(embeddings, folder, build, is_binary=is_binary, precision=precision)
    return BinaryIndex(index) if is_binary else index


def _build_bytes(embeddings: Embeddings, progress: bool) -> faiss.Index:
    kind = faiss.ScalarQuantizer.QT_8bit
    index = faiss.IndexScalarQuantizer(embeddings.dimension, kind, faiss.METRIC_INNER_PRODUCT)
    extremes = [np.stack([block.min(0), block.max(0)]) for _, block in embeddings.blocks()]
    index.train(np.concatenate(extremes))  # which reads nothing else of the vectors
    for _, block in embeddings.blocks(progress="quantise" if progress else ""):
        index.add(block)
    return index


def _build_bits(embeddings: Embeddings, progress: bool) -> faiss.IndexBinary:
    index = faiss.IndexBinaryFlat(8 * -(-embeddings.dimension // 8))
    for _, block in embeddings.blocks(progress="quantise" if progress else ""):
        index.add(np.packbits(block > 0, axis=1))
    return index
