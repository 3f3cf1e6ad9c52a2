"""`Index` answers queries from a collection, for an application: by BM25, an encoder, or both.

index.json       the system, and the settings of its search; written last
passages.arrow   ids, titles and texts
bm25, embeddings, index-*   of the system

`update` replaces the passages first, so an index that was killed in between is completed when it is
opened.
"""

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from datasets import Dataset

from modeling_condenser.collection.chunks import in_chunks
from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_dev, load_passages
from modeling_condenser.collection.passages import (
    COLUMNS,
    PassageIndex,
    Row,
    check_passages,
    iterate_rows,
)
from modeling_condenser.collection.sentences import sentence_starts
from modeling_condenser.files.atomic import atomic_file, atomic_folder, write_json
from modeling_condenser.files.models import read_json
from modeling_condenser.files.progress import show_bars
from modeling_condenser.files.settings import parse_settings

from .dense import DenseSearcher, SearchSettings
from .fusion import FUSIONS
from .searchers import HybridSearcher, Searcher, open_searcher
from .systems import HYBRID, System, SystemLike, parse_systems
from .words import LANGUAGES, choose_language, split_words

INDEX_FILE, PASSAGES_FILE = "index.json", "passages.arrow"
_SCHEMA = pa.schema([(name, pa.string()) for name in COLUMNS])

PassageSource: TypeAlias = str | Path | Dataset | Mapping[str, str] | Sequence[str]
"""Folder or Hub name of a collection, a data set with the columns `_id`, `title` and `text`, texts
by id, or texts, whose ids are their places."""


class Passage(NamedTuple):
    """A passage that was found.

    Attributes:
        words: of the query that it contains, without stopwords.
        sentence: of its text, the first with the most of these words.
    """

    id: str
    title: str
    text: str
    score: float
    words: tuple[str, ...]
    sentence: str


class _State(NamedTuple):
    """What a search reads; an update replaces it whole."""

    passages: PassageIndex
    searcher: Searcher
    stopwords: frozenset[str]


class Index:
    """Passages that can be searched from many threads, also during an update.

    Example:
        >>> index = Index.build({"a": "At a spring.", "b": "In May."}, "bm25")
        >>> [[passage]] = index.search(["where is the spring?"], k=1)
        >>> passage.id, passage.text, passage.words
        ('a', 'At a spring.', ('spring',))
        >>> index.update({"a": "At a spring.", "c": "In the hills."})
        >>> index.save("my-index")
        >>> index = Index.open("my-index")

    Use `build` or `open`.
    """

    def __init__(
        self, folder: Path, system: System, settings: SearchSettings, dev: Collection | None = None
    ) -> None:
        self.folder, self.system, self.settings = folder, system, settings
        self._updating = Lock()
        self._temporary: tempfile.TemporaryDirectory | None = None
        self._state = self._open(dev)

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
                in `condenser search`. The dev queries of a collection choose the fusion of both.
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
        temporary = tempfile.TemporaryDirectory(prefix="condenser-index-") if not folder else None
        if search.database:
            raise ValueError(
                f"index is {search.index}, but an Index keeps its vectors in its folder: name a "
                "faiss factory string, or use `condenser search` with a database."
            )
        place = Path(temporary.name if temporary else str(folder)).resolve()
        _check_folder(place)
        _write_passages(place, passages)
        is_tuned = parsed.kind == "hybrid" and isinstance(passages, str | Path)
        dev = load_dev(str(passages), judged="") if is_tuned else None
        index = cls(place, _anywhere(parsed), search, dev)
        index._temporary = temporary
        content = {"system": index.system.text, "settings": asdict(search)}
        write_json(place / INDEX_FILE, content)
        return index

    @classmethod
    def open(cls, folder: str | Path) -> "Index":
        """Open an index; an update that was killed is completed, which may take its time."""
        content = read_json(Path(folder) / INDEX_FILE, None)
        if content is None:
            raise FileNotFoundError(f"{folder} holds no complete index: use Index.build first.")
        [settings] = parse_settings(content["settings"], SearchSettings)
        [system] = parse_systems([content["system"]], settings)
        return cls(Path(folder).resolve(), system, settings)

    def save(self, folder: str | Path) -> None:
        """Copy the index to a new or empty folder."""
        _check_folder(Path(folder), is_new=True)
        with self._updating, atomic_folder(Path(folder)) as partial:
            shutil.copytree(self.folder, partial, dirs_exist_ok=True)

    def update(self, passages: PassageSource) -> None:
        """Change the index to these passages: encode new and changed ones, and drop all others.

        Passages are the same if title and text are. Searches go on with the earlier ones
        meanwhile.
        """
        with self._updating:
            _write_passages(self.folder, passages)
            self._state = self._open()

    def search(self, queries: Sequence[str], k: int = 10) -> list[list[Passage]]:
        """Find the best `k` passages for each query, best first; fewer if BM25 finds fewer."""
        texts = {str(place): query for place, query in enumerate(queries)}
        if isinstance(queries, str) or not all(isinstance(text, str) for text in texts.values()):
            raise ValueError(f"Got {queries!r:.80}, expected a list of queries, such as [query].")
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1.")
        passages, searcher, stopwords = self._state
        with show_bars(False):
            run = searcher.search(texts, depth=k)
        read = passages.read(name for found in run.values() for name in found)
        answers = []
        for place, query in texts.items():
            words = [word for word in dict.fromkeys(split_words(query)) if word not in stopwords]
            found = run.get(place, {}).items()
            answers.append([_show(name, *read[name], score, words) for name, score in found])
        return answers

    def __len__(self) -> int:
        return len(self._state.passages.content)

    def __repr__(self) -> str:
        return f"Index({len(self):,} passages, {self.system.text}, {self.folder})"

    def _open(self, dev: Collection | None = None) -> _State:
        """Complete what the system needs to search the stored passages."""
        passages: Any = Dataset.from_file(str(self.folder / PASSAGES_FILE))
        searcher = open_searcher(
            self.system,
            passages,
            self.folder,
            settings=self.settings,
            dev=dev,
            replace_all=True,
        )
        if isinstance(searcher, HybridSearcher):
            name = next(name for name, fusion in FUSIONS.items() if fusion == searcher.fusion)
            settings = {**self.system.settings, "fusion": name}
            self.system = replace(self.system, settings=settings)
        searcher.search({"": "a"}, depth=1)  # opens all files, which an update replaces
        parts: Any = searcher.bm25 if isinstance(searcher, HybridSearcher) else searcher
        is_dense = isinstance(parts, DenseSearcher)
        language = choose_language(passages) if is_dense else parts.language
        return _State(PassageIndex(passages), searcher, frozenset(LANGUAGES[language]))


def _check_folder(folder: Path, *, is_new: bool = False) -> None:
    """Raise a FileExistsError unless a folder is empty, or holds a part of an index."""
    is_part = (folder / PASSAGES_FILE).is_file() and not (folder / INDEX_FILE).is_file()
    # The names of what killed calls leave begin with a dot.
    is_used = folder.is_file() or any(folder.glob("[!.]*"))
    if is_used and (is_new or not is_part):
        raise FileExistsError(
            f"{folder} is not empty: name a new folder, or use Index.open and update."
        )


def _anywhere(system: System) -> System:
    """The system with an absolute path of its model."""
    place = system.encoder.model
    if system.kind == "bm25" or not Path(place).exists():
        return system
    prefix = HYBRID if system.kind == "hybrid" else ""
    return replace(system, model=f"{prefix}{Path(place).resolve()}")


def _write_passages(folder: Path, source: PassageSource) -> None:
    """Check passages and write them into a folder."""
    passages = check_passages(_read_passages(source), "the passages")
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / PASSAGES_FILE) as file, pa.ipc.new_stream(file, _SCHEMA) as stream:
        for rows in in_chunks(passages, most=1000, text=itemgetter("text")):
            stream.write_batch(pa.RecordBatch.from_pylist(rows, schema=_SCHEMA))


def _read_passages(source: PassageSource) -> Iterable[Row]:
    if isinstance(source, str | Path):
        source = load_passages(source)
    if isinstance(source, Dataset):
        if missing := set(COLUMNS) - set(source.column_names):
            raise ValueError(
                f"The data set lacks {', '.join(sorted(missing))}: expected {COLUMNS}."
            )
        return map(itemgetter(*COLUMNS), iterate_rows(source.select_columns(list(COLUMNS))))
    if isinstance(source, Mapping):
        return ((name, "", text) for name, text in source.items())
    return ((str(place), "", text) for place, text in enumerate(source))


def _show(name: str, title: str, text: str, score: float, words: Sequence[str]) -> Passage:
    own = set(split_words(f"{title} {text}"))
    found = tuple(word for word in words if word in own)
    places = [*sentence_starts(text), len(text)]
    sentences = [text[start:end].strip() for start, end in pairwise(places)]
    best = max(sentences, key=lambda each: len({*found} & {*split_words(each)}), default="")
    return Passage(name, title, text, score, found, best)
