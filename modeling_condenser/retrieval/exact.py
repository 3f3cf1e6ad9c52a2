"""Exact inner-product search over passage embeddings, in bounded memory.

In: the embeddings of a collection, in shards on disk or as one array, and query vectors. Out: a
run. It is what brute force over all N passages gives, ordered by (-score, passage id), with scores
computed in float64; sizes of shards and of batches change no bit of it.

The shards are read once, one after the other, and each query keeps its best `depth` rows so far:

1. A matrix product in float32 scores some thousand rows for many queries at once. Its last bits
   depend on the batch size, so near ties could change places between runs; but each score is within
   D 2^-24 |q| |p| of the true one (Higham 2002, section 3.1: the error of an inner product of
   length D, to first order).
2. A row can only enter the answer if its score, give or take that error, reaches the last place
   that the query has so far, and the depth-th place among the rows at hand. Where many more rows
   than that do (copies, collapsed embeddings), a product in float64 tells which of them really do.
3. The scores of these few are computed anew in float64, each pair by itself. Equal passages now tie
   exactly, and the tie goes to the lower id, also at the cut-off.

faiss's flat index would do for the first step, but keeps the best of every shard anew. With the
last place known, a comparison is enough: as fast at depth 100, a quarter faster at depth 1,000.

Memory: some 50 bytes for each query and place (7,000 queries at depth 1,000: 350 MB), some 150 MB
of work space whatever N is, and the run itself, some 100 bytes for each query and place. The mapped
shard counts as resident while it is read, but the system can drop it at any time.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from tqdm.auto import tqdm

from modeling_condenser.encoding.embeddings import Embeddings

from .runs import Run, best_first, order_of_ids
from .vectors import check_queries, check_vectors, inner_products

logger = logging.getLogger(__name__)

_QUERY_BATCH, _ROW_BATCH = 1024, 4096
_WORK_NUMBERS = 4_000_000  # in one array of work space: 16 MB of float32, 32 MB of float64
_SAFE_NORMS = 1e37  # |q| |p| up to which no float32 sum overflows


class PassageIds(Protocol):
    """The ids of passages by row; see `Embeddings.passage_ids`."""

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

    Args:
        embeddings: of N passages, width D.
        queries: (Q, D) float32.
        query_ids: Q unique ids.
        depth: how many passages a query gets; all N if N is smaller.
        progress: show a bar.

    Returns:
        A run with min(depth, N) passages a query, best first; the scores are float64.

    Raises:
        ValueError: shapes, types or ids don't fit, or a vector holds NaN or infinity.
    """
    check_queries(queries, query_ids, dimension=embeddings.dimension, depth=depth)
    best = _BestRows(
        len(queries), depth=min(depth, embeddings.n_passages), id_order=embeddings.id_order
    )
    total = len(queries) * embeddings.n_passages
    with tqdm(
        total=total, desc="search", unit="pair", unit_scale=True, disable=not progress
    ) as bar:
        _search_blocks(embeddings.blocks(), queries, best, bar)
    return make_run(query_ids, best.rows, best.scores, embeddings.passage_ids)


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
        depth: how many passages a query gets; all N if N is smaller.
    """
    check_vectors(passage_embeddings, passage_ids, what="passage")
    dimension = passage_embeddings.shape[1]
    check_queries(query_embeddings, query_ids, dimension=dimension, depth=depth)
    best = _BestRows(
        len(query_ids), depth=min(depth, len(passage_ids)), id_order=order_of_ids(passage_ids)
    )
    _search_blocks([(0, passage_embeddings)], query_embeddings, best, tqdm(disable=True))
    return make_run(query_ids, best.rows, best.scores, _ListedIds(passage_ids))


def make_run(
    query_ids: Sequence[str],
    rows: Sequence[np.ndarray],
    scores: Sequence[np.ndarray],
    passage_ids: PassageIds,
) -> Run:
    """Put ids in the place of rows; every id is one string, however many queries found it.

    Args:
        query_ids: Q ids.
        rows: for each query (k,) int64 rows of passages, in the order wanted.
        scores: for each query (k,) floats.
        passage_ids: the ids by row.
    """
    found, places = np.unique(np.concatenate(rows), return_inverse=True)
    ids = passage_ids.take(found)
    run: Run = {}
    first = 0
    for query_id, its_scores in zip(query_ids, scores, strict=True):
        its_places = places[first : first + len(its_scores)].tolist()
        run[query_id] = dict(
            zip(map(ids.__getitem__, its_places), its_scores.tolist(), strict=True)
        )
        first += len(its_scores)
    return run


class _ListedIds:
    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = ids

    def take(self, rows: np.ndarray) -> list[str]:
        return [self.ids[row] for row in rows.tolist()]


class _BestRows:
    """The best rows of each query so far.

    Attributes:
        rows: for each of Q queries (k,) int64 rows of passages, best first, k at most `depth`.
        scores: for each query (k,) float64.
        floor: (Q,) float64; a row that scores less than this has no place any more.
    """

    def __init__(self, n_queries: int, *, depth: int, id_order: np.ndarray) -> None:
        self.depth = depth
        self.rows = [np.empty(0, dtype=np.int64)] * n_queries
        self.scores = [np.empty(0)] * n_queries
        self.floor = np.full(n_queries, -np.inf)
        self._id_order = id_order
        self._waiting: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, queries: np.ndarray, rows: np.ndarray, scores: np.ndarray) -> None:
        """Let (n,) pairs of query and row compete, now or a little later."""
        self._waiting.append((queries, rows, scores))
        if sum(len(rows) for _, rows, _ in self._waiting) > len(self.rows) * self.depth // 2:
            self.settle()

    def settle(self) -> None:
        """Let those that wait compete."""
        if not self._waiting:
            return
        queries, rows, scores = (np.concatenate(part) for part in zip(*self._waiting, strict=True))
        self._waiting = []
        by_query = np.argsort(queries, kind="stable")
        places, starts = np.unique(queries[by_query], return_index=True)
        for query, new in zip(places.tolist(), np.split(by_query, starts[1:]), strict=True):
            its_rows = np.concatenate([self.rows[query], rows[new]])
            its_scores = np.concatenate([self.scores[query], scores[new]])
            order = self._id_order[its_rows]
            best = best_first(its_scores, id_order=order, depth=self.depth)
            self.rows[query], self.scores[query] = its_rows[best], its_scores[best]
            if len(best) == self.depth:
                self.floor[query] = its_scores[best[-1]]


def _search_blocks(
    blocks: Iterable[tuple[int, np.ndarray]], queries: np.ndarray, best: _BestRows, bar: tqdm
) -> None:
    """Let all rows of all blocks, pairs of first row and (B, D) float32, compete."""
    norms = np.sqrt(np.einsum("qd,qd->q", queries, queries, dtype=np.float64))
    n_rows = max(1, min(_ROW_BATCH, _WORK_NUMBERS // queries.shape[1]))
    n_queries = max(1, min(_QUERY_BATCH, _WORK_NUMBERS // n_rows))
    tied = pairs = 0
    for block_row, block in blocks:
        for first in range(0, len(block), n_rows):
            rows = _Rows(block_row + first, block[first : first + n_rows], queries, norms, best)
            for start in range(0, len(queries), n_queries):
                batch = np.arange(start, min(start + n_queries, len(queries)))
                with np.errstate(over="ignore", invalid="ignore"):  # left to float64
                    undecided = rows.search(batch, np.float32)
                if len(undecided):
                    rows.search(undecided, np.float64)
                tied, pairs = tied + len(undecided), pairs + len(batch)
                bar.update(len(rows.vectors) * len(batch))
    best.settle()
    if 2 * tied > pairs:
        logger.warning(
            "The scores of many passages lie closer together than float32 can tell apart. Have the "
            "embeddings collapsed? Search is exact all the same, but slow."
        )


class _Rows:
    """Some consecutive rows of the passages' vectors, to be searched.

    Args:
        first_row: row of the first one.
        vectors: (R, D) float32.
        queries: (Q, D) float32.
        norms: (Q,) float64, of the queries.
        best: what the queries have found so far.

    Raises:
        ValueError: a vector holds NaN or infinity.
    """

    def __init__(
        self,
        first_row: int,
        vectors: np.ndarray,
        queries: np.ndarray,
        norms: np.ndarray,
        best: _BestRows,
    ) -> None:
        self.first_row = first_row
        self.vectors = np.asarray(vectors)
        self.queries = queries
        self.best = best
        self._norms = norms * _largest_norm(self.vectors, first_row)  # the largest |q| |p|: (Q,)

    def search(self, batch: np.ndarray, dtype: type[np.floating]) -> np.ndarray:
        """Let the rows compete for the places of some queries.

        Args:
            batch: (b,) numbers of queries.
            dtype: to compute scores in.

        Returns:
            The queries among them for which float32 excludes too few rows; nothing was done for
            these. For float64, there are none.
        """
        queries = self.queries[batch].astype(dtype, copy=False)
        depth, n_rows = self.best.depth, len(self.vectors)
        scores = queries @ self.vectors.astype(dtype, copy=False).T  # (b, R)
        errors = self._errors(batch, dtype)
        least = self.best.floor[batch] - errors
        which, places = _find_at_least(scores, least)
        crowded = np.flatnonzero(np.bincount(which, minlength=len(batch)) > depth)
        if len(crowded):
            last = np.partition(scores[crowded], n_rows - depth, axis=1)[:, n_rows - depth]
            least[crowded] = np.maximum(least[crowded], last - 2 * errors[crowded])
            which, places = _find_at_least(scores, least)
        undecided = np.zeros(len(batch), dtype=bool)
        if dtype == np.float32:
            undecided |= np.bincount(which, minlength=len(batch)) > 2 * depth + 32
            undecided |= self._norms[batch] > _SAFE_NORMS
        kept = ~undecided[which]
        self._add(batch[which[kept]], places[kept])
        return batch[undecided]

    def _add(self, queries: np.ndarray, places: np.ndarray) -> None:
        """Score (n,) pairs of query and place in these rows, and let them compete."""
        if len(places):
            scores = inner_products(self.queries, queries, self.vectors, places)
            self.best.add(queries, self.first_row + places, scores)

    def _errors(self, batch: np.ndarray, dtype: type[np.floating]) -> np.ndarray:
        """How far a computed score can be off, at most: (b,).

        Each of D products and sums is off by half the distance of its neighbours, relative to its
        size or, next to zero, by the smallest number. Twice that, for the higher-order terms and
        for the rounding of the norms.
        """
        info = np.finfo(dtype)
        n_operations = self.vectors.shape[1]
        return 2 * n_operations * (float(info.eps) / 2 * self._norms[batch] + float(info.tiny))


def _find_at_least(scores: np.ndarray, least: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of (b, R) scores that reach their row's least: two (n,) of rows and columns."""
    # Rounded down, so that scores are compared in their own type, which is twice as fast.
    bound = np.nextafter(least.astype(scores.dtype), scores.dtype.type(-np.inf))
    places = np.flatnonzero(scores >= bound[:, None])
    return places // scores.shape[1], places % scores.shape[1]


def _largest_norm(vectors: np.ndarray, first_row: int) -> float:
    square = np.einsum("nd,nd->n", vectors, vectors).max()
    if 1e-30 < square < 1e30:
        return float(np.sqrt(square))
    # NaN, infinity, or squares that float32 cannot hold.
    largest = 0.0
    for start in range(0, len(vectors), size := 4096):
        part = vectors[start : start + size].astype(np.float64)
        squares = np.einsum("nd,nd->n", part, part)
        if not np.isfinite(squares).all():
            row = first_row + start + int(np.argmin(np.isfinite(squares)))
            raise ValueError(
                f"the passage embedding in row {row} holds NaN or infinity, expected finite"
                " numbers: look for overflow (float16?) or a diverged checkpoint, and encode"
                " the collection again"
            )
        largest = max(largest, float(np.sqrt(squares.max())))
    return largest
