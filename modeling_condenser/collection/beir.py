"""BEIR's layout (Thakur et al. 2021): files, or tables that a README.md declares, as MTEB has them.

    passages     corpus.jsonl (`_id`, `title`, `text`), or the table `corpus`
    queries      queries.jsonl (`_id`, `text`, perhaps `answers`), or the table `queries`
    judgements   qrels/<split>.tsv (header `query-id corpus-id score`) or .jsonl, or the table
                 `default` or `qrels`; or in a second folder, `<name>-qrels`

Files may end in `.gz`; tables have any format that `datasets` reads.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, load_dataset
from huggingface_hub import metadata_load

from .collection import Collection, Qrels, build_collection, gather_judgements
from .passages import store_passages
from .text_files import find_file, need_file, plain_name, read_fields, read_lines

DESCRIPTION = "corpus.jsonl or a README.md with the tables corpus and queries (BEIR, MTEB)"
CORPUS_FILE, QUERIES_FILE, QRELS_FOLDER = "corpus.jsonl", "queries.jsonl", "qrels"
CORPUS_TABLES, QUERIES_TABLES = ("corpus",), ("queries", "query")
QRELS_TABLES = ("default", "qrels")
CARD_FILE = "README.md"
QRELS_HEADER = ("query-id", "corpus-id", "score")
_SAME_SPLITS = {"dev": "validation", "validation": "dev"}  # `datasets` renames the one to the other

Record = Mapping[str, Any]


class _Rows(NamedTuple):
    """Rows of a file or of a table, and the files that they are read from."""

    records: Iterable[Record]
    source: str | Path
    files: list[Path]


def is_layout(folder: Path) -> bool:
    return find_file(folder, CORPUS_FILE) is not None or CORPUS_TABLES[0] in list_tables(folder)


def load_collection(
    folder: Path, *, split: str, beside: Path | None = None, name: str | None = None
) -> Collection:
    """Load one split; without judgements it holds the answered queries that no other split judges.

    `beside` is the folder of the judgements if `folder` has none, by default `<folder>-qrels`.
    """
    records, source, _ = _open(folder, QUERIES_FILE, QUERIES_TABLES, split)
    questions = [(_read_id(r, source), r.get("text"), r.get("answers")) for r in records]
    beside = beside or folder.with_name(f"{folder.name}-qrels")
    readers = find_judgements(folder) or find_judgements(beside, files=".")
    read = readers.get(split) or readers.get(_SAME_SPLITS.get(split, ""))
    qrels = read() if read else None
    if qrels is None:
        answered = [question for question in questions if question[2]]
        judged = {key for read in readers.values() for key in read()} if answered else set()
        questions = [question for question in answered if question[0] not in judged]
        if not questions:
            raise ValueError(
                f"{folder} has no split {split!r}: it has judgements for"
                f" {', '.join(readers) or 'no split'}."
            )
    passages, name = load_passages(folder, split=split), name or folder.resolve().name
    return build_collection(passages, questions, qrels, name=name, source=f"{folder} ({split})")


def load_passages(folder: Path, *, split: str = "test") -> Dataset:
    """Load the passages: columns `_id`, `title`, `text`."""
    records, source, files = _open(folder, CORPUS_FILE, CORPUS_TABLES, split)
    rows = ((_read_id(r, source), r.get("title") or "", r.get("text")) for r in records)
    return store_passages(rows, files=files, name=source)


def find_judgements(folder: Path, *, files: str = QRELS_FOLDER) -> dict[str, Callable[[], Qrels]]:
    """Split -> reader of its judgements, in the subfolder `files` or in a table."""
    readers: dict[str, Callable[[], Qrels]] = {}
    for path in sorted((folder / files).glob("*")):
        split, _, ending = plain_name(path).rpartition(".")
        if split and ending in ("tsv", "jsonl"):
            readers[split] = partial(_read_qrels, _open_file(path))
    tables = [table for table in QRELS_TABLES if table in list_tables(folder)]
    if not readers and tables:
        for split, rows in load_dataset(str(folder), tables[0]).items():
            readers[str(split)] = partial(_read_qrels, _open_table(rows, f"{folder} ({tables[0]})"))
    return readers


def list_tables(folder: Path) -> list[str]:
    """The names of the tables that a folder's README.md declares."""
    card = folder / CARD_FILE
    declared = (metadata_load(card) or {}) if card.is_file() else {}
    return [config.get("config_name", "default") for config in declared.get("configs") or []]


def _read_qrels(rows: _Rows) -> Qrels:
    query, passage, score = QRELS_HEADER
    judgements = (
        (_read_id(r, rows.source, query), _read_id(r, rows.source, passage), r.get(score))
        for r in rows.records
    )
    return gather_judgements(judgements, source=rows.source)


def _read_id(record: Record, source: str | Path, *names: str) -> str:
    """Read an id: text, or a whole number. A float or a date has no unique text."""
    value = next((record[name] for name in names or ("_id", "id") if name in record), None)
    if isinstance(value, str | int) and value != "":
        return str(value)
    raise ValueError(
        f"{source}: an id is {value!r:.80}, expected text or a whole number; the fields are"
        f" {', '.join(record) or '(none)'}."
    )


def _open(folder: Path, file_name: str, tables: tuple[str, ...], split: str) -> _Rows:
    """Open a file, or else one split (or the only one) of the first table that is declared."""
    declared = [table for table in tables if table in list_tables(folder)]
    if find_file(folder, file_name) or not declared:
        return _open_file(need_file(folder, file_name))
    splits, where = load_dataset(str(folder), declared[0]), f"{folder} ({declared[0]})"
    for name in (split, _SAME_SPLITS.get(split), *(splits if len(splits) == 1 else ())):
        if name in splits:
            return _open_table(splits[name], where)
    raise ValueError(f"{where} has no split {split!r}; its splits are {', '.join(splits)}.")


def _open_file(path: Path) -> _Rows:
    read = _read_json if ".jsonl" in path.suffixes else _read_judgements
    return _Rows(read(path), path, [path])


def _open_table(rows: Dataset, source: str) -> _Rows:
    batches = rows.with_format("arrow").iter(batch_size=1000)
    records = (record for batch in batches for record in batch.to_pylist())
    return _Rows(records, source, [Path(file["filename"]) for file in rows.cache_files])


def _read_json(path: Path) -> Iterator[Record]:
    """Read JSON objects; `datasets` would guess types: the id "2020-01-01" becomes a timestamp."""
    for number, line in read_lines(path):
        try:
            yield dict(json.loads(line))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path}:{number}: {line!r:.80} is not a JSON object ({error})."
            ) from None


def _read_judgements(path: Path) -> Iterator[Record]:
    rows = read_fields(path, n=len(QRELS_HEADER), what=", ".join(QRELS_HEADER))
    header = next(rows, [])
    if tuple(header) != QRELS_HEADER:
        raise ValueError(
            f"{path}: the first line is {header}, expected the header {' '.join(QRELS_HEADER)}."
        )
    yield from (dict(zip(QRELS_HEADER, fields, strict=True)) for fields in rows)
