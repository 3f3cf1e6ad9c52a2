"""Search among compressed vectors: one byte or one bit for each number.

sentence-transformers quantises the vectors, and faiss searches all of them:

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
_BYTES_A_CALL = 2**28  # of the candidates' bits, which the library restores as int64


@dataclass(frozen=True)
class BinaryIndex:
    """Vectors as bits, in the order of the passages."""

    bits: Any  # faiss.IndexBinaryFlat, which the library's annotations leave out

    @property
    def code_size(self) -> int:
        """Bytes for a vector."""
        return self.bits.code_size

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Find k rows for each of (Q, D) float32: scores and rows (Q, k), with row -1 for none."""
        from sentence_transformers.util.quantization import semantic_search_faiss

        # Whole bytes: sentence-transformers 6.0 does not cut the bits that fill the last one.
        queries = np.pad(queries, ((0, 0), (0, self.bits.d - queries.shape[1])))
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
    """Quantise vectors into an index and save it, or open it if the folder already holds it.

    Args:
        embeddings: whose rows the index holds.
        precision: "int8" or "binary".
        folder: new, empty, or of an earlier call.
    """
    is_binary = precision == "binary"
    build = partial(_build_bits if is_binary else _build_bytes, embeddings)
    index = open_index(embeddings, folder, build, is_binary=is_binary, precision=precision)
    return BinaryIndex(index) if is_binary else index


def _build_bytes(embeddings: Embeddings) -> faiss.Index:
    from sentence_transformers.util.quantization import quantize_embeddings

    extremes = [(block.min(axis=0), block.max(axis=0)) for _, block in embeddings.blocks()]
    lowest, highest = zip(*extremes, strict=True)
    ranges = np.stack([np.min(lowest, axis=0), np.max(highest, axis=0)])  # (2, D)
    steps = (ranges[1] - ranges[0]) / 255
    # faiss restores a code c as start + (c + 1/2) step, sentence-transformers as start + c step.
    trained = np.concatenate([ranges[0] - steps / 2, 255 * steps]).astype(np.float32)
    kind = faiss.ScalarQuantizer.QT_8bit
    index = faiss.IndexScalarQuantizer(embeddings.dimension, kind, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(trained, index.sq.trained)
    index.is_trained = True
    for _, block in embeddings.blocks():
        codes: Any = quantize_embeddings(block, "uint8", ranges=ranges)
        index.add_sa_codes(codes)
    return index


def _build_bits(embeddings: Embeddings) -> faiss.IndexBinary:
    from sentence_transformers.util.quantization import quantize_embeddings

    index = faiss.IndexBinaryFlat(8 * -(-embeddings.dimension // 8))
    for _, block in embeddings.blocks():
        codes: Any = quantize_embeddings(block, "ubinary")
        index.add(codes)
    return index
