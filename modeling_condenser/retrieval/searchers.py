"""Opens systems for search: BM25, an encoder with an index of its vectors, both, or a stored run.

Encoding imports torch, and importing this module does not.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from datasets import Dataset

from modeling_condenser.collection.collection import Collection, fingerprint_passages
from modeling_condenser.encoding.embeddings import MANIFEST_FILE
from modeling_condenser.files.atomic import atomic_folder, read_json

from .bm25 import Bm25
from .dense import EMBEDDINGS_FOLDER, DenseSearcher, SearchSettings
from .fusion import CANDIDATES, DEFAULT, FUSIONS, Fusion, choose_fusion
from .indices import INDEX_FILE, build_approximate
from .runs import Run, cut_run, read_run
from .systems import BM25, System, as_folder

if TYPE_CHECKING:
    from modeling_condenser.encoding.retriever import Retriever


@dataclass(frozen=True)
class StoredRun:
    """A run that was read from a file."""

    run: Run

    def search(self, queries: Mapping[str, str], depth: int) -> Run:
        return cut_run({query: self.run[query] for query in queries if query in self.run}, depth)


@dataclass(frozen=True)
class HybridSearcher:
    """Searches with BM25 and an encoder, and fuses the runs."""

    bm25: Bm25 | StoredRun
    dense: DenseSearcher | StoredRun
    fusion: Fusion = DEFAULT

    def search(self, queries: Mapping[str, str], depth: int) -> Run:
        n_candidates = max(depth, CANDIDATES)
        bm25_run = self.bm25.search(queries, n_candidates)
        dense_run = self.dense.search(queries, n_candidates)
        return self.fusion.fuse(bm25_run, dense_run, depth=depth)


Searcher = Bm25 | StoredRun | DenseSearcher | HybridSearcher
"""Ranks the passages of one collection: `search(queries, depth)` returns a run."""


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
    calls open them. Unless a hybrid system has a fusion, `choose_fusion` selects it on `dev`.
    `replace_all` is that of `encode_collection`.
    """
    settings = settings or SearchSettings()
    if system.kind == "run":
        return StoredRun(read_run(system.model))
    if system.kind == "bm25":
        return Bm25(passages, folder=folder / BM25, **system.settings)
    encoder = system.encoder.completed(settings)
    place = embeddings or folder / EMBEDDINGS_FOLDER
    dense = _open_dense(encoder, passages, folder, place, settings, replace_all)
    if system.kind == "encoder":
        return dense
    bm25, fusion = Bm25(passages, folder=folder / BM25), DEFAULT
    if "fusion" in system.settings:
        fusion = FUSIONS[system.settings["fusion"]]
    elif dev and dev.qrels:
        bm25_run = bm25.search(dev.queries, CANDIDATES)
        dense_run = dense.search(dev.queries, CANDIDATES)
        fusion = choose_fusion(bm25_run, dense_run, dev.qrels)
    return HybridSearcher(bm25, dense, fusion)


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

    retriever = system.open()
    retriever.check_inner_product()
    encoder = retriever
    if read_json(place / MANIFEST_FILE, {}).get("retriever") != retriever.fingerprint:
        encoder = system.without("truncate_dim").open()  # vectors are stored with all numbers
    if not place.exists():
        _copy_stored(encoder, passages, place)
    vectors = encode_collection(
        encoder,
        passages,
        place,
        devices=settings.device_list,
        replace_all=replace_all,
    )
    if encoder.dimension != retriever.dimension:
        vectors = vectors.truncated(retriever.dimension, retriever=retriever.fingerprint)
    if settings.is_exact:
        return DenseSearcher(retriever, vectors, None, settings, 4 * vectors.dimension)
    name = f"index-{settings.index}"
    if "truncate_dim" in system.settings:
        name += f"-{vectors.dimension}"
    index_folder = folder / as_folder(name)
    parameters = settings.search_parameters
    index = build_approximate(vectors, settings.index, index_folder, parameters=parameters)
    n_bytes = (index_folder / INDEX_FILE).stat().st_size / vectors.n_passages
    return DenseSearcher(retriever, vectors, index, settings, n_bytes)


def _copy_stored(retriever: "Retriever", passages: Dataset, place: Path) -> None:
    """Copy the vectors that `adapt` stored beside its model, if they are of these passages."""
    stored = retriever.folder.parent / EMBEDDINGS_FOLDER
    manifest = read_json(stored / MANIFEST_FILE, {})
    if manifest.get("retriever") != retriever.fingerprint:
        return
    if manifest["passages"] == fingerprint_passages(passages):
        with atomic_folder(place) as new:
            shutil.copytree(stored, new, dirs_exist_ok=True)
