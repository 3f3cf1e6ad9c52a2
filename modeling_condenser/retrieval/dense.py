"""Dense search of a collection's embeddings, exactly or by an index; this imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import faiss

from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.encoding.fingerprints import Dtype

from .approximate import recall_against_exact, search_approximate
from .exact import search_exact
from .runs import Run

if TYPE_CHECKING:
    from modeling_condenser.encoding.retriever import Retriever

EXACT = "Flat"
EMBEDDINGS_FOLDER = "embeddings"


@dataclass(frozen=True)
class SearchSettings:
    """How a dense system encodes and searches a collection.

    Attributes:
        index: a faiss factory string; "Flat" searches the embeddings exactly, without an index.
        search_parameters: of the index, such as "nprobe=16" or "efSearch=128".
        devices: to encode on, one worker each, such as "cuda:0,cuda:1"; by default all GPUs, or the
            CPU.
        dtype: of the weights of encoders that state none (`MODEL,dtype=bfloat16`); "float32" or
            "bfloat16".
        shard_size: passages in a shard of embeddings.
        index_seed: selects the vectors that an index is trained on.
        rescore: score this many candidates of an index with the exact vectors; 0 for the index's
            own scores.
        recall_queries: on how many queries the recall of an index is measured against exact
            search; 0 for none.
    """

    index: str = EXACT
    search_parameters: str | None = None
    devices: str | None = None
    dtype: Dtype = "float32"
    shard_size: int | None = None
    index_seed: int = 0
    rescore: int = 0
    recall_queries: int = 1000

    @property
    def is_exact(self) -> bool:
        return self.index == EXACT

    @property
    def device_list(self) -> list[str] | None:
        return self.devices.split(",") if self.devices else None


@dataclass(frozen=True)
class DenseSearcher:
    """Ranks passages by inner product of vectors, exactly or by an index."""

    retriever: "Retriever"
    embeddings: Embeddings
    index: faiss.Index | None = None
    settings: SearchSettings = SearchSettings()
    progress: bool = False

    def search(self, queries: Mapping[str, str], *, depth: int) -> Run:
        """The best `depth` passages for each query."""
        progress = self.progress and len(queries) > 1
        vectors = self.retriever.encode_queries(list(queries.values()), progress=progress)
        shared: Any = {"depth": depth, "progress": progress}
        if self.index is None:
            return search_exact(self.embeddings, vectors, list(queries), **shared)
        shared["rescore"] = self.settings.rescore
        return search_approximate(self.index, self.embeddings, vectors, list(queries), **shared)

    def measure_recall(self, queries: Mapping[str, str], run: Run, *, depth: int) -> dict[str, Any]:
        """Recall of a run against exact search on the first queries; empty for exact search."""
        sample = dict(islice(queries.items(), self.settings.recall_queries))
        if self.index is None or not sample:
            return {}
        vectors = self.retriever.encode_queries(list(sample.values()))
        exact = search_exact(self.embeddings, vectors, list(sample), depth=depth)
        found = {query_id: run.get(query_id, {}) for query_id in sample}
        return {
            "recall_against_exact": recall_against_exact(found, exact, depth=depth),
            "recall_queries": len(sample),
        }
