"""Approximate search: faster or smaller than exact search, and not always right.

In: the embeddings of a collection and a faiss factory string, such as `IVF256,Flat`, `HNSW32` or
`OPQ64_256,IVF1024,PQ64x4fs`. Out: an index in a folder, which is mapped into memory when it is
opened, and runs from it. What it misses is reported by `recall_against_exact`.

Inner product throughout; cosine is the same, because its vectors have length 1 already.
"""

import dataclasses
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import faiss
import numpy as np
from tqdm.auto import tqdm

from modeling_condenser.encoding.embeddings import Embeddings

from .exact import make_run
from .runs import Run, rank_passages
from .vectors import check_queries, inner_products

logger = logging.getLogger(__name__)

INDEX_FILE = "index.faiss"
IDENTITY_FILE = "index.json"  # written last: an index with it is whole

_VECTORS_PER_CENTROID = 64  # faiss uses at most 256 of them and warns under 39
_SMALLEST_TRAINING_SET = 65_536  # enough for the 256 centroids of product quantisation, 256 times
_QUERY_BATCH = 256


@dataclass(frozen=True)
class IndexIdentity:
    """What an index was made from; another is not the same index.

    Attributes:
        factory: the faiss factory string.
        seed: decides which vectors it was trained on.
        train_size: how many these were.
        retriever: fingerprint of the model that made the vectors.
        passages: fingerprint of the collection.
        faiss: version of the library.
    """

    factory: str
    seed: int
    train_size: int
    retriever: str
    passages: str
    faiss: str = faiss.__version__


def build_approximate(
    embeddings: Embeddings,
    factory: str,
    folder: str | Path,
    *,
    seed: int = 0,
    train_size: int | None = None,
    progress: bool = False,
) -> "ApproximateIndex":
    """Build an index and save it, or open it if the folder holds it already.

    Memory: the index itself, and while it is trained the vectors that it is trained on. The same
    seed gives the same index, but for HNSW graphs that several threads build (OMP_NUM_THREADS=1).

    Args:
        embeddings: of N passages.
        factory: a faiss factory string.
        folder: for the index; written atomically.
        seed: decides which vectors the index is trained on.
        train_size: how many vectors that are; by default 64 for each cell of an inverted file, at
            least 65,536, at most N.
        progress: show a bar.

    Raises:
        ValueError: faiss does not know the string, or cannot use it for inner products; there are
            too few vectors to train it; or the folder holds another index.
        OSError: the index cannot be written.
    """
    folder = Path(folder)
    index = _make_index(factory, embeddings.dimension)
    train_size = min(train_size or _default_train_size(index), embeddings.n_passages)
    identity = IndexIdentity(
        factory,
        seed,
        train_size,
        embeddings.manifest["retriever"],
        embeddings.manifest["passages"],
    )
    if folder.exists() and any(folder.iterdir()):
        return ApproximateIndex.open(folder, embeddings, identity=identity)
    if not index.is_trained:
        logger.info("training %s on %d vectors", factory, train_size)
        _train(index, factory, embeddings, identity)
    bar = tqdm(total=embeddings.n_passages, desc=f"add to {factory}", disable=not progress)
    with bar, _faiss_errors(f"faiss cannot add vectors shard by shard to an index {factory!r}"):
        for _, block in embeddings.blocks():
            index.add(np.ascontiguousarray(block))
            bar.update(len(block))
    _save(index, identity, folder)
    return ApproximateIndex.open(folder, embeddings, identity=identity)


class ApproximateIndex:
    """A faiss index of a collection's embeddings.

    Attributes:
        embeddings: whose rows the index holds.
        folder: of the index; its file is mapped into memory.
        identity: what it was made from.
        index: as faiss reads it.
    """

    def __init__(self, embeddings: Embeddings, folder: Path, identity: IndexIdentity) -> None:
        self.embeddings = embeddings
        self.folder = folder
        self.identity = identity
        self.index = self._read()
        self._changed: frozenset[str] = frozenset()  # parameters that are not as they were saved

    @classmethod
    def open(
        cls,
        folder: str | Path,
        embeddings: Embeddings,
        *,
        identity: IndexIdentity | None = None,
    ) -> Self:
        """Open a saved index.

        Args:
            folder: as `build_approximate` wrote it.
            embeddings: that it was made from.
            identity: what it must have been made from; by default any index of the embeddings.

        Raises:
            FileNotFoundError: the folder holds no whole index.
            ValueError: the index was made from something else, or is damaged.
        """
        folder = Path(folder)
        for name in (IDENTITY_FILE, INDEX_FILE):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder} holds no {name}, so it is not the folder of an index: name another,"
                    " or remove it to have the index built"
                )
        stored = _read_identity(folder / IDENTITY_FILE)
        wanted = identity or dataclasses.replace(
            stored,
            retriever=embeddings.manifest["retriever"],
            passages=embeddings.manifest["passages"],
        )
        if stored != wanted:
            of_stored, of_wanted = asdict(stored), asdict(wanted)
            differing = "; ".join(
                f"{name} {of_stored[name]!r}, expected {of_wanted[name]!r}"
                for name in of_stored
                if of_stored[name] != of_wanted[name]
            )
            raise ValueError(
                f"{folder} holds an index of something else: {differing}. Name another folder, or"
                " remove this one to have the index built anew"
            )
        return cls(embeddings, folder, stored)

    def search(
        self,
        queries: np.ndarray,
        query_ids: Sequence[str],
        *,
        depth: int = 100,
        parameters: str | None = None,
        rescore: int = 0,
        progress: bool = False,
    ) -> Run:
        """Rank the passages for each query, approximately.

        Scores are those of the index, which for compressed vectors are estimates, so that a run
        shows what the index alone can do. Ties are ordered by passage id; which of the passages
        that tie with the last place are found is up to the index.

        Args:
            queries: (Q, D) float32.
            query_ids: Q unique ids.
            depth: how many passages a query gets at most; it can be fewer.
            parameters: of the index, `name=value[,name=value]...`, such as "nprobe=16" or
                "efSearch=128"; by default as faiss makes them (nprobe=1, efSearch=16).
            rescore: take this many candidates, at least `depth`, from the index, and order them by
                exact inner products with the stored vectors; 0 for the index's own scores.
            progress: show a bar.

        Raises:
            ValueError: shapes, types, ids or parameters don't fit.
        """
        check_queries(queries, query_ids, dimension=self.embeddings.dimension, depth=depth)
        if rescore and rescore < depth:
            raise ValueError(
                f"rescore {rescore} with depth {depth}: expected at least the depth, or 0 to keep"
                " the index's scores"
            )
        self._set_parameters(parameters)
        queries = np.ascontiguousarray(queries)
        k = min(rescore or depth, self.embeddings.n_passages)
        run: Run = {}
        starts = range(0, len(queries), _QUERY_BATCH)
        for start in tqdm(starts, desc="search", unit="batch", disable=not progress):
            batch = slice(start, start + _QUERY_BATCH)
            with _faiss_errors(f"faiss cannot search {self.folder}"):
                scores, rows = self.index.search(queries[batch], k)  # (b, k) both
            if rescore:
                scores = self._score_anew(queries[batch], rows)
            found = rows >= 0  # -1 where the index found fewer
            run |= make_run(
                query_ids[batch],
                [of_query[kept] for of_query, kept in zip(rows, found, strict=True)],
                [of_query[kept] for of_query, kept in zip(scores, found, strict=True)],
                self.embeddings.passage_ids,
            )
        return {query: dict(rank_passages(found)[:depth]) for query, found in run.items()}

    def _score_anew(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Exact scores of (b, k) rows for (b, D) queries: (b, k) float64; of row -1, any."""
        scores = np.empty(rows.shape)
        for query in range(len(queries)):
            vectors = self.embeddings.vectors(np.maximum(rows[query], 0))  # (k, D)
            of_query = np.full(len(vectors), query)
            scores[query] = inner_products(queries, of_query, vectors, np.arange(len(vectors)))
        return scores

    def _read(self) -> faiss.Index:
        file = self.folder / INDEX_FILE
        with _faiss_errors(f"{file} is damaged; remove {self.folder} to have the index built anew"):
            index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        if index.ntotal != self.embeddings.n_passages:
            expected = self.embeddings.n_passages
            raise ValueError(
                f"{file} holds {index.ntotal} vectors, expected {expected}: remove {self.folder} to"
                " have the index built anew"
            )
        return index

    def _set_parameters(self, parameters: str | None) -> None:
        values = dict(_read_parameters(parameters or ""))
        if self._changed - values.keys():  # faiss cannot tell what they were before
            self.index = self._read()
        space = faiss.ParameterSpace()
        space.initialize(self.index)
        known = [space.parameter_ranges.at(i).name for i in range(space.parameter_ranges.size())]
        for name, value in values.items():
            expected = f"it has {', '.join(known)}" if known else "it has none"
            with _faiss_errors(f"{self.identity.factory!r} has no parameter {name!r}: {expected}"):
                space.set_index_parameter(self.index, name, value)
        self._changed = frozenset(values)


def recall_against_exact(run: Run, exact_run: Run, *, depth: int) -> float:
    """What share of the exact search's best passages another run found too.

    Args:
        run: of an approximate search.
        exact_run: of exact search, for the same queries.
        depth: how many passages of each to look at; of fewer, those that the exact search found.

    Returns:
        The mean over the queries of |found by both| / |found by exact search|, from 0 to 1.

    Raises:
        ValueError: the runs are of different queries, or of none.
    """
    if depth < 1:
        raise ValueError(f"depth {depth}: expected at least 1, e.g. 100")
    if run.keys() != exact_run.keys() or not run:
        raise ValueError(
            f"runs of {len(run)} and {len(exact_run)} queries, {len(run.keys() & exact_run.keys())}"
            " of them in both: expected the same queries, and at least one"
        )
    shares = []
    for query, exact in exact_run.items():
        best = {passage for passage, _ in rank_passages(exact)[:depth]}
        found = {passage for passage, _ in rank_passages(run[query])[:depth]}
        shares.append(len(best & found) / len(best))
    return float(np.mean(shares))


def _make_index(factory: str, dimension: int) -> faiss.Index:
    message = f"faiss cannot make an index {factory!r} for inner products of width {dimension}"
    with _faiss_errors(message):
        return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)


def _default_train_size(index: faiss.Index) -> int:
    inverted_file = faiss.try_extract_index_ivf(index)
    n_centroids = inverted_file.nlist if inverted_file else 0
    return max(_VECTORS_PER_CENTROID * n_centroids, _SMALLEST_TRAINING_SET)


def _train(
    index: faiss.Index, factory: str, embeddings: Embeddings, identity: IndexIdentity
) -> None:
    generator = np.random.default_rng(identity.seed)
    rows = generator.choice(
        embeddings.n_passages, identity.train_size, replace=False, shuffle=False
    )
    vectors = embeddings.vectors(np.sort(rows))
    try:
        index.train(vectors)
    except RuntimeError as error:
        needed = re.search(r"number of clusters \((\d+)\)", str(error))
        if needed is None:
            raise ValueError(f"faiss cannot train {factory!r}: {_reason(error)}") from error
        raise ValueError(
            f"{len(vectors)} vectors to train {factory!r} on, expected at least {needed[1]}, one"
            f" for each centroid (and better {39 * int(needed[1])}): train on more of the"
            f" {embeddings.n_passages}, or choose an index with fewer centroids"
        ) from error


def _save(index: faiss.Index, identity: IndexIdentity, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        try:
            faiss.write_index(index, str(partial / INDEX_FILE))
        except RuntimeError as error:
            raise OSError(
                f"cannot write the index to {folder}: {_reason(error)}; is the disk full?"
            ) from error
        (partial / IDENTITY_FILE).write_text(json.dumps(asdict(identity), indent=1))
        for name in (INDEX_FILE, IDENTITY_FILE):
            with (partial / name).open("rb") as file:
                os.fsync(file.fileno())
        partial.chmod(0o755)  # mkdtemp makes it private
        partial.replace(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _read_identity(file: Path) -> IndexIdentity:
    try:
        return IndexIdentity(**json.loads(file.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{file} does not say what the index was made from ({error}): remove {file.parent} to"
            " have the index built anew"
        ) from error


def _read_parameters(text: str) -> Iterator[tuple[str, float]]:
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise ValueError(
                f"search parameter {part!r}: expected name=number, such as nprobe=16, the number"
                " above 0"
            )
        yield name.strip(), number


@contextmanager
def _faiss_errors(message: str) -> Iterator[None]:
    """Turn faiss's errors into ours."""
    try:
        yield
    except RuntimeError as error:
        raise ValueError(f"{message} ({_reason(error)})") from error


def _reason(error: RuntimeError) -> str:
    """What a faiss error says behind its C++ function, file and line."""
    return re.sub(r"^Error in .*? at \S+?:\d+: (Error: )?", "", str(error), flags=re.DOTALL)
