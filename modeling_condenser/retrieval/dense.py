"""Dense search: an encoder and passages in; a searcher by vectors out, exact or approximate."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.encoding.encode import encode_collection
from modeling_condenser.encoding.precision import FLOAT32, Dtype
from modeling_condenser.encoding.retriever import Retriever

from .approximate import ApproximateIndex, build_approximate, recall_against_exact
from .exact import search_exact
from .runs import Run
from .systems import System

EXACT = "Flat"
EMBEDDINGS_FOLDER, INDEX_FOLDER = "embeddings", "index"


@dataclass(frozen=True)
class SearchSettings:
    """How a dense system encodes and searches a collection.

    Attributes:
        index: a faiss factory string; "Flat" is exact search over the embeddings themselves.
        search_parameters: of the index, such as "nprobe=16" or "efSearch=128".
        n_processes: that encode; by default one for each accelerator or core, where it pays.
        devices: they encode on, such as "cuda:0,cuda:1"; by default the first accelerator, or CPU.
        dtype: of the weights of encoders that state none (`MODEL,dtype=bfloat16`); "float32" or
            "bfloat16".
        shard_size: passages in a shard of embeddings.
        index_seed: decides which vectors an index is trained on.
        rescore: take so many candidates from an index and order them by exact inner products; 0
            for the index's own scores.
        recall_queries: on how many of the queries an index's recall is measured against exact
            search; 0 for none.
    """

    index: str = EXACT
    search_parameters: str | None = None
    n_processes: int | None = None
    devices: str | None = None
    dtype: Dtype = FLOAT32
    shard_size: int | None = None
    index_seed: int = 0
    rescore: int = 0
    recall_queries: int = 1000

    @property
    def is_exact(self) -> bool:
        return self.index == EXACT


@dataclass(frozen=True)
class DenseSearcher:
    """Ranks passages by inner product of vectors.

    Attributes:
        retriever: encodes the queries.
        embeddings: of the passages.
        index: approximate; None for exact search.
        settings: of the search.
        progress: whether to show progress bars.
    """

    retriever: Retriever
    embeddings: Embeddings
    index: ApproximateIndex | None = None
    settings: SearchSettings = SearchSettings()
    progress: bool = False

    def search(self, queries: Mapping[str, str], *, depth: int) -> Run:
        """The best `depth` passages for each query."""
        vectors = self.retriever.encode_queries(list(queries.values()), progress=self.progress)
        return self.search_vectors(vectors, list(queries), depth=depth)

    def search_vectors(self, vectors: np.ndarray, query_ids: list[str], *, depth: int) -> Run:
        """The best `depth` passages for each of Q query vectors, (Q, D) float32."""
        if self.index is None:
            return self._search_exactly(vectors, query_ids, depth)
        return self.index.search(
            vectors,
            query_ids,
            depth=depth,
            parameters=self.settings.search_parameters,
            rescore=self.settings.rescore,
            progress=self.progress,
        )

    def measure_recall(self, queries: Mapping[str, str], run: Run, *, depth: int) -> dict[str, Any]:
        """Against exact search, on the first queries of a run: the share it found; {} if exact."""
        sample = dict(islice(queries.items(), self.settings.recall_queries))
        if self.index is None or not sample:
            return {}
        vectors = self.retriever.encode_queries(list(sample.values()))
        exact = self._search_exactly(vectors, list(sample), depth)
        found = {query_id: run.get(query_id, {}) for query_id in sample}
        return {
            "recall_against_exact": recall_against_exact(found, exact, depth=depth),
            "recall_queries": len(sample),
        }

    def _search_exactly(self, vectors: np.ndarray, query_ids: list[str], depth: int) -> Run:
        return search_exact(
            self.embeddings, vectors, query_ids, depth=depth, progress=self.progress
        )


def open_dense(
    system: System,
    passages: Dataset,
    folder: Path,
    *,
    embeddings: Path | None = None,
    settings: SearchSettings | None = None,
    progress: bool = True,
) -> DenseSearcher:
    """Encode a collection, or read its embeddings, and index them where that is asked for.

    Args:
        system: a dense one.
        passages: columns `_id`, `title`, `text`.
        folder: for embeddings and index. Of another model or collection, it is refused.
        embeddings: their folder, where it is another one.
        settings: of encoding and search.
        progress: whether to show progress bars.

    Raises:
        ValueError: the system ranks by Euclidean distance, or a setting does not fit.
    """
    settings = settings or SearchSettings()
    devices = settings.devices.split(",") if settings.devices else None
    system = system.in_dtype(settings.dtype)
    retriever = system.open(device=devices[0] if devices else None)
    if retriever.contract.similarity == "euclidean":
        raise ValueError(
            f"{system.name} ranks by Euclidean distance, but collections are searched by inner "
            f"product: state another one, as {system.model},similarity=cosine."
        )
    vectors = encode_collection(
        retriever,
        passages,
        embeddings or folder / EMBEDDINGS_FOLDER,
        n_processes=settings.n_processes,
        devices=devices,
        shard_size=settings.shard_size,
        progress=progress,
    )
    index = None
    if not settings.is_exact:
        index = build_approximate(
            vectors,
            settings.index,
            folder / f"{INDEX_FOLDER}-{settings.index.replace(',', '_')}",
            seed=settings.index_seed,
            progress=progress,
        )
    return DenseSearcher(retriever, vectors, index, settings, progress)
