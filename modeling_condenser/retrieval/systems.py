"""Systems: what ranks passages, named by a model and its settings, and opened for search.

    my-encoder                                   an export or a sentence-transformers model
    google-bert/bert-base-uncased,pooling=mean   any encoder, with a pooling
    starter,pooling=cls                          the encoder that comes with this package
    my-encoder,truncate_dim=64                   the first 64 numbers of its vectors
    bm25,preset=msmarco-passage                  BM25, with a preset or with k1 and b
    hybrid:my-encoder                            BM25 and an encoder; dev queries choose the fusion
    hybrid:my-encoder,fusion=rrf                 reciprocal ranks; 0.3: the encoder's weight
    hybrid:my-encoder,language=fr                BM25 with French stems and stopwords
    runs/other-system.trec,name=other            a TREC run file, and a name for tables and folders
    {model: my-encoder, query_prompt: "find, "}  a mapping in YAML, or in Python

`open_searcher` opens a system for search. Vectors are searched exactly, one shard after another in
float32, unless `SearchSettings` names an index. Passages with equal scores are ordered by id, also
at the last place of a run unless more than 32 passages share its score. Importing this module does
not import torch.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal

import faiss
import numpy as np
from datasets import Dataset

from modeling_condenser.collection.collection import (
    Collection,
    fingerprint_judgements,
    fingerprint_passages,
)
from modeling_condenser.encoding.embeddings import (
    ENCODER_SETTINGS,
    MANIFEST_FILE,
    Embeddings,
    encode_collection,
    find_best,
    local_device,
    split_devices,
)
from modeling_condenser.files.run_folder import (
    IDENTITY_FILE,
    MODEL_FOLDER,
    atomic_folder,
    checksum_file,
    folder_lock,
    hash_data,
    read_json,
    write_json,
)
from modeling_condenser.files.settings import convert_settings, split_name

from .bm25 import PRESETS, WORDS_VERSION, Bm25
from .faiss_index import INDEX_FILE, build_approximate, recall_against_exact
from .runs import (
    CANDIDATES,
    DEFAULT,
    FUSION_VERSION,
    FUSIONS,
    Fusion,
    Run,
    choose_fusion,
    cut_run,
    make_run,
    read_run,
)
from .words import LANGUAGES

if TYPE_CHECKING:
    from modeling_condenser.encoding.retriever import Retriever

BM25 = "bm25"
HYBRID = "hybrid:"
EXACT = "Flat"
EMBEDDINGS_FOLDER = "embeddings"
CACHE = "runs/evaluation"  # where searches keep vectors by default, in a folder per collection
FUSION_FILE = "fusion.json"  # that dev queries chose
Kind = Literal["bm25", "run", "encoder", "hybrid"]

# The type or the allowed values of each setting.
_SETTINGS: Mapping[Kind, Mapping[str, Any]] = {
    "bm25": {"preset": tuple(PRESETS), "k1": float, "b": float, "language": LANGUAGES},
    "run": {},
    "encoder": ENCODER_SETTINGS,
    "hybrid": {**ENCODER_SETTINGS, "fusion": tuple(FUSIONS), "language": LANGUAGES},
}
_OF_HYBRID = ("fusion", "language")  # settings of a hybrid system that its encoder has not
_LONGEST_VALUE, _LONGEST_FOLDER = 40, 80  # characters in a name
_RECALL_QUERIES = 1000
_SPARE = 32  # candidates beyond the depth, for breaking ties


@dataclass(frozen=True)
class SearchSettings:
    """How a dense system encodes and searches a collection.

    Attributes:
        index: a faiss factory string, such as IVF256,Flat or SQ8; "Flat" is exact search.
        search_parameters: of the index, such as "nprobe=16" or "efSearch=128".
        devices: to encode on, one worker each, such as "cuda:0,cuda:1"; by default all GPUs, or the
            CPU.

    Raises:
        ValueError: `search_parameters` are given without an index.
    """

    index: str = EXACT
    search_parameters: str | None = None
    devices: str | None = None

    def __post_init__(self) -> None:
        if self.is_exact and self.search_parameters is not None:
            raise ValueError(
                f"search_parameters is {self.search_parameters!r}, but exact search has none: name"
                " an index, such as IVF256,Flat, or leave it out."
            )

    @property
    def is_exact(self) -> bool:
        return self.index == EXACT

    @property
    def device_list(self) -> list[str] | None:
        return split_devices(self.devices)


@dataclass(frozen=True)
class System:
    """Anything that ranks passages.

    Attributes:
        model: "bm25", a TREC run file, folder or Hub name of an encoder, or "hybrid:ENCODER".
        settings: arguments of `Bm25` or `Retriever`, and `fusion` and `language` of a hybrid.
        stated_name: replaces the name that is made from model and settings.
        devices: to encode on, as in `SearchSettings`.
        opened: the encoder that was opened last; the systems of one call share it.
    """

    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    stated_name: str | None = None
    devices: list[str] | None = field(default=None, compare=False)
    opened: dict[str, "Retriever"] = field(default_factory=dict, compare=False, repr=False)

    @property
    def kind(self) -> Kind:
        if self.model == BM25:
            return "bm25"
        if self.model.startswith(HYBRID):
            return "hybrid"
        return "run" if Path(self.model).is_file() else "encoder"

    @property
    def has_vectors(self) -> bool:
        return self.kind in ("encoder", "hybrid")

    @property
    def needs_dev(self) -> bool:
        """Whether dev queries choose its fusion."""
        return self.kind == "hybrid" and "fusion" not in self.settings

    @property
    def encoder(self) -> "System":
        """The encoder of a hybrid system; any other system itself."""
        if self.kind != "hybrid":
            return self
        model = self.model.removeprefix(HYBRID)
        return replace(self.without(*_OF_HYBRID), model=model, stated_name=None)

    def without(self, *names: str) -> "System":
        """Return the system without some settings."""
        settings = {name: v for name, v in self.settings.items() if name not in names}
        return replace(self, settings=settings)

    @property
    def name(self) -> str:
        """The name in files and tables; by default that of the model, with its settings."""
        if self.stated_name:
            return self.stated_name
        parts = ["hybrid"] if self.kind == "hybrid" else []
        parts.append(base_name(self.encoder.model))
        for value in self.without("token_budget").settings.values():
            parts.append(shorten(str(value), _LONGEST_VALUE, placeholder="…"))
        return "-".join(parts)

    @property
    def bm25(self) -> "System":
        """What searches by words in a hybrid system or in BM25 itself, whatever its name is."""
        shared = self.settings.keys() & _SETTINGS["bm25"].keys()
        return System(BM25, {name: self.settings[name] for name in sorted(shared)})

    @property
    def text(self) -> str:
        """The system as a word of a command, which `parse_system` reads."""
        values = {**self.settings, **({"name": self.stated_name} if self.stated_name else {})}
        words = [self.model, *(f"{name}={value}" for name, value in values.items())]
        if any("," in word for word in words):
            return json.dumps({"model": self.model, **values}, ensure_ascii=False)
        return ",".join(words)

    def rename(self, model: str) -> "System":
        """Return the system with another name of its model or, if it is a hybrid, its encoder."""
        return replace(self, model=self.model.removesuffix(self.encoder.model) + model)

    def open(self) -> "Retriever":
        """Load the encoder, unless it was the one that was opened last."""
        from modeling_condenser.encoding.retriever import Retriever

        if self.kind != "encoder":
            raise ValueError(f"{self.model} has no vectors: name an encoder.")
        key = f"{self.model} {self.settings}"
        if key not in self.opened:
            self.opened.clear()
            device = local_device(self.devices)
            self.opened[key] = Retriever(self.model, device=device, **self.settings)
        return self.opened[key]

    @property
    def fingerprint(self) -> str:
        """Identifies everything that its runs depend on; opens an encoder."""
        if self.kind == "run":
            return checksum_file(Path(self.model))
        if self.kind == "bm25":
            return f"{replace(self, stated_name=None).text} words {WORDS_VERSION}"
        if self.kind == "hybrid":
            of_hybrid = [self.settings.get(name) for name in _OF_HYBRID]
            versions = f"words {WORDS_VERSION} fusion {FUSION_VERSION}"
            return f"{of_hybrid} {versions} {self.encoder.fingerprint}"
        return self.open().fingerprint


SystemLike = str | Path | Mapping[str, Any] | System
"""A system, its text, or its `model` and settings as a mapping."""


def parse_system(system: SystemLike) -> System:
    """Parse `MODEL[,setting=value]...`, or a mapping of `model` and settings.

    The settings of an encoder are those of `Retriever`, those of bm25 those of `Bm25`. Every system
    has the setting `name`. A wrong setting is a ValueError.
    """
    if isinstance(system, System):
        return system
    model, values = split_name(system)
    parsed = System(model)
    if parsed.kind == "hybrid" and parsed.encoder.kind != "encoder":
        raise ValueError(f"{model} has no vectors to fuse with BM25: name an encoder.")
    known = {**_SETTINGS[parsed.kind], "name": str}
    settings = convert_settings(model, values, known)
    stated_name = settings.pop("name", None)
    return System(model, settings, stated_name)


def parse_systems(systems: Iterable[SystemLike], search: SearchSettings) -> list[System]:
    """Parse the systems of one search, which share the encoder that was opened last."""
    parsed: dict[str, System] = {}
    opened: dict[str, Retriever] = {}
    for each in systems:
        system = replace(parse_system(each), devices=search.device_list, opened=opened)
        folder = as_folder(system.name)
        if parsed.setdefault(folder, system) != system:
            raise ValueError(
                f"{parsed[folder].model} and {system.model} have the same name {folder!r}: rename"
                f" one, as in {system.model},name=OTHER"
            )
    if not search.is_exact and not any(system.has_vectors for system in parsed.values()):
        raise ValueError(f"index is {search.index!r}, but no system has vectors: leave it out.")
    return list(parsed.values())


def base_name(model: str) -> str:
    """Return the last part of a folder or Hub name; for `model` in a run folder, the run's name."""
    path = Path(model).resolve()
    if path.is_file():
        return path.stem
    return path.parent.name if path.name == MODEL_FOLDER else path.name


def as_folder(name: str) -> str:
    """Convert a name into the name of a folder."""
    return re.sub(r"[^\w.=-]+", "_", name)[:_LONGEST_FOLDER]


@dataclass(frozen=True)
class StoredRun:
    """A run that was read from a file."""

    run: Run

    def search(self, queries: Mapping[str, str], depth: int) -> Run:
        return cut_run({query: self.run[query] for query in queries if query in self.run}, depth)


@dataclass(frozen=True)
class DenseSearcher:
    """Encodes queries and ranks passages by their embeddings."""

    retriever: "Retriever"
    embeddings: Embeddings
    index: faiss.Index | None = None
    bytes_per_vector: float | None = None  # in the index, or in the embeddings

    def search(self, queries: Mapping[str, str], depth: int) -> Run:
        """Find the best `depth` passages for each query; a blank one finds none, as in BM25."""
        queries = {name: text for name, text in queries.items() if text.strip()}
        if not queries:
            return {}
        vectors = self.retriever.encode_queries(list(queries.values()))
        return search_embeddings(
            self.embeddings, vectors, list(queries), depth=depth, index=self.index
        )

    def measure_recall(self, queries: Mapping[str, str], run: Run, *, depth: int) -> dict[str, Any]:
        """Measure the recall against exact search on 1,000 queries; empty for exact search."""
        sample = dict(islice(queries.items(), _RECALL_QUERIES))
        if self.index is None or not sample:
            return {}
        exact = replace(self, index=None).search(sample, depth)
        recall = recall_against_exact(run, exact, depth=depth)
        return {"recall_against_exact": recall, "recall_queries": len(sample)}


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


def search_embeddings(
    embeddings: Embeddings,
    queries: np.ndarray,
    query_ids: Sequence[str],
    *,
    depth: int = 100,
    index: faiss.Index | None = None,
) -> Run:
    """Rank a collection's passages for queries, (Q, D) float32.

    An index may find fewer than `depth` passages, and its scores may be estimates.
    """
    k = min(depth + _SPARE, embeddings.n_passages)
    if index is None:
        scores, rows = find_best(queries, embeddings.blocks(), depth=k)
    else:
        scores, rows = index.search(queries, k)  # (Q, k) both; row -1 for none
    return make_run(query_ids, scores, rows, embeddings.ids, depth=depth)


Searcher = Bm25 | StoredRun | DenseSearcher | HybridSearcher
"""Ranks the passages of one collection: `search(queries, depth)` returns a run."""


def open_searcher(
    system: System,
    passages: Dataset,
    folder: Path,
    *,
    embeddings: Path | None = None,
    bm25_folder: Path | None = None,
    settings: SearchSettings | None = None,
    dev: Collection | None = None,
    is_stored: bool = False,
) -> Searcher:
    """Prepare a system to search passages with the columns `_id`, `title` and `text`.

    `folder` stores the index and, unless `embeddings` and `bm25_folder` name others, the embeddings
    and BM25's index; later calls open them, or make them again if model or passages have changed.
    If `is_stored`, vectors are only opened; a FileNotFoundError says that they are not complete.
    Unless a hybrid system has a fusion, `choose_fusion` selects it on `dev`, once.
    """
    settings = settings or SearchSettings()
    if system.kind == "run":
        return StoredRun(read_run(system.model))
    bm25_folder = bm25_folder or folder / BM25
    if system.kind == "bm25":
        return Bm25(passages, folder=bm25_folder, **system.settings)
    dense = _open_dense(system.encoder, passages, folder, embeddings, settings, is_stored)
    if system.kind == "encoder":
        return dense
    bm25, fusion = Bm25(passages, folder=bm25_folder, **system.bm25.settings), DEFAULT
    if "fusion" in system.settings:
        fusion = FUSIONS[system.settings["fusion"]]
    elif dev and dev.qrels:
        identity = hash_data(
            FUSION_VERSION,
            dense.retriever.fingerprint,
            dense.embeddings.passages,
            read_json(bm25_folder / IDENTITY_FILE, None),
            fingerprint_judgements(dev),
            settings.index,
            settings.search_parameters,
        )
        fusion = _choose_once(bm25, dense, dev, folder / FUSION_FILE, identity)
    return HybridSearcher(bm25, dense, fusion)


def _choose_once(
    bm25: Bm25, dense: DenseSearcher, dev: Collection, file: Path, identity: str
) -> Fusion:
    """Choose a fusion on dev queries; or read it, if all that it depends on is as it was."""
    stored = read_json(file, {})
    if stored.get("identity") == identity:
        return FUSIONS[stored["fusion"]]
    bm25_run = bm25.search(dev.queries, CANDIDATES)
    chosen = choose_fusion(bm25_run, dense.search(dev.queries, CANDIDATES), dev.qrels)
    [name] = [name for name, fusion in FUSIONS.items() if fusion == chosen]
    write_json(file, {"identity": identity, "fusion": name})
    return chosen


def open_stored(system: System, passages: Dataset, folder: Path, **arguments: Any) -> Searcher:
    """`open_searcher`, where `folder` stores what all systems need to search one collection.

    BM25 alone and hybrid systems share its index.
    """
    place = folder / EMBEDDINGS_FOLDER
    return open_searcher(
        system,
        passages,
        _vectors_folder(system.encoder, place) if system.has_vectors else place,
        bm25_folder=folder / BM25 / as_folder(system.bm25.text),
        **arguments,
    )


def _vectors_folder(encoder: System, folder: Path) -> Path:
    """The folder with the vectors of an encoder, which systems with the same vectors share."""
    digits = _digits(encoder.open())
    stored = sorted(folder.glob(f"*-{digits}"))
    return stored[0] if stored else folder / f"{as_folder(encoder.name)}-{digits}"


def _digits(retriever: "Retriever") -> str:
    return hash_data(retriever.passage_fingerprint)[:8]


def find_vectors(retriever: "Retriever", collection: str) -> Path | None:
    """The vectors that `evaluate` or `search` keep of a collection by default; None if none are."""
    folder = Path(CACHE, as_folder(collection), EMBEDDINGS_FOLDER)
    return min(folder.glob(f"*-{_digits(retriever)}/{EMBEDDINGS_FOLDER}"), default=None)


def _open_dense(
    system: System,
    passages: Dataset,
    folder: Path,
    embeddings: Path | None,
    settings: SearchSettings,
    is_stored: bool,
) -> DenseSearcher:
    """Encode the passages and build the index of an encoder, or open those that are stored."""
    retriever = system.open()
    retriever.check_inner_product()
    place = embeddings or folder / EMBEDDINGS_FOLDER
    if is_stored:
        vectors = Embeddings.open(place)
    else:
        if not place.exists():
            link_vectors(retriever.folder.parent / EMBEDDINGS_FOLDER, retriever, passages, place)
        stored = read_json(place / MANIFEST_FILE, {}).get("passages")
        if embeddings and stored not in (None, fingerprint_passages(passages)):
            raise ValueError(
                f"{embeddings} holds the vectors of other passages, which a search does not "
                "replace: name another folder, or use "
                f"`condenser encode {system.text} COLLECTION {embeddings}`."
            )
        vectors = encode_collection(
            retriever, passages, place, devices=settings.device_list, is_cache=embeddings is None
        )
    if settings.is_exact:
        return DenseSearcher(retriever, vectors, None, 4 * vectors.dimension)
    index_folder = folder / as_folder(f"index-{settings.index}")
    parameters = settings.search_parameters
    index = build_approximate(vectors, settings.index, index_folder, parameters=parameters)
    n_bytes = (index_folder / INDEX_FILE).stat().st_size / vectors.n_passages
    return DenseSearcher(retriever, vectors, index, n_bytes)


def link_vectors(stored: Path, retriever: "Retriever", passages: Dataset, place: Path) -> None:
    """Link to stored vectors, such as `adapt` stores beside its model, if they are the same."""
    manifest = read_json(stored / MANIFEST_FILE, {})
    wanted = (retriever.passage_fingerprint, fingerprint_passages(passages))
    if (manifest.get("retriever"), manifest.get("passages")) != wanted:
        return
    if Embeddings.open(stored, complete=False).missing_shards():
        return
    with folder_lock(place):
        if not place.exists():
            with atomic_folder(place) as new:
                partial = shutil.ignore_patterns(".*.partial")
                shutil.copytree(stored, new, copy_function=link, ignore=partial, dirs_exist_ok=True)


def link(source: str, target: str) -> None:
    """Make a hard link of a file, which is never changed in place; else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
