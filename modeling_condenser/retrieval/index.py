"""`Index` answers queries from a collection, for an application: by BM25, an encoder, or both.

index.json   the system, the settings of its search, and the number of the folder that is complete
1, 2, ...    passages.arrow (ids, titles, texts, headings, files), bm25, embeddings, index-*

An update makes the next folder, from links to the files of the one before, and then changes the
number. So one that is killed or fails changes nothing, and the next `update` continues it.
"""

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, pairwise
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from filelock import FileLock

from modeling_condenser.collection.collection import (
    COLUMNS,
    Collection,
    PassageIndex,
    check_passages,
    check_text,
)
from modeling_condenser.collection.load import CORPUS_FILE, load_dev, load_passages
from modeling_condenser.collection.rows import iterate_rows
from modeling_condenser.collection.rows import read_json as read_json_rows
from modeling_condenser.encoding.embeddings import Embeddings, hash_passages, id_column
from modeling_condenser.files.run_folder import (
    atomic_file,
    atomic_folder,
    read_json,
    show_bars,
    write_json,
)
from modeling_condenser.files.settings import parse_settings

from .bm25 import Bm25
from .runs import FUSIONS
from .systems import (
    EMBEDDINGS_FOLDER,
    HybridSearcher,
    Searcher,
    SearchSettings,
    System,
    SystemLike,
    link,
    open_searcher,
    parse_systems,
)
from .words import Words, recognize_language

logger = logging.getLogger(__name__)

INDEX_FILE, PASSAGES_FILE, LOCK_FILE = "index.json", "passages.arrow", ".lock"
SOURCE_COLUMNS = ("headings", "file")  # of a collection by `condenser collect`
_SCHEMA = pa.schema([(name, pa.string()) for name in (*COLUMNS, *SOURCE_COLUMNS)])

PassageSource: TypeAlias = str | Path | Dataset | Mapping[str, str] | Sequence[str]
"""Folder or Hub name of a collection; a data set with the columns `_id`, `title` and `text`, and
optionally `headings` and `file`; texts by id; or texts, whose ids are their places."""


class Passage(NamedTuple):
    """A passage that answers a query.

    Attributes:
        words: of the query that it contains, without stopwords.
        sentence: of its text, the first with the most of these words.
        headings, file: where it comes from, in a collection by `condenser collect`.
    """

    id: str
    title: str
    text: str
    score: float
    words: tuple[str, ...]
    sentence: str
    headings: str = ""
    file: str = ""


class Changes(NamedTuple):
    """What an update changed: ids of passages that are new, have another title or text, or went."""

    added: list[str]
    changed: list[str]
    dropped: list[str]


class _State(NamedTuple):
    """What a search reads; an update replaces all of it at once."""

    passages: Dataset  # read as Arrow tables
    rows_of: PassageIndex
    searcher: Searcher
    words: Words


class Index:
    """Passages that can be searched from many threads, also during an update.

    A forked process may search, too (gunicorn's `preload_app`), on one core.

    Example:
        >>> passages = {"a": "At a spring.", "b": "In May."}
        >>> index = Index.build(passages, "bm25", folder="my-index")
        >>> [[passage]] = index.search(["where is the spring?"], k=1)
        >>> passage.id, passage.text, passage.words
        ('a', 'At a spring.', ('spring',))
        >>> index.update({"a": "At a spring.", "c": "In the hills."})
        Changes(added=['c'], changed=[], dropped=['b'])
        >>> index = Index.open("my-index")

    Use `build` or `open`.
    """

    def __init__(self, folder: Path, system: System, settings: SearchSettings) -> None:
        self.folder, self.system, self.settings = folder, system, settings
        self._updating = Lock()
        self._process = os.getpid()
        self._state: _State

    @classmethod
    def build(
        cls,
        passages: PassageSource,
        system: SystemLike = "bm25",
        *,
        folder: str | Path | None = None,
        **settings: Any,
    ) -> "Index":
        """Index passages.

        Args:
            passages: see `PassageSource`.
            system: "bm25", an encoder, or "hybrid:ENCODER" (both), with settings after commas, as
                in `condenser search`, or a mapping. The dev queries of a collection choose the
                fusion of both.
            folder: keeps the index; new, empty, or of a killed call. By default it is temporary.
            **settings: fields of `SearchSettings`, such as `index="HNSW32"`.

        Raises:
            ValueError: a setting or a passage does not fit.
            FileExistsError: the folder holds something else.
        """
        [search] = parse_settings(settings, SearchSettings)
        [parsed] = parse_systems([system], search)
        if parsed.kind == "run":
            raise ValueError(f"{parsed.model} is a run file, which cannot answer a new query.")
        place = Path(folder or tempfile.mkdtemp(prefix="condenser-index-")).resolve()
        _check_folder(place)
        is_tuned = parsed.needs_dev and isinstance(passages, str | Path)
        dev = load_dev(str(passages), judged="") if is_tuned else None
        index = cls(place, _with_absolute_path(parsed), search)
        if not folder:
            weakref.finalize(index, _remove, place, os.getpid())
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / LOCK_FILE):
            index._replace(_read_passages(passages), dev)
        return index

    @classmethod
    def open(
        cls, folder: str | Path, *, model: str | Path | None = None, devices: str | None = None
    ) -> "Index":
        """Open an index. An update that was killed has changed nothing.

        Args:
            folder: of `build`.
            model: where the encoder's folder is now, if it was moved.
            devices: to encode on now, instead of those of `build`; see `SearchSettings`.

        Raises:
            FileNotFoundError: the folder holds no complete index, or the encoder was moved.
            ValueError: the encoder is not that of the index, or has changed.
        """
        folder = Path(folder).resolve()
        content = read_json(folder / INDEX_FILE, {})
        if not content.get("version"):
            raise FileNotFoundError(f"{folder} holds no complete index: use Index.build first.")
        settings = SearchSettings(**content["settings"])
        if devices:
            settings = replace(settings, devices=devices)
        [system] = parse_systems([content["system"]], settings)
        if model and not system.has_vectors:
            raise ValueError(f"{folder} is an index of BM25, which has no model: leave it out.")
        if system.has_vectors:
            system = _with_absolute_path(system.rename(str(model)) if model else system)
            if Path(place := system.encoder.model).is_absolute() and not Path(place).exists():
                raise FileNotFoundError(
                    f"The index searches by the encoder {place}, which does not exist: say where "
                    f"it is now, as in Index.open({str(folder)!r}, model='my-encoder')."
                )
        index = cls(folder, system, settings)
        if system.has_vectors:
            system.encoder.open()  # takes seconds, in which the index may be updated
        index._open_newest()
        return index

    def update(self, passages: PassageSource) -> Changes:
        """Change the index to these passages: encode new and changed ones, and drop all others.

        Passages are the same if title and text are. Searches go on with the earlier ones meanwhile.
        Updates by several threads or processes wait for each other.
        """
        self._stay_usable_after_fork()
        with self._updating, FileLock(self.folder / LOCK_FILE):
            before = self._state.passages
            self._replace(_read_passages(passages))
            return _compare(before, self._state.passages)

    def search(self, queries: Sequence[str], k: int = 10) -> list[list[Passage]]:
        """Find the best `k` passages for each query, best first; fewer if BM25 finds fewer."""
        is_list = isinstance(queries, Iterable) and not isinstance(queries, str | Mapping)
        texts = {str(place): query for place, query in enumerate(queries if is_list else [])}
        if not is_list or not all(isinstance(text, str) for text in texts.values()):
            raise ValueError(f"Got {queries!r:.80}, expected a list of queries, such as [query].")
        if not isinstance(k, int | np.integer) or k < 1:
            raise ValueError(f"k is {k}, expected a whole number of at least 1.")
        for query in texts.values():
            check_text(query, "the query")
        self._stay_usable_after_fork()
        passages, rows_of, searcher, words = self._state
        with show_bars(False):
            run = searcher.search(texts, k)
        names = list(dict.fromkeys(chain.from_iterable(run.values())))
        table: Any = passages[np.sort(rows_of.rows(names))] if names else pa.table({})
        rows = {row["_id"]: row for row in table.to_pylist()}
        answers = []
        for place, query in texts.items():
            found = run.get(place, {}).items()
            answers.append([make_passage(rows[name], score, query, words) for name, score in found])
        return answers

    def __len__(self) -> int:
        return len(self._state.passages)

    def __repr__(self) -> str:
        return f"Index({len(self):,} passages, {self.system.text}, {self.folder})"

    def _open_newest(self) -> None:
        """Open the complete folder, which another process may replace and remove meanwhile."""
        while True:
            version = self._find_version()
            try:
                self._check_encoder(self.folder / str(version) / EMBEDDINGS_FOLDER)
                self._state = self._prepare(self.folder / str(version), is_stored=True)
            except (OSError, ValueError):
                if version == self._find_version():
                    raise
            if version == self._find_version():
                return

    def _check_encoder(self, embeddings: Path) -> None:
        """Raise a ValueError if the encoder is not that of the stored vectors."""
        if not self.system.has_vectors:
            return
        encoder = self.system.encoder
        if Embeddings.open(embeddings).retriever != encoder.open().passage_fingerprint:
            raise ValueError(
                f"{encoder.model} is not the encoder of the index {self.folder}, or has changed "
                "since: name the right one by model=..., or use Index.build with a new folder."
            )

    def _replace(self, passages: Dataset, dev: Collection | None = None) -> None:
        """Index other passages in the next folder, and remove that of the earlier ones."""
        version = self._find_version()
        earlier, folder = (self.folder / str(number) for number in (version, version + 1))
        if version and not folder.exists():  # else, it is of a killed call
            with atomic_folder(folder) as new:
                shutil.copytree(earlier, new, copy_function=link, dirs_exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        self._write_settings(version)
        _write_passages(folder / PASSAGES_FILE, passages)
        state = self._prepare(folder, dev)
        self._write_settings(version + 1)  # with the fusion that was chosen
        self._state = state
        for other in self.folder.glob("[0-9]*"):  # of killed calls, too
            if other.name.isdecimal() and int(other.name) <= version:
                shutil.rmtree(other, ignore_errors=True)

    def _find_version(self) -> int:
        """The number of the complete folder, also if another process made it; 0 for none."""
        return read_json(self.folder / INDEX_FILE, {}).get("version", 0)

    def _write_settings(self, version: int) -> None:
        settings = asdict(self.settings)
        stored = read_json(self.folder / INDEX_FILE, {})
        if stored.get("version"):  # `open` may name others
            settings["devices"] = stored["settings"]["devices"]
        content = {"system": self.system.text, "settings": settings}
        write_json(self.folder / INDEX_FILE, {**content, "version": version})

    def _prepare(
        self, folder: Path, dev: Collection | None = None, *, is_stored: bool = False
    ) -> _State:
        """Open the system on the passages of a folder, and complete what it stores."""
        passages = Dataset.from_file(str(folder / PASSAGES_FILE))
        searcher: Any = open_searcher(
            self.system, passages, folder, settings=self.settings, dev=dev, is_stored=is_stored
        )
        searcher.search({"": "a"}, 1)  # opens all files, which an update removes
        if isinstance(searcher, HybridSearcher):
            [fusion] = [name for name, each in FUSIONS.items() if each == searcher.fusion]
            self.system = replace(self.system, settings={**self.system.settings, "fusion": fusion})
        words = words_of(searcher, passages)
        return _State(passages.with_format("arrow"), PassageIndex(passages), searcher, words)

    def _stay_usable_after_fork(self) -> None:
        """Compute on one core in a forked process, where OpenMP's other threads do not exist."""
        if self._process != os.getpid():
            if self.system.has_vectors:
                import faiss
                import torch

                torch.set_num_threads(1)
                faiss.omp_set_num_threads(1)
            self._updating = Lock()  # a thread of the parent may hold it
            self._process = os.getpid()


def _remove(folder: Path, process: int) -> None:
    """Remove a temporary folder, but not at the end of a forked process."""
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _write_passages(path: Path, passages: Dataset) -> None:
    with atomic_file(path) as file, pa.ipc.new_stream(file, _SCHEMA) as stream:
        for batch in passages.with_format("arrow").iter(batch_size=1000):
            stream.write_table(batch.cast(_SCHEMA))


def _compare(before: Dataset, after: Dataset) -> Changes:
    earlier, now = (
        dict(zip(id_column(passages).to_pylist(), hash_passages(passages).tolist(), strict=True))
        for passages in (before, after)
    )
    added = [name for name in now if name not in earlier]
    changed = [name for name, content in now.items() if earlier.get(name, content) != content]
    return Changes(added, changed, [name for name in earlier if name not in now])


def _check_folder(folder: Path) -> None:
    """Raise a FileExistsError unless a folder is new, empty, or of a killed `build`."""
    is_partial = read_json(folder / INDEX_FILE, {}).get("version") == 0
    if folder.is_file() or (any(folder.glob("[!.]*")) and not is_partial):
        raise FileExistsError(
            f"{folder} is not empty: name a new folder, or use Index.open and update."
        )


def _with_absolute_path(system: System) -> System:
    """The system with an absolute path of its encoder."""
    place = system.encoder.model
    if not (system.has_vectors and Path(place).exists()):
        return system
    return system.rename(str(Path(place).resolve()))


def load_with_sources(collection: str | Path) -> Dataset:
    """Load the passages of a collection, with `SOURCE_COLUMNS` if `condenser collect` made it."""
    passages, corpus = load_passages(collection), Path(collection, CORPUS_FILE)
    if not corpus.is_file():
        return passages
    columns: dict[str, list[str]] = {name: [] for name in SOURCE_COLUMNS}
    for row in read_json_rows(corpus):
        if not row.keys() >= columns.keys():
            return passages
        for name, values in columns.items():
            values.append(row[name])
    return concatenate_datasets([passages, Dataset.from_dict(columns)], axis=1)


def _read_passages(source: PassageSource) -> Dataset:
    """Read and check passages; the result has the columns of the schema."""
    if isinstance(source, str | Path):
        source = load_with_sources(source)
    if hasattr(source, "columns") and hasattr(source, "to_dict"):  # a DataFrame of pandas
        source = Dataset.from_pandas(source, preserve_index=False)
    if not isinstance(source, Dataset):
        texts = list(source.values() if isinstance(source, Mapping) else source)
        ids = list(source) if isinstance(source, Mapping) else list(map(str, range(len(texts))))
        for name, text in zip(ids, texts, strict=True):
            if not isinstance(name, str):
                raise ValueError(f"The id of a passage is {name!r}, expected text.")
            if isinstance(text, str):
                check_text(text, f"the text of passage {name!r}")
            elif not isinstance(text, int | float | None):  # these are refused below
                hint = " Name a split, such as train." if isinstance(text, Dataset) else ""
                raise ValueError(
                    f"Passage {name!r} is a {type(text).__name__}, expected text.{hint}"
                )
        source = Dataset.from_dict({"_id": ids, "title": [""] * len(ids), "text": texts})
    if missing := set(COLUMNS) - set(source.column_names):
        raise ValueError(f"The data set lacks {', '.join(sorted(missing))}: expected {COLUMNS}.")
    rows = map(itemgetter(*COLUMNS), iterate_rows(source.select_columns(list(COLUMNS))))
    for _ in check_passages(rows, "the passages"):
        pass
    for name in SOURCE_COLUMNS:
        if name not in source.column_names:
            source = source.add_column(name, [""] * len(source))
        kind = getattr(source.features[name], "dtype", "list")
        if kind not in ("string", "large_string", "null"):
            raise ValueError(f"The column {name} of the passages is of type {kind}, expected text.")
    return source.select_columns(_SCHEMA.names)


def words_of(searcher: Searcher, passages: Dataset) -> Words:
    """The words of BM25; for an encoder, those of the language of the passages."""
    bm25 = searcher.bm25 if isinstance(searcher, HybridSearcher) else searcher
    return bm25.words if isinstance(bm25, Bm25) else Words(recognize_language(passages))


def make_passage(row: Mapping[str, Any], score: float, query: str, words: Words) -> Passage:
    """Make an answer of a row, with the words and the sentence that match the query."""
    title, text = row["title"], row["text"]
    asked = {word: words.term(word) for word in words.split(query)}  # empty for a stopword
    terms = set(words.terms(f"{title} {text}"))
    common = tuple(word for word, term in asked.items() if term in terms)

    def count_common(sentence: str) -> int:
        return len({asked[word] for word in common} & set(words.terms(sentence)))

    from modeling_condenser.collection.sentences import sentence_starts  # nltk takes a second

    starts = [*sentence_starts(text), len(text)]
    sentences = [text[start:end].strip() for start, end in pairwise(starts)]
    best = max(sentences, key=count_common, default="")
    source = [row.get(name) or "" for name in SOURCE_COLUMNS]
    return Passage(row["_id"], title, text, score, common, best, *source)
