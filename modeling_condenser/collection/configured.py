"""Folders whose README.md declares tables, as Hub data sets do: read as collections.

In: the configurations `corpus` (`_id` or `id`, `title`, `text`) and `queries` (`_id` or `id`,
`text`, perhaps `answers`) in any format that `datasets` reads, and the judgements in `default` or
`qrels` (`query-id`, `corpus-id`, `score`), as newer sets of MTEB have them, or in a folder beside,
as BEIR has them. Out: a `Collection`. Ids that are numbers become strings.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset, get_dataset_split_names, load_dataset
from datasets.exceptions import DatasetsError
from huggingface_hub import metadata_load

from .beir import find_qrels_files, read_question
from .collection import Collection, Qrels
from .judgements import (
    QRELS_HEADER,
    Question,
    gather_judgements,
    gather_questions,
    judged_by_answers,
    judged_by_passages,
    read_beir_qrels,
    read_judgement,
)
from .passages import Row, store_passages
from .records import read_id, read_text, read_title

CARD_FILE = "README.md"
CORPUS_CONFIG = "corpus"
QUERIES_CONFIGS = ("queries", "query")
QRELS_CONFIGS = ("default", "qrels")
_ID_COLUMNS = ("_id", "id")
_OTHER_NAMES = {"dev": "validation", "validation": "dev"}  # of splits
_BATCH_ROWS = 10_000


def has_configurations(folder: Path) -> bool:
    """Whether a folder's README.md declares a corpus, as that of a Hub data set."""
    return CORPUS_CONFIG in read_configs(folder)


def read_configs(folder: Path) -> dict[str, list[str]]:
    """Configuration -> patterns of its files, as a folder's README.md declares them."""
    card = folder / CARD_FILE
    configs = {}
    for config in _declared(card) if card.is_file() else []:
        files = config.get("data_files") or "*"
        patterns: list[str] = []
        for part in files if isinstance(files, list) else [files]:
            paths: Any = part.get("path") if isinstance(part, dict) else part
            patterns += paths if isinstance(paths, list) else [paths]
        inside = f"{config['data_dir'].strip('/')}/" if config.get("data_dir") else ""
        configs[config.get("config_name", "default")] = [inside + pattern for pattern in patterns]
    return configs


def _declared(card: Path) -> list[dict[str, Any]]:
    try:
        configs = (metadata_load(card) or {}).get("configs") or []
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{card}: its header is not YAML ({' '.join(str(error).split())}): mend it, or take the"
            " file away"
        ) from error
    if not isinstance(configs, list) or not all(isinstance(config, dict) for config in configs):
        raise ValueError(
            f"{card}: configs is {configs!r}, expected a list of mappings with config_name and"
            " data_files: mend it"
        )
    return configs


def load_configured_collection(
    path: str | Path,
    *,
    split: str = "test",
    qrels_folder: Path | None = None,
    name: str | None = None,
) -> Collection:
    """Load one split of a folder whose README.md declares `corpus` and `queries`.

    Args:
        path: the folder.
        split: whose judgements to load; "dev" and "validation" are the same, since the library
            takes the one for the other.
        qrels_folder: where the judgements are, if not in the folder; by default `<path>-qrels`.
        name: of the collection, by default the folder's.

    Raises:
        ValueError: unknown layout or split, or contents that do not fit together; the message names
            the table and the row, or the id.
    """
    folder = Path(path)
    name = name or folder.resolve().name
    passages = load_configured_passages(folder, split=split)
    config = _choose_config(folder, *QUERIES_CONFIGS)
    where = f"{folder} ({config})"
    table = _load_split(folder, config, split)
    questions = gather_questions(_read_questions(table, where), source=where)
    beside = qrels_folder or folder.with_name(f"{folder.name}-qrels")
    qrels = _load_qrels(folder, beside, split)
    if qrels is None:
        questions = _answered(questions, places=f"{folder} or {beside}")
        return judged_by_answers(passages, questions, name=name)
    places = (f"{folder} ({CORPUS_CONFIG})", where, f"{folder} (judgements of {split})")
    return judged_by_passages(passages, questions, qrels, name=name, places=places)


def load_configured_passages(path: str | Path, *, split: str = "test") -> Dataset:
    """Load the passages of a folder whose README.md declares `corpus`.

    Args:
        path: the folder.
        split: whose passages to load, where each split has its own.
    """
    folder = Path(path)
    config = _choose_config(folder, CORPUS_CONFIG)
    table = _load_split(folder, config, split)
    where = f"{folder} ({config})"
    files = [Path(file["filename"]) for file in table.cache_files]
    return store_passages(partial(_read_passages, table, where), files=files, where=where)


def _choose_config(folder: Path, *names: str) -> str:
    configs = read_configs(folder)
    for name in names:
        if name in configs:
            return name
    raise ValueError(
        f"{folder} has the configurations {', '.join(configs) or 'none'}, expected"
        f" {' or '.join(names)}: it is laid out otherwise than BEIR's and MTEB's data sets; write"
        " it as a BEIR folder"
    )


def _choose_split(folder: Path, config: str, split: str, *, exact: bool) -> str:
    with _explain_errors(folder, config):
        splits = get_dataset_split_names(str(folder), config)
    for name in (split, _OTHER_NAMES.get(split)):
        if name in splits:
            return str(name)
    if len(splits) == 1 and not exact:  # one corpus, one set of queries for all splits
        return str(splits[0])
    raise ValueError(
        f"{folder} ({config}) has no split {split!r}, expected one of {', '.join(splits)}: choose"
        " one of them"
    )


def _load_split(folder: Path, config: str, split: str, *, exact: bool = False) -> Dataset:
    chosen = _choose_split(folder, config, split, exact=exact)
    with _explain_errors(folder, config):
        return load_dataset(str(folder), config, split=chosen)


@contextmanager
def _explain_errors(folder: Path, config: str) -> Iterator[None]:
    """Say what the library's errors mean, which are many and obscure for an empty file."""
    try:
        yield
    except (OSError, ValueError, StopIteration, DatasetsError) as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(
            f"{folder} ({config}) cannot be read ({type(error).__name__}: {reason}), expected files"
            " that are there, whole, and hold at least one row: fetch them again"
        ) from error


def _load_qrels(folder: Path, beside: Path, split: str) -> Qrels | None:
    """The judgements of a split, from a folder or the one beside it; None if there are none."""
    for place in (folder, beside):
        for config in QRELS_CONFIGS:
            if config in read_configs(place):
                return _read_qrels(_load_split(place, config, split, exact=True), place)
    files = find_qrels_files(beside)
    for name in (split, _OTHER_NAMES.get(split)):
        if name in files:
            return read_beir_qrels(files[name])
    if not files:
        return None
    raise ValueError(
        f"{beside} has no split {split!r}, expected one of {', '.join(files)}: choose one of them"
    )


def _answered(questions: dict[str, Question], *, places: str) -> dict[str, Question]:
    """The queries with answers, which are judged by nothing else."""
    answered = {query_id: question for query_id, question in questions.items() if question.answers}
    if not answered:
        raise ValueError(
            f"there are no judgements in {places}: expected a configuration"
            f" {' or '.join(QRELS_CONFIGS)}, files such as test.tsv in the second, or queries with"
            " answers; add one of them"
        )
    return answered


def _read_records(table: Dataset, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a table, numbered from 1, with those of the columns that it has."""
    kept = [column for column in columns if column in table.column_names]
    number = 0
    for batch in table.select_columns(kept).with_format("arrow").iter(batch_size=_BATCH_ROWS):
        for record in batch.to_pylist():
            number += 1
            yield number, record


def _id_column(table: Dataset) -> str:
    return next((column for column in _ID_COLUMNS if column in table.column_names), _ID_COLUMNS[0])


def _need_columns(table: Dataset, *columns: str, where: str) -> None:
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        raise ValueError(
            f"{where} has the columns {', '.join(table.column_names)}, expected"
            f" {', '.join(columns)}: {', '.join(missing)} is missing; write it as a BEIR folder"
        )


def _read_passages(table: Dataset, where: str) -> Iterator[Row]:
    key = _id_column(table)
    _need_columns(table, key, "text", where=where)
    for number, record in _read_records(table, (key, "title", "text")):
        place = f"{where}:{number}"
        passage_id, text = read_id(record, key, place=place), read_text(record, "text", place=place)
        yield number, passage_id, read_title(record, place=place), text


def _read_questions(table: Dataset, where: str) -> Iterator[tuple[str, str, Question]]:
    key = _id_column(table)
    _need_columns(table, key, "text", where=where)
    for number, record in _read_records(table, (key, "text", "answers")):
        place = f"{where}:{number}"
        yield place, read_id(record, key, place=place), read_question(record, place=place)


def _read_qrels(table: Dataset, folder: Path) -> Qrels:
    where = f"{folder} (judgements)"
    _need_columns(table, *QRELS_HEADER, where=where)
    rows = _read_records(table, QRELS_HEADER)
    return gather_judgements(
        (read_judgement(record, place=f"{where}:{number}") for number, record in rows), source=where
    )
