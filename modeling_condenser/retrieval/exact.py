"""Exact inner-product search over passage embeddings, in bounded memory.

`faiss.knn` searches the shards one after the other in float32, and a heap keeps each query's best
rows. These candidates are then scored in float64, so that equal passages get equal scores whatever
the size of shards and query batches, and ordered by score and passage id. A few candidates more
than needed are kept, because float32 rounding can exchange near ties at the last place.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import faiss
import numpy as np
from tqdm.auto import tqdm

from modeling_condenser.encoding.embeddings import Embeddings

from .runs import Run, order_of_ids

_SPARE = 32  # candidates beyond the depth
_NUMBERS_AT_ONCE = 4_000_000  # float64 numbers in memory while candidates are scored


class IdsByRow(Protocol):
    """Passage ids by row, such as `Embeddings.passage_ids`."""

    def take(self, rows: np.ndarray) -> list[str]:
        """The ids of some rows."""


def search_exact(
    embeddings: Embeddings,
    queries: np.ndarray,
    query_ids: Sequence[str],
    *,
    depth: int = 100,
    progress: bool = False,
) -> Run:
    """Rank a collection's passages for each query by inner product.

    If more than 32 passages tie with the last place, those of them that faiss finds are returned,
    which need not have the lowest ids.

    Args:
        embeddings: of N passages, width D.
        queries: (Q, D) float32.
        query_ids: Q unique ids.
        depth: passages per query; all N if N is smaller.
        progress: show a bar.

    Returns:
        A run with min(depth, N) passages per query, best first, with float64 scores.

    Raises:
        ValueError: shapes, types or ids do not fit, or a vector holds NaN or infinity.
    """
    check_queries(queries, query_ids, dimension=embeddings.dimension, depth=depth)
    blocks = tqdm(
        embeddings.blocks(),
        total=embeddings.manifest.n_shards,
        desc="search",
        unit="shard",
        disable=not progress,
    )
    rows = _best_rows(queries, blocks, depth=min(depth + _SPARE, embeddings.n_passages))
    scores = score_rows(queries, rows, embeddings.vectors)
    return make_run(
        query_ids,
        rows,
        scores,
        passage_ids=embeddings.passage_ids,
        id_order=embeddings.id_order,
        depth=depth,
    )


def search_exact_arrays(
    passage_embeddings: np.ndarray,
    passage_ids: Sequence[str],
    *,
    query_embeddings: np.ndarray,
    query_ids: Sequence[str],
    depth: int = 100,
) -> Run:
    """Rank passages in memory for each query by inner product; see `search_exact`.

    Args:
        passage_embeddings: (N, D) float32.
        passage_ids: N unique ids.
        query_embeddings: (Q, D) float32.
        query_ids: Q unique ids.
        depth: passages per query; all N if N is smaller.
    """
    check_vectors(passage_embeddings, passage_ids, what="passage")
    check_queries(query_embeddings, query_ids, dimension=passage_embeddings.shape[1], depth=depth)
    rows = _best_rows(
        query_embeddings, [(0, passage_embeddings)], depth=min(depth + _SPARE, len(passage_ids))
    )
    return make_run(
        query_ids,
        rows,
        score_rows(query_embeddings, rows, passage_embeddings.__getitem__),
        passage_ids=_ListedIds(passage_ids),
        id_order=order_of_ids(passage_ids),
        depth=depth,
    )


class _ListedIds:
    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = ids

    def take(self, rows: np.ndarray) -> list[str]:
        return [self.ids[row] for row in rows.tolist()]


def _best_rows(
    queries: np.ndarray, blocks: Iterable[tuple[int, np.ndarray]], *, depth: int
) -> np.ndarray:
    """The rows with the best float32 scores for each query: (Q, depth) int64, in any order.

    Args:
        queries: (Q, D) float32.
        blocks: first row, and (rows, D) float32.
        depth: at most the number of rows in all blocks.
    """
    best = faiss.ResultHeap(len(queries), depth, keep_max=True)
    for first, block in blocks:
        k = min(depth, len(block))
        scores, rows = faiss.knn(queries, block, k, metric=faiss.METRIC_INNER_PRODUCT)
        best.add_result(scores, first + rows)
    best.finalize()
    return best.I


def score_rows(
    queries: np.ndarray, rows: np.ndarray, vectors: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Inner products of queries with candidate rows in float64.

    Args:
        queries: (Q, D) float32.
        rows: (Q, k) int64, candidates of each query; -1 for none.
        vectors: returns the (n, D) float32 vectors of (n,) rows.

    Returns:
        (Q, k) float64; -inf for row -1. A pair's score does not depend on the other pairs.
    """
    scores = np.full(rows.shape, -np.inf)
    size = max(1, _NUMBERS_AT_ONCE // (rows.shape[1] * queries.shape[1]))
    for start in range(0, len(queries), size):
        part = rows[start : start + size]
        is_row = part >= 0
        used, places = np.unique(part[is_row], return_inverse=True)
        products = vectors(used)[places].astype(np.float64)  # (n, D)
        products *= queries[start : start + size][np.nonzero(is_row)[0]]
        scores[start : start + size][is_row] = products.sum(axis=1) + 0.0  # not minus zero
    return scores


def make_run(
    query_ids: Sequence[str],
    rows: np.ndarray,
    scores: np.ndarray,
    *,
    passage_ids: IdsByRow,
    id_order: np.ndarray,
    depth: int,
) -> Run:
    """Order the rows found for each query by score and passage id, and replace them by ids.

    Args:
        query_ids: Q ids.
        rows: (Q, k) int64 rows of passages; -1 for none.
        scores: (Q, k) floats.
        passage_ids: the ids by row.
        id_order: (N,) int64, see `order_of_ids`.
        depth: passages per query.
    """
    scores = np.where(rows >= 0, scores, -np.inf)
    order = np.lexsort((id_order[rows], -scores))[:, :depth]
    rows, scores = (np.take_along_axis(array, order, axis=1) for array in (rows, scores))
    found, places = np.unique(rows, return_inverse=True)
    ids = passage_ids.take(found)  # one string per passage, shared by all queries
    places = places.reshape(rows.shape)
    run: Run = {}
    for query, query_id in enumerate(query_ids):
        is_row = rows[query] >= 0
        own = [ids[place] for place in places[query][is_row].tolist()]
        run[query_id] = dict(zip(own, scores[query][is_row].tolist(), strict=True))
    return run


def check_queries(
    queries: np.ndarray, query_ids: Sequence[str], *, dimension: int, depth: int
) -> None:
    """Check queries for a search.

    Args:
        queries: (Q, D) float32.
        query_ids: Q unique ids.
        dimension: width D of the passages.
        depth: at least 1.

    Raises:
        ValueError: shapes, types or ids do not fit, or a vector holds NaN or infinity.
    """
    check_vectors(queries, query_ids, what="query")
    if queries.shape[1] != dimension:
        raise ValueError(
            f"Queries have {queries.shape[1]} numbers and passages {dimension}: encode both with "
            "the same model."
        )
    if depth < 1:
        raise ValueError(f"depth is {depth}, expected at least 1, e.g. 100.")


def check_vectors(vectors: np.ndarray, ids: Sequence[str], *, what: str) -> None:
    """Check that vectors are finite (N, D) float32 with N unique ids; `what` is for the error."""
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise ValueError(
            f"Got {what} embeddings of shape {vectors.shape} and type {vectors.dtype}; expected "
            "two dimensions and float32: convert them with .astype(numpy.float32)."
        )
    if len(vectors) != len(ids) or len(vectors) == 0:
        raise ValueError(
            f"Got {len(vectors)} {what} embeddings and {len(ids)} ids; expected the same number, "
            "at least one."
        )
    if len(set(ids)) != len(ids):
        double = next(name for name, count in Counter(ids).items() if count > 1)
        raise ValueError(f"The {what} id {double!r} occurs twice: expected unique ids.")
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{np.count_nonzero(~finite)} of {len(vectors)} {what} embeddings hold NaN or "
            f"infinity, the first that of {ids[int(np.argmin(finite))]!r}: training may have "
            "diverged."
        )
