"""Loads a collection by its name: a folder in a known layout, or a Hub data set in BEIR's layout.

A layout is a class that reads the passages, and the queries and judgements of a split. All of its
files may end in `.gz`.
"""

import ast
import logging
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset
from huggingface_hub import metadata_load
from yaml import YAMLError

from modeling_condenser.files.hub import fetch, split_revision

from .collection import (
    Collection,
    Judgement,
    Question,
    Row,
    build_collection,
    keep_queries,
    plain_text,
    store_passages,
)
from .rows import iterate_rows, plain_name, read_json, read_lines, read_rows, read_table

logger = logging.getLogger(__name__)

HEALTH = "health"
"""Name of the collection that comes with the package."""

CORPUS_FILE, QUERIES_FILE, QRELS_FOLDER = "corpus.jsonl", "queries.jsonl", "qrels"
FACTS_FILE = "collected.json"  # of `collect`
QRELS_HEADER = ("query-id", "corpus-id", "score")
_CARD_FILE = "README.md"
_SAME_SPLITS = {"dev": "validation", "validation": "dev"}  # `datasets` reads dev as validation
_BEIR_PATTERNS = (_CARD_FILE, "corpus.jsonl*", "queries.jsonl*", "qrels/*")
_DPR_PASSAGES = "psgs_w100.tsv"
_MARCO_DOCUMENTS = "msmarco-docs.tsv"
_MARCO_PASSAGES = (_MARCO_DOCUMENTS, "para.txt", "collection.tsv")  # the first counts
_MOST_DEV = 2_000  # queries
_NO_TITLE = "-"  # in RocketQA's titles
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@.+)?")  # owner/name@revision

Record = Mapping[str, Any]


class MissingSplitError(ValueError):
    """A collection has no such split, or no queries in it."""


def load_collection(source: str | Path, *, split: str = "test") -> Collection:
    """Load one split of a collection.

    Args:
        source: a folder in the layout of BEIR, MTEB, MS MARCO or DPR; a Hub data set in the layout
            of BEIR or MTEB (`owner/name` or `owner/name@revision`); or "health", the bundled one.
        split: such as "test", or "dev.small" or "dl19" for MS MARCO, or "nq-test" for DPR.

    Raises:
        FileNotFoundError: the collection or one of its files is missing.
        ValueError: the split is unknown, or the files are malformed or do not fit together.
    """
    return _load(_open_layout(source), source, split)


def _load(layout: "_Layout", source: str | Path, split: str) -> Collection:
    questions, judgements = layout.read_split(split)
    judged = [answers for *_, answers in questions if answers] if judgements is None else judgements
    if not judged:
        raise MissingSplitError(f"{source}, split {split}: no query has judgements or answers.")
    passages, name = layout.store_passages(split), name_collection(source)
    try:
        return build_collection(passages, questions, judgements, name=name)
    except ValueError as error:
        raise ValueError(f"{source}, split {split}: {error}") from error


def load_reported(source: str | Path, *, split: str) -> Collection:
    """Load a split whose results are reported, and warn of queries that other splits have too.

    A query is the same if its text is. Only BEIR's layout has all splits in one place.
    """
    layout = _open_layout(source)
    collection = _load(layout, source, split)
    if not isinstance(layout, _Beir):
        return collection
    shared: dict[str, int] = {}
    for other in sorted(set(layout.find_judgements()) - {split, _SAME_SPLITS.get(split)}):
        with suppress(ValueError):  # it cannot be read
            questions, judgements = layout.read_split(other)
            judged = {query for query, _, _ in judgements or ()}
            queries = {query: text for query, text, _ in questions if query in judged}
            if n_shared := len(_find_shared(collection.queries, queries)):
                shared[other] = n_shared
                logger.warning(
                    "%d of the %d queries of %s are also in %s: results are too good if the system"
                    " was trained or chosen on these.",
                    *(n_shared, len(collection.queries), split, other),
                )
    return replace(collection, shared=shared)


def _find_shared(queries: Mapping[str, str], others: Mapping[str, str]) -> set[str]:
    """Find the queries whose text is among the others; ids of DPR are only row numbers."""
    texts = set(map(plain_text, others.values()))
    return {name for name, text in queries.items() if plain_text(text) in texts}


def load_dev(
    source: str | Path, *, judged: str, reported: Collection | None = None
) -> Collection | None:
    """Load the split `dev` for choosing settings; None if the collection has none.

    The queries of `reported`, a collection of the reported split `judged`, are left out. The result
    is also None if that split is one of dev (dev.small) or, with a warning, if dev is malformed. Of
    more than 2,000 queries (MS MARCO has 55,000), it has 2,000.
    """
    if judged.startswith(("dev", "validation")):
        return None
    try:
        dev = load_collection(source, split="dev")
    except (MissingSplitError, FileNotFoundError) as error:
        logger.info("No dev queries: %s", error)
        return None
    except ValueError as error:
        logger.warning("The dev queries are not used, because they cannot be read: %s", error)
        return None
    names = list(dev.queries)
    if reported and (shared := _find_shared(dev.queries, reported.queries)):
        n_shared = len(shared)
        logger.info("Settings are not chosen on %d dev queries that %s has too", n_shared, judged)
        names = [name for name in names if name not in shared]
    if len(names) > _MOST_DEV:
        logger.info("Settings are chosen on %d of %d dev queries.", _MOST_DEV, len(names))
        names = random.Random(0).sample(names, _MOST_DEV)
    return keep_queries(dev, set(names)) if names else None


def load_passages(source: str | Path) -> Dataset:
    """Load the passages of a collection alone: columns `_id`, `title`, `text`."""
    return _open_layout(source).store_passages("test")


def resolve_collection_name(name: str | Path) -> str:
    """The folder of the bundled collection for "health", unless one is here; else the name."""
    bundled = Path(__file__).parent.parent / HEALTH
    return str(bundled if name == HEALTH and not Path(HEALTH).exists() else name)


def name_collection(source: str | Path) -> str:
    """Return the name of a collection in files and tables: the last part of folder or Hub name."""
    if _is_on_hub(source):
        return split_revision(str(source))[0].rpartition("/")[2]
    return Path(resolve_collection_name(source)).resolve().name


def find_file(folder: Path, *names: str) -> Path | None:
    """Return the first of the named files in a folder, as `name` or as `name.gz`."""
    paths = (folder / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def _need_file(folder: Path, *names: str) -> Path:
    file = find_file(folder, *names)
    if file is None:
        is_collected = QUERIES_FILE in names and (folder / FACTS_FILE).is_file()
        hint = " `condenser collect` writes queries if it gets --labels." if is_collected else ""
        raise FileNotFoundError(
            f"{folder} has no {' or '.join(names)} (or .gz); it holds {_list_names(folder)}.{hint}"
        )
    return file


def _list_names(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.glob("*"))[:12]) or "nothing"


def _is_on_hub(source: str | Path) -> bool:
    return not Path(source).exists() and _HUB_NAME.fullmatch(str(source)) is not None


def _open_layout(source: str | Path) -> "_Layout":
    """Find the folder of a collection and its layout; download it if it is on the Hub."""
    folder = Path(resolve_collection_name(source)).absolute()  # "." has no name
    if _is_on_hub(source):
        return _fetch(str(source))
    for layout in (_Beir, _Dpr, _MsMarco):
        if layout.is_in(folder):
            return layout(folder)
    raise _not_found(source, folder)


def _fetch(name: str) -> "_Beir":
    """Download a data set, and its second repository if that has the judgements."""
    folder = fetch(name, repo_type="dataset", only=_BEIR_PATTERNS)
    if not _Beir.is_in(folder):
        raise _not_found(name, folder)
    if not find_file(folder, CORPUS_FILE):
        folder = fetch(name, repo_type="dataset")  # for the tables
    layout = _Beir(folder)
    if not layout.find_judgements():
        with suppress(FileNotFoundError):
            second = fetch(f"{split_revision(name)[0]}-qrels", repo_type="dataset")
            return _Beir(folder, second)
    return layout


def _not_found(source: str | Path, folder: Path) -> FileNotFoundError:
    state = f"which holds {_list_names(folder)}" if folder.exists() else "which does not exist"
    return FileNotFoundError(
        f"no collection at {source}, {state}: expected a data set on the Hub (owner/name), or a "
        f"folder with {CORPUS_FILE} or a {_CARD_FILE} with the tables corpus and queries (BEIR, "
        f"MTEB); {_DPR_PASSAGES} (DPR); or {', '.join(_MARCO_PASSAGES)} (MS MARCO). `condenser "
        "collect` makes one of documents."
    )


@dataclass(frozen=True)
class _Beir:
    """BEIR's layout (Thakur et al. 2021): files, or tables declared in README.md, as in MTEB.

    passages     corpus.jsonl (`_id`, `title`, `text`), or the table `corpus`
    queries      queries.jsonl (`_id`, `text`, optionally `answers`), or the table `queries`
    judgements   qrels/<split>.tsv (header `query-id corpus-id score`) or .jsonl, or the table
                 `default` or `qrels`; or the same in a second folder, by default <name>-qrels

    Tables have any format that `datasets` reads.
    """

    folder: Path
    second: Path | None = None

    @staticmethod
    def is_in(folder: Path) -> bool:
        return bool(find_file(folder, CORPUS_FILE) or _declared_table(folder, "corpus"))

    def store_passages(self, split: str) -> Dataset:
        records, files = self._open(CORPUS_FILE, "corpus", split=split)
        return store_passages(_beir_rows(records, files[0]), files)

    def read_split(self, split: str) -> tuple[list[Question], list[Judgement] | None]:
        """Read all queries and the judgements of a split; None if no split has any."""
        records, files = self._open(QUERIES_FILE, "queries", "query", split=split)
        questions = [
            (_read_id(files[0], record, "_id", "id"), record.get("text"), record.get("answers"))
            for record in records
        ]
        splits = self.find_judgements()
        if not splits:
            return questions, None
        rows = splits.get(split, splits.get(_SAME_SPLITS.get(split, "")))
        if rows is None:
            raise MissingSplitError(
                f"{self.folder} has no split {split!r}: it has judgements for {', '.join(splits)}."
            )
        query, passage, score = QRELS_HEADER
        place = f"{self.folder}, judgements of {split}"
        judgements = [
            (
                *(_read_id(place, row, query), _read_id(place, row, passage)),
                row.get(score, 1 if row.keys() <= {query, passage} else None),  # as in NanoBEIR
            )
            for row in rows
        ]
        return questions, judgements

    def find_judgements(self) -> dict[str, Iterable[Record]]:
        """Find the judgements of each split, without reading them."""
        second = self.second or self.folder.with_name(f"{self.folder.name}-qrels")
        return _find_judgements(self.folder, QRELS_FOLDER) or _find_judgements(second, ".")

    def _open(
        self, file_name: str, *tables: str, split: str
    ) -> tuple[Iterable[Record], list[Path]]:
        """Open a file, or a split (or the only split) of a table; also return the files."""
        table = _declared_table(self.folder, *tables)
        if table is None or find_file(self.folder, file_name):
            file = _need_file(self.folder, file_name)
            return read_json(file), [file]
        splits = load_dataset(str(self.folder), table)
        for name in (split, _SAME_SPLITS.get(split), *(splits if len(splits) == 1 else ())):
            if name in splits:
                files = [Path(file["filename"]) for file in splits[name].cache_files]
                return iterate_rows(splits[name]), files
        known = ", ".join(splits)
        raise MissingSplitError(f"{self.folder} ({table}) has no split {split!r}, only {known}.")


def _find_judgements(folder: Path, of_files: str) -> dict[str, Iterable[Record]]:
    splits: dict[str, Iterable[Record]] = {}
    for path in sorted((folder / of_files).glob("[!.]*")):
        split, _, ending = plain_name(path).rpartition(".")
        if split and ending in ("tsv", "jsonl"):
            splits[split] = read_rows(path)
    table = _declared_table(folder, "default", "qrels")
    if splits or table is None:
        return splits
    return {
        str(split): iterate_rows(rows) for split, rows in load_dataset(str(folder), table).items()
    }


def _declared_table(folder: Path, *tables: str) -> str | None:
    """Return the first of the tables that the README.md of a folder declares."""
    card = folder / _CARD_FILE
    if not card.is_file():
        return None
    try:
        configs = (metadata_load(card) or {}).get("configs") or []
        names = {config.get("config_name", "default") for config in configs}
    except (AttributeError, YAMLError) as error:
        raise ValueError(f"{card}: the metadata cannot be read ({error}): correct it.") from error
    return next((table for table in tables if table in names), None)


def _beir_rows(records: Iterable[Record], file: Path) -> Iterator[Row]:
    for record in records:
        text = record.get("text")
        if text is None and "text" in record:  # null is a blank text, and no field an error
            text = ""
        yield _read_id(file, record, "_id", "id"), record.get("title") or "", text


def _read_id(place: object, record: Record, *names: str) -> str:
    """Read an id: text, or a whole number. A float or a date has no unique text."""
    value = next((record[name] for name in names if name in record), None)
    if isinstance(value, str | int) and value != "":
        return str(value)
    raise ValueError(
        f"{place}: the id {' or '.join(names)} is {value!r:.80}, expected text or a whole number; "
        f"the fields are {', '.join(record) or '(none)'}."
    )


@dataclass(frozen=True)
class _Dpr:
    """DPR's files (Karpukhin et al. 2020): tabs, fields quoted as by the csv module.

    Passages are in psgs_w100.tsv (header `id text title`), questions in <split>.qa.csv or
    <split>.csv (question, and a Python list of answers); a question's id is its row, from 0. There
    are no judgements.
    """

    folder: Path

    @staticmethod
    def is_in(folder: Path) -> bool:
        return find_file(folder, _DPR_PASSAGES) is not None

    def store_passages(self, split: str) -> Dataset:
        file = _need_file(self.folder, _DPR_PASSAGES)
        rows = read_table(file, quoted=True)
        return store_passages(
            ((row.get("id"), row.get("title"), row.get("text")) for row in rows), [file]
        )

    def read_split(self, split: str) -> tuple[list[Question], None]:
        file = _need_file(self.folder, f"{split}.qa.csv", f"{split}.csv")
        questions: list[Question] = []
        for row in read_table(file, ["question", "answers"], quoted=True):
            try:
                answers = ast.literal_eval(row["answers"])
            except (SyntaxError, ValueError):
                raise ValueError(
                    f"{file}: the answers in row {len(questions) + 1} are {row['answers']!r:.80}, "
                    "expected a list as in Python, such as ['Oslo']."
                ) from None
            questions.append((str(len(questions)), row["question"], answers))
        return questions, None


@dataclass(frozen=True)
class _MsMarco:
    """MS MARCO's passages and documents as published: tabs, no header, quotes are text.

    passages     collection.tsv (id, text); or the files of RocketQA, which the Condenser paper
                 uses (section 4.4): para.txt (id, text) and para.title.txt (id, title)
    queries      queries.<split>.tsv, or RocketQA's <split>.query.txt
    judgements   qrels.<split>.tsv (query, 0, passage, grade; or RocketQA's query, passage)
    documents    msmarco-docs.tsv (id, URL, title, body), with queries and judgements in
                 msmarco-doc<split>-queries.tsv and msmarco-doc<split>-qrels.tsv
    TREC DL      splits dl19 and dl20: msmarco-test<year>-queries.tsv, and <year>qrels-pass.txt or
                 <year>qrels-docs.txt

    A split has the name that the files have ("train", "dev.small").
    """

    folder: Path

    @staticmethod
    def is_in(folder: Path) -> bool:
        return find_file(folder, *_MARCO_PASSAGES) is not None

    def store_passages(self, split: str) -> Dataset:
        file, titles = _need_file(self.folder, *_MARCO_PASSAGES), None
        if plain_name(file) == "para.txt":
            titles = find_file(self.folder, "para.title.txt")
        return store_passages(_marco_rows(file, titles), [file, *([titles] if titles else [])])

    def read_split(self, split: str) -> tuple[list[Question], list[Judgement]]:
        qrels_name, queries_names = self._split_names(split)
        judgements = list(_read_trec(_need_file(self.folder, qrels_name)))
        queries = read_table(_need_file(self.folder, *queries_names), ["id", "text"])
        return [(row["id"], row["text"], None) for row in queries], judgements

    def _split_names(self, split: str) -> tuple[str, list[str]]:
        """Return the file name of a split's judgements, and the possible names of its queries."""
        is_documents = find_file(self.folder, _MARCO_DOCUMENTS) is not None
        if track := re.fullmatch(r"dl(19|20)", split):
            kind = "docs" if is_documents else "pass"
            return f"20{track[1]}qrels-{kind}.txt", [f"msmarco-test20{track[1]}-queries.tsv"]
        if is_documents:
            return f"msmarco-doc{split}-qrels.tsv", [f"msmarco-doc{split}-queries.tsv"]
        names = []
        for part in dict.fromkeys([split, split.removesuffix(".small")]):  # dev has dev.small
            names += [f"queries.{part}.tsv", f"{part}.query.txt"]
        return f"qrels.{split}.tsv", names


_Layout = _Beir | _Dpr | _MsMarco


def _marco_rows(file: Path, titles_file: Path | None) -> Iterator[Row]:
    """Read passages; a second file may hold titles of some of them, in the same order."""
    is_documents = plain_name(file) == _MARCO_DOCUMENTS
    columns = ["id", "url", "title", "text"] if is_documents else ["id", "text"]
    titles = read_table(titles_file, ["id", "title"]) if titles_file else iter(())
    pending = next(titles, None)
    for row in read_table(file, columns):
        title = row.get("title", "")
        if pending is not None and pending["id"] == row["id"]:
            title, pending = pending["title"], next(titles, None)
        yield row["id"], "" if title == _NO_TITLE else title, row["text"]
    if pending is not None:
        raise ValueError(
            f"{titles_file}: passage {pending['id']!r} is missing in {file}, or in another order"
            " there: sort both files by the same key."
        )


def _read_trec(path: Path) -> Iterator[Judgement]:
    for number, line in read_lines(path):
        match line.split():
            case [query_id, passage_id]:
                yield query_id, passage_id, 1
            case [query_id, _, passage_id, grade]:
                yield query_id, passage_id, grade
            case _:
                raise ValueError(
                    f"{path}:{number}: {line!r:.80}, expected 4 fields (query, 0, passage, grade)."
                )
