"""Read rows of labelled data from local files or from a Hub data set.

CSV, TSV and JSON are read with Python's own modules, because `datasets.load_dataset` changes such
data: it turns a text such as 2020-01-01 into a datetime, and shifts or drops fields where a line of
a table has one too many. It reads parquet files and Hub data sets.
"""

import csv
import glob
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from datasets import Dataset, load_dataset

from modeling_condenser.collection.text_files import (
    plain_name,
    read_fields,
    read_lines,
    read_objects,
)

Record = tuple[str, Mapping[str, Any]]
"""Where a row is, as `file:line`, and its fields."""

_MAX_FIELD_LENGTH = 1 << 30  # characters; the csv module's own limit is 131,072
_JSON_CHUNK = 1 << 22  # characters
_MAX_ITEM = 1 << 26  # characters; the error in a damaged item is not searched for any further
_SEPARATORS = re.compile(r"[,\s]*")


@dataclass(frozen=True)
class DataSource:
    """Where training data is.

    Attributes:
        files: local files in the order in which they are read; empty for a Hub data set.
        table: the Hub data set.
        name: the name of either, for error messages.
    """

    files: tuple[Path, ...]
    table: Dataset | None
    name: str

    @property
    def state(self) -> list[str]:
        """What identifies the data: paths, sizes and times, or the data set's fingerprint."""
        if self.table is not None:
            return [f"{self.name}: {self.table._fingerprint}"]
        stats = [(file, file.stat()) for file in self.files]
        return [f"{file.resolve()}: {s.st_size} {s.st_mtime_ns} {s.st_ino}" for file, s in stats]


def find_data(
    data: Any, *, name: str | None = None, revision: str | None = None, split: str | None = None
) -> DataSource:
    """Find the files that a recipe's `data` names, or load the Hub data set.

    Args:
        data: a file, a glob pattern, a list of these, or the name of a Hub data set.
        name: configuration of the Hub data set.
        revision: branch, tag or commit of the Hub data set.
        split: of the Hub data set, "train" by default.

    Raises:
        FileNotFoundError: there is no such file or data set.
        ValueError: a setting for Hub data sets is used with local files, or the file type is not
            supported.
    """
    patterns = [data] if isinstance(data, str | Path) else data
    if not isinstance(patterns, list | tuple) or not patterns:
        raise ValueError(f"data is {data!r}, expected a file, a list of files or a Hub data set.")
    found = [_local_files(str(pattern)) for pattern in patterns]
    if len(patterns) == 1 and not found[0]:
        table = _load_hub_table(str(patterns[0]), name, revision, split or "train")
        return DataSource((), table, str(patterns[0]))
    for pattern, matches in zip(patterns, found, strict=True):
        if not matches:
            raise FileNotFoundError(
                f"{pattern} is not a local file. A list may only name local files: correct the "
                "path, or give the name of a single Hub data set."
            )
    for setting, value in {"data_name": name, "data_revision": revision, "split": split}.items():
        if value is not None:
            raise ValueError(f"{setting} is for Hub data sets, but data names local files.")
    files = tuple(file for matches in found for file in matches)
    for file in files:
        if _suffix(file) not in _READERS:
            raise ValueError(
                f"{file}: files of type {_suffix(file) or 'unknown'} are not supported; supported: "
                f"{', '.join(_READERS)}."
            )
    return DataSource(files, None, ", ".join(map(str, patterns)))


def _local_files(pattern: str) -> list[Path]:
    """The files that a path or pattern names; empty if it may be the name of a Hub data set."""
    path = Path(pattern)
    if path.is_file():
        return [path]
    if path.is_dir():
        raise ValueError(f"{pattern} is a folder: name its files, for example {pattern}/*.jsonl.")
    if glob.has_magic(pattern):
        files = [Path(m) for m in sorted(glob.glob(pattern, recursive=True)) if Path(m).is_file()]
        if not files:
            raise FileNotFoundError(f"No file matches {pattern!r}.")
        return files
    is_path = path.is_absolute() or pattern.startswith((".", "~")) or pattern.count("/") > 1
    if is_path or _suffix(path) in _READERS:
        raise FileNotFoundError(f"{pattern} does not exist: correct the path.")
    return []


def _load_hub_table(name: str, config: str | None, revision: str | None, split: str) -> Dataset:
    try:
        return load_dataset(name, config, split=split, revision=revision)
    except (
        OSError,
        ValueError,
    ) as error:  # the Hub's errors are OSErrors; a wrong split, ValueError
        raise FileNotFoundError(
            f"There is no local file {name!r}, and the Hub data set of that name could not be "
            f"loaded ({str(error).splitlines()[0]}): correct data, data_name or split."
        ) from error


def read_records(source: DataSource, *, columns: Sequence[str] | None = None) -> Iterator[Record]:
    """Read the rows of a source, one by one.

    Args:
        source: see `find_data`.
        columns: names of all columns of .tsv and .csv files without a header; None if the first
            line names them.

    Raises:
        ValueError: a malformed line, or `columns` for data that names its fields itself.
    """
    if columns and not all(_suffix(file) in (".tsv", ".csv") for file in source.files or [Path()]):
        raise ValueError(
            f"{source.name} names its own fields, so columns must map our names to its names, for "
            "example {query: question}; a list is for .tsv and .csv files without a header."
        )
    if source.table is not None:
        for number, row in enumerate(source.table, start=1):
            yield f"{source.name}:{number}", row
    for file in source.files:
        for number, fields in _READERS[_suffix(file)](file, columns):
            yield f"{file}:{number}", fields


_Rows = Iterator[tuple[int, Mapping[str, Any]]]


def _read_json(file: Path, columns: Sequence[str] | None) -> _Rows:
    """Read one JSON array of objects, or one object a line."""
    with _open_text(file) as stream:
        is_array = stream.read(1 << 12).lstrip().startswith("[")
    yield from _read_json_array(file) if is_array else read_objects(file)


def _read_json_array(file: Path) -> _Rows:
    """Read the objects of a JSON array one by one: DPR's file for Natural Questions has 8 GB.

    They are numbered from 1.
    """
    decoder = json.JSONDecoder()
    with _open_text(file) as stream:
        text, number = stream.read(_JSON_CHUNK), 0
        place = text.index("[") + 1
        while True:
            place = _SEPARATORS.match(text, place).end()  # type: ignore[union-attr]
            try:
                fields, end = decoder.raw_decode(text, place)
            except json.JSONDecodeError as error:
                if text.startswith("]", place):
                    return
                more = stream.read(_JSON_CHUNK)
                if not more or len(text) - place > _MAX_ITEM:
                    raise ValueError(
                        f"{file}: item {number + 1} is not JSON ({error.msg}): the file is damaged "
                        "or incomplete; download it again."
                    ) from error
                text, place = text[place:] + more, 0
                continue
            number += 1
            if not isinstance(fields, dict):
                raise ValueError(f"{file}: item {number} is {fields!r:.60}, expected an object.")
            yield number, fields
            place = end


def _read_tsv(file: Path, columns: Sequence[str] | None) -> _Rows:
    """Read a table with tabs between fields; quotes are part of the text."""
    first, line = (0, "") if columns else next(read_lines(file), (0, ""))
    names = list(columns) if columns else line.split("\t")
    for number, fields in read_fields(file, n=len(names), what=", ".join(names)):
        if number > first:
            yield number, dict(zip(names, fields, strict=True))


def _read_csv(file: Path, columns: Sequence[str] | None) -> _Rows:
    csv.field_size_limit(_MAX_FIELD_LENGTH)
    with _open_text(file) as stream:
        rows = csv.reader(stream, strict=True)
        try:
            names = list(columns) if columns else next(rows, [])
            for fields in rows:
                if fields and len(fields) != len(names):
                    raise ValueError(
                        f"{file}:{rows.line_num}: {len(fields)} fields between commas, expected "
                        f"{len(names)} ({', '.join(names)}): correct the line, or quote the text."
                    )
                if fields:
                    yield rows.line_num, dict(zip(names, fields, strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{file}:{rows.line_num}: not CSV in UTF-8 ({error}).") from error


def _read_parquet(file: Path, columns: Sequence[str] | None) -> _Rows:
    # Streaming reads batches of rows and makes no copy of the file.
    rows = load_dataset("parquet", data_files=str(file), split="train", streaming=True)
    yield from enumerate(rows, start=1)


def _open_text(file: Path) -> TextIO:
    opened: Callable[..., Any] = gzip.open if file.suffix == ".gz" else open
    return opened(file, "rt", encoding="utf-8-sig", newline="")


def _suffix(file: Path) -> str:
    return Path(plain_name(file)).suffix.lower()


_READERS: dict[str, Callable[[Path, Sequence[str] | None], _Rows]] = {
    ".jsonl": lambda file, columns: read_objects(file),
    ".json": _read_json,
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
