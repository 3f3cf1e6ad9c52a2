"""Search among compressed vectors: one byte or one bit for each number.

faiss searches all of them:

int8      255 equal steps between the least and the greatest value of each dimension in the
          collection, as in sentence-transformers. The score is the inner product of the query with
          the restored vector, which has the middle of each step.
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

from .stored_index import open_index

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
        """Find k rows, or all, for each of (Q, D) float32: scores and rows (Q, k), best first."""
        n_candidates = min(CANDIDATES * k, self.bits.ntotal)
        _, rows = self.bits.search(np.packbits(queries > 0, axis=1), n_candidates)
        scores = np.stack(list(map(self._score, queries, rows)))  # (Q, candidates)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)

    def _score(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The sums of the query's numbers where the bits of (n,) rows are set: (n,) float32."""
        codes = np.stack([self.bits.reconstruct(row) for row in rows.tolist()])
        return np.unpackbits(codes, axis=1)[:, : len(query)] @ query


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
    bar = "quantise" if progress else ""
    make = partial(_make_bits if is_binary else _make_bytes, embeddings, bar)
    index = open_index(embeddings, folder, make, is_binary=is_binary, precision=precision)
    return BinaryIndex(index) if is_binary else index


def _make_bytes(embeddings: Embeddings, bar: str) -> faiss.Index:
    extremes = [(block.min(axis=0), block.max(axis=0)) for _, block in embeddings.blocks()]
    lowest, highest = zip(*extremes, strict=True)
    index = faiss.index_factory(embeddings.dimension, "SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(np.stack([np.min(lowest, axis=0), np.max(highest, axis=0)]))  # only reads the range
    for _, block in embeddings.blocks(progress=bar):
        index.add(np.ascontiguousarray(block))
    return index


def _make_bits(embeddings: Embeddings, bar: str) -> faiss.IndexBinary:
    index = faiss.IndexBinaryFlat(8 * -(-embeddings.dimension // 8))
    for _, block in embeddings.blocks(progress=bar):
        index.add(np.packbits(block > 0, axis=1))
    return index
