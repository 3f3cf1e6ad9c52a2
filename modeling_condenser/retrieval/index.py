"""Exact inner-product search over passage embeddings.

In: embeddings and ids. Out: a run, or a folder from which later runs come without encoding again.
The result is what brute force over all N passages gives, ordered by (-score, passage id), with the
scores computed in float64. faiss (`IndexFlatIP`) only proposes candidates:

1. faiss ranks in float32, whose last bits depend on the batch size (D 768: for 271 of 300 queries,
   searched alone or together), so that near ties could change places between runs. Its score of a
   pair is within D 2^-24 |q| |p| of the true one (Higham 2002, section 3.1: the error of an inner
   product of length D, to first order).
2. A query is settled when the last of its k candidates scores lower than its depth-th by more than
   four times that bound (twice, and as much again for the rounding of the bound itself): then no
   passage outside the candidates can belong to the answer. Other queries are searched again with k
   doubled, up to N.
3. The candidates' scores are computed anew in float64, each pair by itself, and sorted. Equal
   passages now tie exactly, and the tie goes to the lower id, also at the cut-off.
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import faiss
import numpy as np
from tqdm.auto import tqdm

from .runs import Run, best_first, order_of_ids

INDEX_FILE = "index.faiss"
IDS_FILE = "passage_ids.json"
_QUERY_BATCH = 256


def search_exact(
    passage_embeddings: np.ndarray,
    passage_ids: Sequence[str],
    *,
    query_embeddings: np.ndarray,
    query_ids: Sequence[str],
    depth: int = 100,
) -> Run:
    """Rank the passages for each query by inner product.

    Args:
        passage_embeddings: (N, D) float32.
        passage_ids: N unique ids.
        query_embeddings: (Q, D) float32.
        query_ids: Q unique ids.
        depth: how many passages a query gets; all N if N is smaller.

    Returns:
        A run with min(depth, N) passages a query, best first; the scores are float64.

    Raises:
        ValueError: shapes, types or ids don't fit.
    """
    index = ExactIndex.from_embeddings(passage_embeddings, passage_ids)
    return index.search(query_embeddings, query_ids, depth=depth)


@dataclass(frozen=True)
class ExactIndex:
    """Passage embeddings that can be searched, saved and mapped into memory.

    Attributes:
        index: a flat inner-product index with N vectors of D numbers.
        passage_ids: N ids, in the order of the vectors.
    """

    index: faiss.IndexFlat
    passage_ids: list[str]

    @classmethod
    def from_embeddings(cls, embeddings: np.ndarray, passage_ids: Sequence[str]) -> Self:
        """Build the index from (N, D) float32 embeddings and N unique ids."""
        _check_embeddings(embeddings, passage_ids, what="passage")
        index = faiss.IndexFlatIP(embeddings.shape[1])
        index.add(np.ascontiguousarray(embeddings))
        return cls(index=index, passage_ids=list(passage_ids))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Open a saved index; the vectors stay on disk and are mapped into memory.

        Raises:
            FileNotFoundError: the folder lacks one of the two files.
            ValueError: the index is not flat, or the files hold different numbers of passages.
        """
        folder = Path(folder)
        for name in (INDEX_FILE, IDS_FILE):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder} holds no {name}: expected {INDEX_FILE} and {IDS_FILE}, as"
                    " ExactIndex.save writes them; encode the collection again"
                )
        index = faiss.read_index(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP_IFC)
        if not isinstance(index, faiss.IndexFlat):
            raise ValueError(
                f"{folder / INDEX_FILE} is a {type(index).__name__}, expected a flat index, as"
                " ExactIndex.save writes it; encode the collection again"
            )
        passage_ids = json.loads((folder / IDS_FILE).read_text(encoding="utf-8"))
        if index.ntotal != len(passage_ids):
            raise ValueError(
                f"{folder}: {index.ntotal} vectors but {len(passage_ids)} passage ids, expected as"
                " many; the files come from different runs: encode the collection again"
            )
        return cls(index=index, passage_ids=passage_ids)

    def save(self, folder: str | Path) -> Path:
        """Write the two files into a new folder, atomically.

        Raises:
            FileExistsError: the folder exists and holds something.
        """
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(
                f"{folder} is not empty, expected a new folder: remove it or name another"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            faiss.write_index(self.index, str(partial / INDEX_FILE))
            ids = json.dumps(self.passage_ids, ensure_ascii=False)
            (partial / IDS_FILE).write_text(ids, encoding="utf-8")
            partial.chmod(0o755)  # mkdtemp makes it private
            partial.replace(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return folder

    def search(
        self,
        embeddings: np.ndarray,
        query_ids: Sequence[str],
        *,
        depth: int = 100,
        show_progress: bool = False,
    ) -> Run:
        """Rank the passages for each query; see `search_exact`.

        Args:
            embeddings: (Q, D) float32 query embeddings.
            query_ids: Q unique ids.
            depth: how many passages a query gets at most.
            show_progress: show a bar.
        """
        _check_embeddings(embeddings, query_ids, what="query")
        if embeddings.shape[1] != self.index.d:
            raise ValueError(
                f"queries of width {embeddings.shape[1]} against passages of width {self.index.d}:"
                " expected the same; encode both with the same model"
            )
        if depth < 1:
            raise ValueError(f"depth {depth}: expected at least 1, e.g. 100")
        passages = self._passages()
        tie_order = order_of_ids(self.passage_ids)
        largest_norm = float(np.sqrt(np.einsum("nd,nd->n", passages, passages).max()))
        run: Run = {}
        starts = range(0, len(query_ids), _QUERY_BATCH)
        for start in tqdm(starts, desc="search", unit="batch", disable=not show_progress):
            queries = np.ascontiguousarray(embeddings[start : start + _QUERY_BATCH])
            candidates = self._candidates(queries, depth=depth, largest_norm=largest_norm)
            for i, found in enumerate(candidates):
                scores = _inner_products(passages[found], queries[i])
                best = best_first(scores, id_order=tie_order[found], depth=depth)
                names = (self.passage_ids[found[j]] for j in best)
                run[query_ids[start + i]] = dict(zip(names, scores[best].tolist(), strict=True))
        return run

    def _passages(self) -> np.ndarray:
        """View the stored vectors as a (N, D) float32 array, without a copy."""
        size = self.index.ntotal * self.index.d
        flat: np.ndarray = faiss.rev_swig_ptr(self.index.get_xb(), size)
        return flat.reshape(self.index.ntotal, self.index.d)

    def _candidates(
        self, queries: np.ndarray, *, depth: int, largest_norm: float
    ) -> list[np.ndarray]:
        """Find, for each query, positions that certainly hold its best `depth` passages."""
        unit_error = self.index.d * 2.0**-24 * largest_norm
        bounds = unit_error * np.linalg.norm(queries, axis=1)  # (Q,)
        candidates: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(queries)
        open_queries = np.arange(len(queries))
        k = min(2 * depth, self.index.ntotal)
        while len(open_queries):
            scores, found = self.index.search(queries[open_queries], k)  # (Q', k) both
            for query, positions in zip(open_queries, found, strict=True):
                candidates[query] = positions
            last_place = scores[:, min(depth, k) - 1]
            settled = last_place - scores[:, -1] > 4 * bounds[open_queries]
            open_queries = open_queries[~settled & (k < self.index.ntotal)]
            k = min(2 * k, self.index.ntotal)
        return candidates


def _inner_products(passages: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Multiply (k, D) by (D,) in float64: (k,), the same bits for a row wherever it stands."""
    return (passages.astype(np.float64) * query.astype(np.float64)).sum(axis=1)


def _check_embeddings(embeddings: np.ndarray, ids: Sequence[str], *, what: str) -> None:
    if embeddings.ndim != 2 or embeddings.dtype != np.float32:
        raise ValueError(
            f"{what} embeddings of shape {embeddings.shape} and type {embeddings.dtype}: expected"
            f" ({what} count, width) and float32; convert them with .astype(numpy.float32)"
        )
    if len(embeddings) != len(ids) or len(embeddings) == 0:
        raise ValueError(
            f"{len(embeddings)} {what} embeddings and {len(ids)} ids: expected as many, and at"
            " least one; pass the ids in the order in which they were encoded"
        )
    if len(set(ids)) != len(ids):
        raise ValueError(
            f"{len(ids)} {what} ids of which {len(set(ids))} differ: expected unique ids; drop the"
            " duplicates"
        )
    if not np.isfinite(embeddings).all():
        raise ValueError(
            f"{what} embeddings hold NaN or infinity, expected finite numbers: look for overflow"
            " (float16?) or a diverged checkpoint"
        )
