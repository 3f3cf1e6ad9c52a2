"""BEIR's layout (Thakur et al. 2021), as files or as the tables of a Hub data set.

Files: `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`, perhaps `answers`)
and `qrels/<split>.tsv` (with the header `query-id corpus-id score`) or `.jsonl`; each also as
`.gz`.

Tables: a README.md declares the configurations `corpus`, `queries` and `default` or `qrels`, in any
format that `datasets` reads, as newer sets of MTEB do. The judgements may also lie in a folder
beside, `<name>-qrels`, as those of BEIR's data sets do.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, get_dataset_split_names, load_dataset
from datasets.data_files import sanitize_patterns
from datasets.exceptions import DatasetsError
from huggingface_hub import metadata_load

from .collection import (
    Collection,
    Qrels,
    Question,
    build_collection,
    gather_judgements,
    gather_questions,
)
from .passages import Row, store_passages
from .records import read_answers, read_grade, read_id, read_text, read_title
from .text_files import find_file, need_file, plain_name, read_fields, read_lines, read_objects

CORPUS_FILE, QUERIES_FILE, QRELS_FOLDER = "corpus.jsonl", "queries.jsonl", "qrels"
QRELS_HEADER = ("query-id", "corpus-id", "score")
CARD_FILE = "README.md"
CORPUS_CONFIG, QUERIES_CONFIGS, QRELS_CONFIGS = "corpus", ("queries", "query"), ("default", "qrels")
_SAME_SPLITS = {"dev": "validation", "validation": "dev"}  # `datasets` renames the one to the other
_BATCH_ROWS = 1000

Record = tuple[str, Mapping[str, Any]]
"""Where a row stands, for errors, and its fields."""
QrelsReaders = Mapping[str, Callable[[], Qrels]]
"""Split -> function that reads its judgements."""


def is_beir_folder(folder: Path) -> bool:
    """Whether a folder holds BEIR's corpus as a file."""
    return find_file(folder, CORPUS_FILE) is not None


def load_beir_collection(
    path: str | Path,
    *,
    split: str = "test",
    qrels_folder: Path | None = None,
    name: str | None = None,
) -> Collection:
    """Load one split of a BEIR folder; see `load_collection`.

    A split without a file of judgements is judged by answers: it holds the queries that have
    answers and that no other split judges.

    Args:
        path: the folder.
        split: name of a file of judgements, without its ending.
        qrels_folder: that holds the judgements, `qrels/` by default.
        name: of the collection, by default that of the folder.
    """
    folder = Path(path)
    file = need_file(folder, QUERIES_FILE)
    questions = gather_questions(_questions(_file_records(file)), source=file)
    readers = qrels_readers(qrels_folder or folder / QRELS_FOLDER)
    return _build(folder, split, questions, readers, load_beir_passages, name=name)


def load_beir_passages(path: str | Path) -> Dataset:
    """Load the passages of a BEIR folder: columns `_id`, `title`, `text`."""
    file = need_file(Path(path), CORPUS_FILE)
    return store_passages(_passages(_file_records(file)), files=[file], name=file)


def is_configured_folder(folder: Path) -> bool:
    """Whether a folder's README.md declares a table `corpus`."""
    return CORPUS_CONFIG in read_configs(folder)


def load_configured_collection(
    path: str | Path,
    *,
    split: str = "test",
    qrels_folder: Path | None = None,
    name: str | None = None,
) -> Collection:
    """Load one split of a folder whose README.md declares tables; see `load_beir_collection`.

    The judgements may also lie in `qrels_folder`, by default `<path>-qrels`.
    """
    folder = Path(path)
    where = f"{folder} (queries)"
    table = _load_table(folder, *QUERIES_CONFIGS, split=split)
    questions = gather_questions(_questions(_table_records(table, where)), source=where)
    beside = qrels_folder or folder.with_name(f"{folder.name}-qrels")
    readers = _table_readers(folder) or _table_readers(beside) or qrels_readers(beside)
    load = partial(load_configured_passages, split=split)
    return _build(folder, split, questions, readers, load, name=name)


def load_configured_passages(path: str | Path, *, split: str = "test") -> Dataset:
    """Load the passages of a folder whose README.md declares tables.

    Where each split has passages of its own, `split` chooses them.
    """
    table = _load_table(Path(path), CORPUS_CONFIG, split=split)
    where = f"{path} ({CORPUS_CONFIG})"
    files = [Path(file["filename"]) for file in table.cache_files]
    return store_passages(_passages(_table_records(table, where)), files=files, name=where)


def read_configs(folder: Path) -> dict[str, list[str]]:
    """Read which configurations a folder's README.md declares: name -> patterns of files."""
    card = folder / CARD_FILE
    declared = (metadata_load(card) or {}) if card.is_file() else {}
    configs = {}
    for config in declared.get("configs") or []:
        prefix = f"{config['data_dir'].strip('/')}/" if config.get("data_dir") else ""
        patterns = sanitize_patterns(config.get("data_files") or "*").values()
        configs[config.get("config_name", "default")] = [prefix + p for ps in patterns for p in ps]
    return configs


def qrels_readers(folder: Path) -> QrelsReaders:
    """Find the files of judgements in a folder: split -> reader."""
    readers: dict[str, Callable[[], Qrels]] = {}
    for path in sorted(folder.glob("*")):
        split, dot, ending = plain_name(path).rpartition(".")
        if dot and ending in ("tsv", "jsonl"):
            readers.setdefault(split, partial(_read_qrels, path))
    return readers


def _read_qrels(path: Path) -> Qrels:
    return gather_judgements(_judgements(_file_records(path)), source=path)


def _table_readers(folder: Path) -> QrelsReaders:
    config = next((name for name in QRELS_CONFIGS if name in read_configs(folder)), None)
    if config is None:
        return {}
    return {
        split: partial(_read_table_qrels, folder, config, split)
        for split in _split_names(folder, config)
    }


def _read_table_qrels(folder: Path, config: str, split: str) -> Qrels:
    where = f"{folder} ({config})"
    table = _load_table(folder, config, split=split)
    return gather_judgements(_judgements(_table_records(table, where)), source=where)


def _build(
    folder: Path,
    split: str,
    questions: dict[str, Question],
    readers: QrelsReaders,
    load: Callable[[Path], Dataset],
    *,
    name: str | None,
) -> Collection:
    """Build the collection of one split, judged by passages or else by answers."""
    known = next((key for key in (split, _SAME_SPLITS.get(split)) if key in readers), None)
    qrels = readers[known]() if known else None
    if qrels is None:
        questions = {key: question for key, question in questions.items() if question.answers}
        judged = {key for read in readers.values() for key in read()} if questions else set()
        questions = {key: questions[key] for key in questions if key not in judged}
        if not questions:
            raise ValueError(
                f"{folder} has no split {split!r}: it has judgements for"
                f" {', '.join(readers) or 'no split'}, and no other queries with answers. Choose"
                f" another split, or add {QRELS_FOLDER}/{split}.tsv."
            )
    name, source = name or folder.resolve().name, f"{folder} (judgements of {split})"
    return build_collection(load(folder), questions, qrels, name=name, source=source)


def _file_records(path: Path) -> Iterator[Record]:
    """The rows of a file: JSON objects, or lines of judgements below a header."""
    if plain_name(path).endswith(".jsonl"):
        for number, record in read_objects(path):
            yield f"{path}:{number}", record
        return
    _, header = next(read_lines(path), (1, ""))
    if tuple(header.split("\t")) != QRELS_HEADER:
        raise ValueError(
            f"{path}: the first line is {header!r:.80}, expected the header"
            f" {' '.join(QRELS_HEADER)}, separated by tabs."
        )
    rows = read_fields(path, n=len(QRELS_HEADER), what=", ".join(QRELS_HEADER))
    next(rows)
    for number, fields in rows:
        yield f"{path}:{number}", dict(zip(QRELS_HEADER, fields, strict=True))


def _table_records(table: Dataset, where: str) -> Iterator[Record]:
    """The rows of a table, without the columns that collections do not have."""
    known = {"_id", "id", "title", "text", "answers", *QRELS_HEADER}
    columns = [column for column in table.column_names if column in known]
    rows = table.select_columns(columns).with_format("arrow").iter(batch_size=_BATCH_ROWS)
    for number, record in enumerate((r for batch in rows for r in batch.to_pylist()), start=1):
        yield f"{where}:{number}", record


def _passages(records: Iterator[Record]) -> Iterator[Row]:
    for place, record in records:
        title, text = read_title(record, place=place), read_text(record, "text", place=place)
        yield _read_own_id(record, place), title, text


def _questions(records: Iterator[Record]) -> Iterator[tuple[str, Question]]:
    for place, record in records:
        answers = record.get("answers")
        found = () if answers is None else read_answers(answers, place=place)
        text = read_text(record, "text", place=place)
        yield _read_own_id(record, place), Question(text, found)


def _judgements(records: Iterator[Record]) -> Iterator[tuple[str, str, int]]:
    for place, record in records:
        query_id, passage_id = (read_id(record, key, place=place) for key in QRELS_HEADER[:2])
        yield query_id, passage_id, read_grade(record.get("score"), place=place)


def _read_own_id(record: Mapping[str, Any], place: str) -> str:
    return read_id(record, "id" if "_id" not in record and "id" in record else "_id", place=place)


def _split_names(folder: Path, config: str) -> list[str]:
    return list(map(str, get_dataset_split_names(str(folder), config)))


def _load_table(folder: Path, *configs: str, split: str) -> Dataset:
    """Load one split of the first of the configurations that there is, or its only split."""
    declared = read_configs(folder)
    config = next((name for name in configs if name in declared), None)
    if config is None:
        raise ValueError(
            f"{folder} declares the configurations {', '.join(declared) or '(none)'}, expected"
            f" {' or '.join(configs)}. Write it as a BEIR folder."
        )
    try:
        splits = _split_names(folder, config)
        names = [name for name in (split, _SAME_SPLITS.get(split)) if name in splits]
        if names or len(splits) == 1:
            return load_dataset(str(folder), config, split=[*names, *splits][0])
    except (OSError, ValueError, StopIteration, DatasetsError) as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(
            f"{folder} ({config}) cannot be read ({type(error).__name__}: {reason}): a file is"
            " missing, empty or damaged. Download it again."
        ) from error
    raise ValueError(
        f"{folder} ({config}) has no split {split!r}; its splits are {', '.join(splits)}."
    )
