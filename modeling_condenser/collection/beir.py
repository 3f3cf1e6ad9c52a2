"""Reads BEIR's layout (Thakur et al. 2021): files, or tables declared in README.md, as in MTEB.

    passages     corpus.jsonl (`_id`, `title`, `text`), or the table `corpus`
    queries      queries.jsonl (`_id`, `text`, optionally `answers`), or the table `queries`
    judgements   qrels/<split>.tsv (header `query-id corpus-id score`) or .jsonl, or the table
                 `default` or `qrels`; or the same in a second folder, `<name>-qrels`

Files may end in `.gz`; tables have any format that `datasets` reads.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from datasets import load_dataset
from huggingface_hub import metadata_load
from yaml import YAMLError

from .collection import Judgement, Question
from .passages import PassageRows, iterate_rows
from .text_files import find_file, need_file, plain_name, read_json, read_rows

DESCRIPTION = "corpus.jsonl or a README.md with the tables corpus and queries (BEIR, MTEB)"
CORPUS_FILE, QUERIES_FILE, QRELS_FOLDER = "corpus.jsonl", "queries.jsonl", "qrels"
CARD_FILE = "README.md"
QRELS_HEADER = ("query-id", "corpus-id", "score")
_CORPUS_TABLES, _QUERIES_TABLES = ["corpus"], ["queries", "query"]
_QRELS_TABLES = ["default", "qrels"]
SAME_SPLITS = {"dev": "validation", "validation": "dev"}  # `datasets` reads dev as validation

Record = Mapping[str, Any]


def is_layout(folder: Path) -> bool:
    return find_file(folder, CORPUS_FILE) is not None or bool(_declared(folder, _CORPUS_TABLES))


def read_passages(folder: Path, split: str) -> PassageRows:
    records, files = _open(folder, CORPUS_FILE, _CORPUS_TABLES, split)
    rows = (
        (_read_id(files[0], r, "_id", "id"), r.get("title") or "", _read_text(r)) for r in records
    )
    return rows, files


def read_split(
    folder: Path, split: str, *, beside: Path | None = None
) -> tuple[list[Question], list[Judgement] | None]:
    """Read all queries and the judgements of a split.

    A split without judgements consists of the queries that have answers and no judgements in any
    other split. `beside` holds the judgements if `folder` has none; by default `<folder>-qrels`.
    """
    records, files = _open(folder, QUERIES_FILE, _QUERIES_TABLES, split)
    questions = [
        (_read_id(files[0], r, "_id", "id"), r.get("text"), r.get("answers")) for r in records
    ]
    splits = find_judgements(folder, beside)
    rows = splits.get(split, splits.get(SAME_SPLITS.get(split, "")))
    query, passage, score = QRELS_HEADER
    place = f"{folder}, judgements of {split}"
    if rows is not None:
        return questions, [
            (_read_id(place, r, query), _read_id(place, r, passage), r.get(score)) for r in rows
        ]
    judged = {_read_id(place, row, query) for rows in splits.values() for row in rows}
    answered = [question for question in questions if question[2] and question[0] not in judged]
    if not answered:
        known = ", ".join(splits) or "none"
        raise ValueError(f"{folder} has no split {split!r}: it has judgements for {known}.")
    return answered, None


def find_judgements(folder: Path, beside: Path | None = None) -> dict[str, Iterable[Record]]:
    """Find the judgements of each split, without reading; see `read_split`."""
    beside = beside or folder.with_name(f"{folder.name}-qrels")
    return _find_in(folder, QRELS_FOLDER) or _find_in(beside, ".")


def _find_in(folder: Path, files: str) -> dict[str, Iterable[Record]]:
    splits: dict[str, Iterable[Record]] = {}
    for path in sorted((folder / files).glob("[!.]*")):
        split, _, ending = plain_name(path).rpartition(".")
        if split and ending in ("tsv", "jsonl"):
            splits[split] = read_rows(path)
    tables = _declared(folder, _QRELS_TABLES)
    if splits or not tables:
        return splits
    loaded = load_dataset(str(folder), tables[0])
    return {str(split): iterate_rows(table) for split, table in loaded.items()}


def _declared(folder: Path, tables: list[str]) -> list[str]:
    """Return those of the tables that the README.md of a folder declares."""
    card = folder / CARD_FILE
    try:
        configs = (metadata_load(card) or {}).get("configs") or [] if card.is_file() else []
        names = {config.get("config_name", "default") for config in configs}
    except (AttributeError, YAMLError) as error:
        raise ValueError(f"{card}: the metadata cannot be read ({error}): correct it.") from error
    return [table for table in tables if table in names]


def _read_id(place: object, record: Record, *names: str) -> str:
    """Read an id: text, or a whole number. A float or a date has no unique text."""
    value = next((record[name] for name in names if name in record), None)
    if isinstance(value, str | int) and value != "":
        return str(value)
    raise ValueError(
        f"{place}: the id {' or '.join(names)} is {value!r:.80}, expected text or a whole number; "
        f"the fields are {', '.join(record) or '(none)'}."
    )


def _read_text(record: Record) -> Any:
    """Read the text of a passage; null is a blank text, but a missing field remains None."""
    text = record.get("text")
    return "" if text is None and "text" in record else text


def _open(
    folder: Path, file_name: str, tables: list[str], split: str
) -> tuple[Iterable[Record], list[Path]]:
    """Open the records of a file, or of a split (or the only split) of a table; list the files."""
    declared = _declared(folder, tables)
    if find_file(folder, file_name) or not declared:
        file = need_file(folder, file_name)
        return read_json(file), [file]
    loaded = load_dataset(str(folder), declared[0])
    for name in (split, SAME_SPLITS.get(split), *(loaded if len(loaded) == 1 else ())):
        if name in loaded:
            files = [Path(file["filename"]) for file in loaded[name].cache_files]
            return iterate_rows(loaded[name]), files
    raise ValueError(f"{folder} ({declared[0]}) has no split {split!r}, only {', '.join(loaded)}.")
