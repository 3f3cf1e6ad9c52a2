"""Opens systems for search: BM25, an encoder with an index of its vectors, both, or a stored run.

Encoding imports torch, and importing this module does not.
"""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from datasets import Dataset

from modeling_condenser.collection.collection import Collection, fingerprint_passages
from modeling_condenser.encoding.embeddings import MANIFEST_FILE, Embeddings
from modeling_condenser.files.models import read_json

from .bm25 import Bm25
from .dense import EMBEDDINGS_FOLDER, DenseSearcher, SearchSettings
from .fusion import CANDIDATES, DEFAULT, FUSIONS, Fusion, choose_fusion
from .indices import INDEX_FILE, build_approximate, build_quantised
from .milvus import connect, store_in_milvus
from .runs import Run, cut_run, read_run
from .systems import BM25, System


@dataclass(frozen=True)
class StoredRun:
    """A run that was read from a file."""

    run: Run

    def search(self, queries: Mapping[str, str], *, depth: int) -> Run:
        return cut_run({query: self.run[query] for query in queries if query in self.run}, depth)


@dataclass(frozen=True)
class HybridSearcher:
    """Searches with BM25 and an encoder, and fuses the runs."""

    bm25: "Searcher"
    dense: "Searcher"
    fusion: Fusion = DEFAULT

    def search(self, queries: Mapping[str, str], *, depth: int) -> Run:
        """Find the best `depth` passages for each query."""
        deep = max(depth, CANDIDATES)
        runs = (part.search(queries, depth=deep) for part in (self.bm25, self.dense))
        return self.fusion.fuse(*runs, depth=depth)


Searcher = Bm25 | StoredRun | DenseSearcher | HybridSearcher
"""Ranks the passages of one collection: `search(queries, depth=...)` returns a run."""


def open_searcher(
    system: System,
    passages: Dataset,
    folder: Path,
    *,
    embeddings: Path | None = None,
    settings: SearchSettings | None = None,
    dev: Collection | None = None,
    replace_all: bool = False,
) -> Searcher:
    """Prepare a system to search passages with the columns `_id`, `title` and `text`.

    `folder` stores the index and, unless `embeddings` names another folder, the embeddings; later
    calls open them. Unless a hybrid system states its fusion, `choose_fusion` selects it on `dev`.
    `replace_all` is that of `encode_collection`.
    """
    settings = settings or SearchSettings()
    if system.kind == "run":
        return StoredRun(read_run(system.model))
    if system.kind == "bm25":
        return Bm25(passages, folder=folder / BM25, **system.settings)
    place = embeddings or folder / EMBEDDINGS_FOLDER
    encoder = system.encoder.completed(settings)
    dense = _open_dense(encoder, passages, folder, place, settings, replace_all)
    if system.kind == "encoder":
        return dense
    lexical, fusion = Bm25(passages, folder=folder / BM25), DEFAULT
    if stated := system.settings.get("fusion"):
        fusion = FUSIONS[stated]
    elif dev and dev.qrels:
        runs = [part.search(dev.queries, depth=CANDIDATES) for part in (lexical, dense)]
        fusion = choose_fusion(runs[0], runs[1], dev.qrels)
    return HybridSearcher(lexical, dense, fusion)


def _open_dense(
    system: System,
    passages: Dataset,
    folder: Path,
    place: Path,
    settings: SearchSettings,
    replace_all: bool,
) -> DenseSearcher:
    """Encode the passages and build the index of an encoder, or open those that are stored."""
    from modeling_condenser.encoding.encode import encode_collection

    retriever = whole = system.whole.open()
    retriever.check_inner_product()
    if (dimension := system.settings.get("truncate_dim")) is not None:
        retriever = whole.truncated(dimension)
        if read_json(place / MANIFEST_FILE, {}).get("retriever") == retriever.fingerprint:
            whole = retriever  # truncated vectors are stored
    client = connect(settings.index) if settings.database else None
    _take_stored(whole.folder.parent / EMBEDDINGS_FOLDER, place, whole, passages)
    vectors = encode_collection(
        whole,
        passages,
        place,
        shard_size=settings.shard_size,
        devices=settings.device_list,
        replace_all=replace_all,
    )
    if retriever is not whole:
        vectors = vectors.truncated(retriever.dimension, retriever=retriever.fingerprint)
    if client is not None:
        parameters = settings.search_parameters
        index: Any = store_in_milvus(vectors, passages, client, parameters=parameters)
        return DenseSearcher(retriever, vectors, index, settings, 4 * vectors.dimension)
    index, n_bytes = _open_index(system, vectors, folder, settings)
    return DenseSearcher(retriever, vectors, index, settings, n_bytes)


def _take_stored(beside: Path, place: Path, retriever: Any, passages: Dataset) -> None:
    """Copy the vectors that `adapt` stored beside its model, if they are those of a new place."""
    manifest = read_json(beside / MANIFEST_FILE, {})
    if (
        not place.exists()
        and isinstance(manifest, dict)
        and manifest.get("retriever") == retriever.fingerprint
        and manifest["passages"] == fingerprint_passages(passages)
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as new:
            copy = shutil.copytree(beside, Path(new) / place.name)
            with suppress(OSError):  # another process was first
                copy.rename(place)


def _open_index(
    system: System, vectors: Embeddings, folder: Path, settings: SearchSettings
) -> tuple[Any, float]:
    """The faiss index of a system, None for exact search, and its bytes for a vector."""
    is_quantised = system.precision != "float32"
    if settings.is_exact and not is_quantised:
        return None, 4 * vectors.dimension
    name = system.precision if is_quantised else settings.index.replace(",", "_")
    if dimension := system.settings.get("truncate_dim"):
        name = f"{name}-{dimension}"
    folder /= f"index-{name}"
    if is_quantised:
        quantised: Any = build_quantised(vectors, system.precision, folder)
        return quantised, quantised.code_size
    index = build_approximate(
        vectors,
        settings.index,
        folder,
        parameters=settings.search_parameters,
        seed=settings.index_seed,
    )
    return index, (folder / INDEX_FILE).stat().st_size / vectors.n_passages
