"""Vectors and their ids: what a search refuses, and inner products whose bits never change.

In: arrays of queries and passages, and ids. Out: errors that say what to mend, or float64 scores.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

_NUMBERS_AT_ONCE = 262_144  # of float64, 2 MB: stays in the processor's cache


def inner_products(
    queries: np.ndarray, of_queries: np.ndarray, passages: np.ndarray, of_passages: np.ndarray
) -> np.ndarray:
    """Multiply pairs in float64: the same bits for a pair wherever it stands.

    Args:
        queries: (Q, D) float32.
        of_queries: (n,) rows of queries.
        passages: (P, D) float32.
        of_passages: (n,) rows of passages.

    Returns:
        (n,) float64.
    """
    scores = np.empty(len(of_queries))
    size = max(1, _NUMBERS_AT_ONCE // queries.shape[1])
    for start in range(0, len(scores), size):
        part = slice(start, start + size)
        products = passages[of_passages[part]].astype(np.float64)
        products *= queries[of_queries[part]]
        scores[part] = products.sum(axis=1)
    return scores + 0.0  # minus zero becomes zero


def check_queries(
    queries: np.ndarray, query_ids: Sequence[str], *, dimension: int, depth: int
) -> None:
    """Refuse queries that cannot be searched.

    Args:
        queries: (Q, D) float32.
        query_ids: Q unique ids.
        dimension: width D of the passages.
        depth: at least 1.

    Raises:
        ValueError: shapes, types or ids don't fit, or a vector holds NaN or infinity.
    """
    check_vectors(queries, query_ids, what="query")
    if queries.shape[1] != dimension:
        raise ValueError(
            f"queries of width {queries.shape[1]} against passages of width {dimension}:"
            " expected the same; encode both with the same model"
        )
    finite = np.isfinite(queries).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{np.count_nonzero(~finite)} of {len(queries)} query embeddings hold NaN or infinity,"
            f" first that of query {query_ids[int(np.argmin(finite))]!r}: expected finite numbers;"
            " look for overflow (float16?) or a diverged checkpoint"
        )
    if depth < 1:
        raise ValueError(f"depth {depth}: expected at least 1, e.g. 100")


def check_vectors(vectors: np.ndarray, ids: Sequence[str], *, what: str) -> None:
    """Refuse vectors and ids that do not fit together; `what` they are of, for the message."""
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise ValueError(
            f"{what} embeddings of shape {vectors.shape} and type {vectors.dtype}: expected"
            f" ({what} count, width) and float32; convert them with .astype(numpy.float32)"
        )
    if len(vectors) != len(ids) or len(vectors) == 0:
        raise ValueError(
            f"{len(vectors)} {what} embeddings and {len(ids)} ids: expected as many, and at"
            " least one; pass the ids in the order in which they were encoded"
        )
    if len(set(ids)) != len(ids):
        double = next(name for name, count in Counter(ids).items() if count > 1)
        raise ValueError(
            f"{len(ids)} {what} ids of which {len(set(ids))} differ, {double!r} is there twice:"
            " expected unique ids; drop the duplicates"
        )
