"""`Index` answers queries from a collection, for an application: by BM25, an encoder, or both.

index.json       the system, and the settings of its search; written first
passages.arrow   ids, titles, texts, headings and files; written last, so they tell what is complete
bm25, embeddings, index-*   of the system
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import chain, pairwise
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets

from modeling_condenser.collection.collection import (
    COLUMNS,
    Collection,
    PassageIndex,
    check_passages,
)
from modeling_condenser.collection.load import CORPUS_FILE, load_dev, load_passages
from modeling_condenser.collection.rows import iterate_rows
from modeling_condenser.collection.rows import read_json as read_json_rows
from modeling_condenser.files.run_folder import (
    atomic_file,
    atomic_folder,
    read_json,
    show_bars,
    write_json,
)
from modeling_condenser.files.settings import parse_settings

from .dense import DenseSearcher, SearchSettings
from .runs import FUSIONS
from .systems import HybridSearcher, Searcher, System, SystemLike, open_searcher, parse_systems
from .words import Words, recognize_language

INDEX_FILE, PASSAGES_FILE = "index.json", "passages.arrow"
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


class _State(NamedTuple):
    """What a search reads; an update replaces all of it at once."""

    passages: Dataset  # read as Arrow tables
    rows_of: PassageIndex
    searcher: Searcher
    words: Words


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

    def __init__(self, folder: Path, system: System, settings: SearchSettings) -> None:
        self.folder, self.system, self.settings = folder, system, settings
        self._updating = Lock()
        self._temporary: tempfile.TemporaryDirectory | None = None
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
        temporary = tempfile.TemporaryDirectory(prefix="condenser-index-") if not folder else None
        place = Path(temporary.name if temporary else str(folder)).resolve()
        _check_folder(place)
        is_tuned = parsed.kind == "hybrid" and isinstance(passages, str | Path)
        dev = load_dev(str(passages), judged="") if is_tuned else None
        index = cls(place, _with_absolute_path(parsed), search)
        index._temporary = temporary
        index._replace(passages, dev)
        return index

    @classmethod
    def open(cls, folder: str | Path) -> "Index":
        """Open an index."""
        folder = Path(folder).resolve()
        if not (folder / PASSAGES_FILE).is_file():
            raise FileNotFoundError(f"{folder} holds no complete index: use Index.build first.")
        content = read_json(folder / INDEX_FILE, {})
        names = [field.name for field in fields(SearchSettings)]  # earlier versions wrote more
        settings = SearchSettings(**{name: content["settings"].get(name) for name in names})
        [system] = parse_systems([content["system"]], settings)
        index = cls(folder, system, settings)
        index._state = index._prepare(Dataset.from_file(str(folder / PASSAGES_FILE)))
        return index

    def save(self, folder: str | Path) -> None:
        """Copy the index to a new folder."""
        _check_folder(Path(folder))
        with self._updating, atomic_folder(Path(folder)) as new:
            shutil.copytree(self.folder, new, dirs_exist_ok=True)

    def update(self, passages: PassageSource) -> None:
        """Change the index to these passages: encode new and changed ones, and drop all others.

        Passages are the same if title and text are. Searches go on with the earlier ones
        meanwhile. After a killed update, `open` has the earlier passages, whose vectors or index
        may be made again.
        """
        self._replace(passages)

    def search(self, queries: Sequence[str], k: int = 10) -> list[list[Passage]]:
        """Find the best `k` passages for each query, best first; fewer if BM25 finds fewer."""
        texts = {str(place): query for place, query in enumerate(queries)}
        if isinstance(queries, str) or not all(isinstance(text, str) for text in texts.values()):
            raise ValueError(f"Got {queries!r:.80}, expected a list of queries, such as [query].")
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1.")
        passages, rows_of, searcher, words = self._state
        with show_bars(False):
            run = searcher.search(texts, k)
        names = list(dict.fromkeys(chain.from_iterable(run.values())))
        table: Any = passages[np.sort(rows_of.rows(names))] if names else pa.table({})
        rows = {row["_id"]: row for row in table.to_pylist()}
        answers = []
        for place, query in texts.items():
            asked = {word: words.term(word) for word in words.split(query)}
            scores = run.get(place, {})
            answers.append(
                [_show(rows[name], score, asked, words) for name, score in scores.items()]
            )
        return answers

    def __len__(self) -> int:
        return len(self._state.passages)

    def __repr__(self) -> str:
        return f"Index({len(self):,} passages, {self.system.text}, {self.folder})"

    def _replace(self, source: PassageSource, dev: Collection | None = None) -> None:
        """Index other passages, and replace the files of the earlier ones."""
        with self._updating:
            table = _read_passages(source)
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_settings()
            new = self.folder / f".{PASSAGES_FILE}.new"
            with atomic_file(new) as file, pa.ipc.new_stream(file, _SCHEMA) as stream:
                for batch in table.with_format("arrow").iter(batch_size=1000):
                    stream.write_table(batch.cast(_SCHEMA))
            state = self._prepare(Dataset.from_file(str(new)), dev)
            self._write_settings()  # with the fusion that was chosen
            new.replace(self.folder / PASSAGES_FILE)
            self._state = state

    def _write_settings(self) -> None:
        content = {"system": self.system.text, "settings": asdict(self.settings)}
        write_json(self.folder / INDEX_FILE, content)

    def _prepare(self, passages: Dataset, dev: Collection | None = None) -> _State:
        """Open the system on passages, and complete what it stores."""
        searcher: Any = open_searcher(
            self.system, passages, self.folder, settings=self.settings, dev=dev, replace_all=True
        )
        searcher.search({"": "a"}, 1)  # opens all files, which an update replaces
        bm25 = searcher
        if isinstance(searcher, HybridSearcher):
            [fusion] = [name for name, each in FUSIONS.items() if each == searcher.fusion]
            self.system = replace(self.system, settings={**self.system.settings, "fusion": fusion})
            bm25 = searcher.bm25
        is_dense = isinstance(searcher, DenseSearcher)
        words = Words(recognize_language(passages)) if is_dense else bm25.words
        return _State(passages.with_format("arrow"), PassageIndex(passages), searcher, words)


def _check_folder(folder: Path) -> None:
    """Raise a FileExistsError unless a folder is new, empty, or of a killed `build`."""
    is_partial = (folder / INDEX_FILE).is_file() and not (folder / PASSAGES_FILE).is_file()
    if folder.is_file() or (any(folder.glob("[!.]*")) and not is_partial):
        raise FileExistsError(
            f"{folder} is not empty: name a new folder, or use Index.open and update."
        )


def _with_absolute_path(system: System) -> System:
    """The system with an absolute path of its encoder."""
    place = system.encoder.model
    if not (system.has_vectors and Path(place).exists()):
        return system
    return replace(system, model=f"{system.model.removesuffix(place)}{Path(place).resolve()}")


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
    if not isinstance(source, Dataset):
        texts = list(source.values() if isinstance(source, Mapping) else source)
        ids = list(source) if isinstance(source, Mapping) else list(map(str, range(len(texts))))
        source = Dataset.from_dict({"_id": ids, "title": [""] * len(ids), "text": texts})
    if missing := set(COLUMNS) - set(source.column_names):
        raise ValueError(f"The data set lacks {', '.join(sorted(missing))}: expected {COLUMNS}.")
    rows = map(itemgetter(*COLUMNS), iterate_rows(source.select_columns(list(COLUMNS))))
    for _ in check_passages(rows, "the passages"):
        pass
    for name in SOURCE_COLUMNS:
        if name not in source.column_names:
            source = source.add_column(name, [""] * len(source))
    return source.select_columns(_SCHEMA.names)


def _show(row: Mapping[str, str], score: float, asked: Mapping[str, str], words: Words) -> Passage:
    """Make an answer of a row, with the words and the sentence that match the query.

    `asked` holds the term of each word of the query, which is empty for a stopword.
    """
    title, text = row["title"], row["text"]
    terms = set(words.terms(f"{title} {text}"))
    common = tuple(word for word, term in asked.items() if term in terms)

    def count_common(sentence: str) -> int:
        return len({asked[word] for word in common} & set(words.terms(sentence)))

    from modeling_condenser.collection.sentences import sentence_starts  # nltk takes a second

    starts = [*sentence_starts(text), len(text)]
    sentences = [text[start:end].strip() for start, end in pairwise(starts)]
    best = max(sentences, key=count_common, default="")
    source = (row["headings"], row["file"])
    return Passage(row["_id"], title, text, score, common, best, *source)
