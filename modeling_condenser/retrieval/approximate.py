"""Approximate search with any faiss index: faster or smaller than exact search, but it can miss.

An index is made from a faiss factory string, such as `IVF256,Flat`, `HNSW32` or
`OPQ64_256,IVF1024,PQ64x4fs`, and saved in a folder:

index.faiss   the index, which is mapped into memory when it is opened
index.json    what it was made from

All indices use inner products; cosine similarity is the same, because its vectors have length 1.
"""

import dataclasses
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import faiss
import numpy as np
from tqdm.auto import tqdm

from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.runs.run_folder import whole_folder
from modeling_condenser.runs.whole_files import write_json

from .exact import check_queries, make_run, score_rows
from .runs import Run, rank_passages

logger = logging.getLogger(__name__)

INDEX_FILE, IDENTITY_FILE = "index.faiss", "index.json"

_VECTORS_PER_CENTROID = 64  # faiss uses at most 256 and warns below 39
_SMALLEST_TRAINING_SET = 65_536  # 256 vectors for each of product quantisation's 256 centroids
_QUERY_BATCH = 256


@dataclass(frozen=True)
class IndexIdentity:
    """What an index was made from.

    Attributes:
        factory: the faiss factory string.
        seed: selects the vectors for training.
        train_size: the number of these vectors.
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
    """Build and save an index, or open it if the folder already holds it.

    Memory: the index, and during training the vectors it is trained on. The same seed gives the
    same index, except for HNSW graphs that several threads build.

    Args:
        embeddings: of N passages.
        factory: a faiss factory string.
        folder: of the index; written atomically.
        seed: selects the vectors for training.
        train_size: number of vectors for training; by default 64 for each cell of an inverted
            file and at least 65,536. At most N.
        progress: show a bar.

    Raises:
        ValueError: the string is unknown or does not support inner products, there are too few
            vectors to train on, or the folder holds another index.
        OSError: the index cannot be written.
    """
    folder, manifest = Path(folder), embeddings.manifest
    with _faiss_errors(f"faiss cannot make an index {factory!r} for {manifest.dimension} numbers"):
        index = faiss.index_factory(manifest.dimension, factory, faiss.METRIC_INNER_PRODUCT)
    train_size = min(train_size or _default_train_size(index), manifest.n_passages)
    identity = IndexIdentity(factory, seed, train_size, manifest.retriever, manifest.passages)
    if folder.exists() and any(folder.iterdir()):
        return ApproximateIndex.open(folder, embeddings, identity=identity)
    if not index.is_trained:
        logger.info("Training %s on %d vectors", factory, train_size)
        _train(index, embeddings, identity)
    bar = tqdm(total=manifest.n_passages, desc=f"add to {factory}", disable=not progress)
    with bar, _faiss_errors(f"faiss cannot add vectors in several parts to an index {factory!r}"):
        for _, block in embeddings.blocks():
            index.add(np.ascontiguousarray(block))
            bar.update(len(block))
    with whole_folder(folder) as partial:
        try:
            faiss.write_index(index, str(partial / INDEX_FILE))
        except RuntimeError as error:
            raise OSError(f"The index cannot be written to {folder}: {_reason(error)}") from error
        write_json(partial / IDENTITY_FILE, asdict(identity))
    return ApproximateIndex.open(folder, embeddings, identity=identity)


class ApproximateIndex:
    """A faiss index of a collection's embeddings.

    Attributes:
        embeddings: whose rows the index holds.
        folder: of the index.
        identity: what it was made from.
        index: the faiss index.
    """

    def __init__(self, embeddings: Embeddings, folder: Path, identity: IndexIdentity) -> None:
        self.embeddings = embeddings
        self.folder = folder
        self.identity = identity
        self.index = self._read()
        self._changed: frozenset[str] = frozenset()  # parameters that an earlier search set

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
            identity: the expected identity; by default any index of these embeddings.

        Raises:
            FileNotFoundError: the folder holds no index.
            ValueError: the index was made from something else, or is damaged.
        """
        folder = Path(folder)
        for name in (IDENTITY_FILE, INDEX_FILE):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder} holds no index ({name} is missing): name another folder, or remove "
                    "it to build the index."
                )
        try:
            stored = IndexIdentity(**json.loads((folder / IDENTITY_FILE).read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{folder / IDENTITY_FILE} is damaged ({error}): remove {folder} to build it again."
            ) from error
        manifest = embeddings.manifest
        wanted = identity or dataclasses.replace(
            stored, retriever=manifest.retriever, passages=manifest.passages
        )
        before, now = asdict(stored), asdict(wanted)
        differences = [
            f"{n} {before[n]!r}, expected {now[n]!r}" for n in now if before[n] != now[n]
        ]
        if differences:
            raise ValueError(
                f"{folder} holds another index: {'; '.join(differences)}. Name another folder, or "
                "remove this one to build the index again."
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

        Args:
            queries: (Q, D) float32.
            query_ids: Q unique ids.
            depth: the most passages per query.
            parameters: of the index, `name=value[,name=value]...`, such as "nprobe=16" or
                "efSearch=128"; by default faiss's own (nprobe=1, efSearch=16).
            rescore: score this many candidates, at least `depth`, with the exact vectors; 0 for
                the scores of the index, which are estimates for compressed vectors.
            progress: show a bar.

        Raises:
            ValueError: shapes, types, ids or parameters do not fit.
        """
        check_queries(queries, query_ids, dimension=self.embeddings.dimension, depth=depth)
        if rescore and rescore < depth:
            raise ValueError(
                f"rescore is {rescore} and depth {depth}: expected at least the depth."
            )
        self._set_parameters(parameters)
        queries = np.ascontiguousarray(queries)
        k = min(rescore or depth, self.embeddings.n_passages)
        run: Run = {}
        starts = range(0, len(queries), _QUERY_BATCH)
        for start in tqdm(starts, desc="search", unit="batch", disable=not progress):
            batch = slice(start, start + _QUERY_BATCH)
            with _faiss_errors(f"faiss cannot search {self.folder}"):
                scores, rows = self.index.search(queries[batch], k)  # (b, k) both; row -1 for none
            if rescore:
                scores = score_rows(queries[batch], rows, self.embeddings.vectors)
            run |= make_run(
                query_ids[batch],
                rows,
                scores,
                passage_ids=self.embeddings.passage_ids,
                id_order=self.embeddings.id_order,
                depth=depth,
            )
        return run

    def _read(self) -> faiss.Index:
        file = self.folder / INDEX_FILE
        with _faiss_errors(f"{file} is damaged; remove {self.folder} to build the index again"):
            index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        if index.ntotal != self.embeddings.n_passages:
            raise ValueError(
                f"{file} holds {index.ntotal} vectors, expected {self.embeddings.n_passages}: "
                f"remove {self.folder} to build the index again."
            )
        return index

    def _set_parameters(self, parameters: str | None) -> None:
        values = dict(_parse_parameters(parameters or ""))
        if self._changed - values.keys():  # only a new index has faiss's defaults
            self.index = self._read()
        space = faiss.ParameterSpace()
        space.initialize(self.index)
        known = [space.parameter_ranges.at(i).name for i in range(space.parameter_ranges.size())]
        for name, value in values.items():
            with _faiss_errors(
                f"{self.identity.factory!r} has no parameter {name!r}; known: "
                f"{', '.join(known) or 'none'}"
            ):
                space.set_index_parameter(self.index, name, value)
        self._changed = frozenset(values)


def recall_against_exact(run: Run, exact_run: Run, *, depth: int) -> float:
    """The share of exact search's best passages that another run found.

    Args:
        run: of an approximate search.
        exact_run: of exact search, for the same queries.
        depth: passages of each to compare.

    Returns:
        The mean over the queries of |found by both| / |found by exact search|, from 0 to 1.

    Raises:
        ValueError: the runs have different queries, or none.
    """
    if depth < 1:
        raise ValueError(f"depth is {depth}, expected at least 1, e.g. 100.")
    if run.keys() != exact_run.keys() or not run:
        raise ValueError(
            f"Got runs of {len(run)} and {len(exact_run)} queries, of which "
            f"{len(run.keys() & exact_run.keys())} are in both; expected the same queries."
        )
    shares = []
    for query, exact in exact_run.items():
        best = {passage for passage, _ in rank_passages(exact)[:depth]}
        found = {passage for passage, _ in rank_passages(run[query])[:depth]}
        shares.append(len(best & found) / len(best))
    return float(np.mean(shares))


def _default_train_size(index: faiss.Index) -> int:
    inverted_file = faiss.try_extract_index_ivf(index)
    n_centroids = inverted_file.nlist if inverted_file else 0
    return max(_VECTORS_PER_CENTROID * n_centroids, _SMALLEST_TRAINING_SET)


def _train(index: faiss.Index, embeddings: Embeddings, identity: IndexIdentity) -> None:
    generator = np.random.default_rng(identity.seed)
    rows = generator.choice(
        embeddings.n_passages, identity.train_size, replace=False, shuffle=False
    )
    with _faiss_errors(
        f"faiss cannot train {identity.factory!r} on {len(rows)} of {embeddings.n_passages} "
        "vectors; with too few, choose an index with fewer centroids"
    ):
        index.train(embeddings.vectors(np.sort(rows)))


def _parse_parameters(text: str) -> Iterator[tuple[str, float]]:
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise ValueError(
                f"The search parameter {part!r} is not name=number with a number above 0, such as "
                "nprobe=16."
            )
        yield name.strip(), number


@contextmanager
def _faiss_errors(message: str) -> Iterator[None]:
    """Raise faiss's errors as a ValueError with a message."""
    try:
        yield
    except RuntimeError as error:
        raise ValueError(f"{message} ({_reason(error)})") from error


def _reason(error: RuntimeError) -> str:
    """A faiss error without its C++ function, file and line."""
    return re.sub(r"^Error in .*? at \S+?:\d+: (Error: )?", "", str(error), flags=re.DOTALL)
