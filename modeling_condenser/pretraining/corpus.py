"""Read documents: rows of Hub data sets or local files, as a data set with the column `text`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from datasets import (
    Dataset,
    Features,
    IterableDataset,
    Value,
    concatenate_datasets,
    load_dataset,
    load_from_disk,
)
from datasets.config import DATASET_STATE_JSON_FILENAME, DATASETDICT_JSON_FILENAME

from modeling_condenser.collection.conversion import (
    DOCUMENT_ENDINGS,
    TABLE_ENDINGS,
    TEXT_COLUMNS,
    DocumentReader,
    find_files,
)
from modeling_condenser.collection.load import CORPUS_FILE, find_file, resolve_collection_name
from modeling_condenser.collection.rows import (
    file_states,
    load_hub_rows,
    match_paths,
    plain_ending,
    read_rows,
    store_rows,
)
from modeling_condenser.files.settings import check_least, parse_settings

from .data import read_text
from .rows import as_rows

_STREAMED = (".txt", *TABLE_ENDINGS)
_ENDINGS = (*TABLE_ENDINGS, *DOCUMENT_ENDINGS)
_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_FEATURES = Features({"text": Value("string")})
_SAVED = (DATASET_STATE_JSON_FILENAME, DATASETDICT_JSON_FILENAME)  # by `save_to_disk`
_HEAD = 100  # rows in which a column is looked for
_STORED = 256  # documents that are stored together
_SAMPLED = 4000  # documents of a stream; a sample for Figure 2 of the Condenser paper has 1,000


@dataclass(frozen=True)
class Source:
    """One part of a corpus.

    Attributes:
        path: Hub data set name; a local file or glob pattern of .txt (a document a line), .jsonl,
            .json, .csv, .tsv or .parquet files, perhaps compressed (.gz, .bz2, .xz, .zst); a
            folder; the folder of `save_to_disk`; or a collection (a BEIR folder or "health"), for
            its passages. A folder of .txt files, files of several kinds, and those of other kinds
            (.md, .html, .pdf, ...) are read as by `condenser collect`: a document a file, or a row
            of a table; the README of a folder is not read. What exists comes before a pattern or a
            Hub name.
        name, split, revision: configuration, split, and branch, tag or commit of a Hub data set;
            the split is also that of a saved `DatasetDict`.
        text_column: column that holds the text; others are not read.
        join_rows: how many consecutive rows make one document, for data sets of one sentence a
            row, such as BookCorpus.
        streaming: read it while training, not before; Hub data sets, and .txt (a document a line),
            .jsonl, .json, .csv, .tsv and .parquet files. Readiness is measured on some of its first
            documents.
    """

    path: str
    name: str | None = None
    split: str = "train"
    revision: str | None = None
    text_column: str = "text"
    join_rows: int = 1
    streaming: bool = False

    def __post_init__(self) -> None:
        check_least(self, join_rows=1)


def read_sources(corpus: Any) -> list[Source]:
    """Return the parts of a corpus: a path, a mapping of fields of `Source`, or a list of them."""
    if isinstance(corpus, list):
        return [source for part in corpus for source in read_sources(part)]
    if isinstance(corpus, Source):
        return [corpus]
    return list(parse_settings(corpus if isinstance(corpus, Mapping) else {"path": corpus}, Source))


def load_documents(corpus: Any) -> Dataset:
    """Open a corpus (see `read_sources`), part after part, as a data set with the column `text`."""
    sources = read_sources(corpus)
    if not sources:
        raise ValueError("corpus is an empty list: name at least one file, folder or data set.")
    parts = []
    for source in sources:
        rows, n_joined = _load_texts(source), source.join_rows
        if n_joined > 1 or (len(sources) > 1 and rows.features != _FEATURES):
            identity = [rows._fingerprint, *file_states_of(rows), f"{n_joined} rows joined"]
            make_rows = partial(_join_rows, rows, n_joined)
            rows = store_rows(make_rows, _FEATURES, identity=identity, batch_rows=_STORED)
        parts.append(rows)
    return parts[0] if len(parts) == 1 else concatenate_datasets(parts)


def load_some(corpus: Any) -> Dataset:
    """Documents to choose a sample from: all of a corpus, but of a stream the first 4,000."""
    sources = read_sources(corpus)
    if not any(source.streaming for source in sources):
        return load_documents(corpus)
    texts: list[str] = []
    for source in sources:
        rows = open_stream(source) if source.streaming else load_documents(source)
        rows = as_rows(rows, name="corpus")
        texts += (read_text(row["text"]) for row in islice(rows, _SAMPLED))
    return Dataset.from_dict({"text": texts})


def open_stream(source: Source) -> IterableDataset:
    """Open a source as a stream with the column `text`, which its first rows must have."""
    if source.join_rows > 1:
        raise ValueError("join_rows needs stored text: leave out streaming.")
    path, column = _locate(source), source.text_column
    if any((path / name).is_file() for name in _SAVED):
        raise ValueError(f"{path} was saved by save_to_disk, and is stored: leave out streaming.")
    if _is_on_hub(source, path):
        rows = load_dataset(
            source.path, source.name, split=source.split, revision=source.revision, streaming=True
        )
        columns = rows.column_names or list(next(iter(rows), {}))
        if column not in columns:
            raise _missing_column(source.path, column, columns)
        return rows if column == "text" else rows.map(_take_column, fn_kwargs={"column": column})
    files = _find_files(path, source)
    endings = {plain_ending(file) for file in files}
    if not endings <= {*_STREAMED}:
        raise ValueError(
            f"{source.path} has {', '.join(sorted(endings))} files, but only "
            f"{', '.join(_STREAMED)} can be streamed: leave out streaming."
        )
    for file in files:  # before hours of training
        head = [*islice(read_rows(file, needed=column), _HEAD)]
        if head and not any(column in row for row in head):
            raise _missing_column(str(file), column, set().union(*head))
    given = {"files": files, "column": column}
    return IterableDataset.from_generator(_stream_rows, gen_kwargs=given)


def _take_column(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    return {"text": row.get(column)}


def _join_rows(rows: Dataset, n_joined: int) -> Iterator[dict[str, str]]:
    for batch in rows.iter(n_joined):
        yield {"text": " ".join(filter(None, map(read_text, batch["text"])))}


def file_states_of(rows: Dataset) -> list[str]:
    """Identify the content of the files that a data set reads."""
    return file_states(Path(file["filename"]) for file in rows.cache_files)


def _locate(source: Source) -> Path:
    """The path of a source; of a collection, that of its passages."""
    folder = Path(resolve_collection_name(source.path))
    return find_file(folder, CORPUS_FILE) or folder


def _is_on_hub(source: Source, path: Path) -> bool:
    is_name = _HUB_NAME.fullmatch(source.path) and plain_ending(path) not in _ENDINGS
    return bool(is_name) and not path.exists()


def _load_texts(source: Source) -> Dataset:
    path = _locate(source)
    if _is_on_hub(source, path):
        rows = load_hub_rows(source.path, source.name, split=source.split, revision=source.revision)
    elif (path / DATASET_STATE_JSON_FILENAME).is_file():
        _refuse_hub_settings(source)
        rows = load_from_disk(str(path))
    elif (path / DATASETDICT_JSON_FILENAME).is_file():
        rows = load_from_disk(str(path / source.split))
    else:
        files = _find_files(path, source)
        endings = {plain_ending(file) for file in files}
        is_of_lines = endings == {".txt"} and not path.is_dir()
        is_rows = is_of_lines or (len(endings) == 1 and endings <= {*TABLE_ENDINGS})
        read = _read_rows if is_rows else _read_documents
        identity = [read.__name__, source.text_column, *file_states(files)]
        make_rows = partial(read, files, source.text_column)
        return store_rows(make_rows, _FEATURES, identity=identity, batch_rows=_STORED)
    column = source.text_column
    if column not in rows.column_names:
        raise _missing_column(source.path, column, rows.column_names)
    rows = rows.select_columns([column])
    return rows if column == "text" else rows.rename_column(column, "text")


def _missing_column(name: str, column: str, columns: Iterable[str]) -> ValueError:
    return ValueError(
        f"{name} has no column {column!r}: its columns are {', '.join(sorted(columns))}. Name the "
        'column of the text, as in --corpus "{path: FILE, text_column: NAME}".'
    )


def _find_files(path: Path, source: Source) -> list[Path]:
    """Find the files at a path, in a folder or of a pattern.

    Empty and hidden files are left out, and of a folder the README, which describes data.
    """
    paths = find_files([str(path)]).values() if path.is_dir() else match_paths(path)
    files = [
        file
        for file in paths
        if plain_ending(file) in _ENDINGS and file.is_file() and file.stat().st_size > 0
    ]
    if path.is_dir():
        files = [file for file in files if file.stem.lower() != "readme"]
    if not files:
        raise FileNotFoundError(
            f"There are no documents at {source.path}, or they are empty. A corpus is a Hub data "
            f"set name (owner/name), or a file, folder or pattern of {', '.join(_ENDINGS)} files."
        )
    _refuse_hub_settings(source)
    return files


def _refuse_hub_settings(source: Source) -> None:
    if source.split != "train" or source.name or source.revision:
        raise ValueError(
            f"{source.path} is local and has no name, split or revision: leave them out, and name "
            "the files that hold the split."
        )


def _read_documents(files: Iterable[Path], column: str) -> Iterator[dict[str, str]]:
    """Read documents of every kind as `collect` does; what cannot be read is logged."""
    columns = TEXT_COLUMNS if column == "text" else [column]
    for document in DocumentReader(columns).read({str(file): file for file in files}):
        yield {"text": document.text}


def _read_rows(files: Iterable[Path], column: str) -> Iterator[dict[str, str]]:
    """Read one column, whatever the other columns are; some row of each file must have it."""
    for file in files:
        columns = set[str]()
        for number, row in enumerate(read_rows(file, needed=column), start=1):
            columns.update(row)
            try:
                yield {"text": read_text(row.get(column))}
            except ValueError as error:
                raise ValueError(f"{file}, row {number}, column {column!r}: {error}") from None
        if columns and column not in columns:
            raise _missing_column(str(file), column, columns)


def _stream_rows(files: Iterable[Path], column: str) -> Iterator[dict[str, Any]]:
    for file in files:
        yield from ({"text": row.get(column)} for row in read_rows(file, needed=column))
