"""Files and Hub data sets of training data as records: a path or name in; numbered fields out.

Text stays text: libraries that guess types read the sentence "None" as missing and "1984" as a
number. Whatever is wrong with a file is said with its name and line.
"""

import codecs
import csv
import glob
import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import Dataset, load_dataset

from modeling_condenser.collection.text_files import (
    plain_name,
    read_fields,
    read_lines,
    read_objects,
)

from .json_arrays import read_array

Record = tuple[str, Mapping[str, Any]]
"""Where a row stands, as `file:line`, and its fields."""

_BATCH_ROWS = 1000
_LONGEST_FIELD = 1 << 30  # characters of a CSV field; the library's own limit is 131,072


@dataclass(frozen=True)
class DataSource:
    """Where training data lies.

    Attributes:
        files: local ones, in their order; empty for a Hub data set.
        table: the Hub data set.
        name: of both, for errors.
    """

    files: tuple[Path, ...]
    table: Dataset | None
    name: str

    @property
    def state(self) -> list[str]:
        """What identifies the data: paths, sizes and times, or a data set's fingerprint."""
        if self.table is not None:
            return [f"{self.name}: {self.table._fingerprint}"]
        stats = [(file, file.stat()) for file in self.files]
        return [f"{file.resolve()}: {s.st_size} {s.st_mtime_ns} {s.st_ino}" for file, s in stats]


def find_data(
    data: Any, *, name: str | None = None, revision: str | None = None, split: str | None = None
) -> DataSource:
    """Find the files that a recipe's `data` means, or load the Hub data set.

    Args:
        data: a file, a glob pattern, a list of these, or the name of a Hub data set.
        name: configuration of a Hub data set.
        revision: of a Hub data set.
        split: of a Hub data set, "train" by default.

    Raises:
        FileNotFoundError: there is no such file or data set.
        ValueError: a setting for Hub data sets came with local files, or a file has an ending that
            is not known.
    """
    patterns = [data] if isinstance(data, str | Path) else data
    if not isinstance(patterns, list | tuple) or not patterns:
        raise ValueError(f"data is {data!r}, expected a file, a list of files or a Hub data set.")
    found = [_local_files(str(pattern)) for pattern in patterns]
    files = [file for part in found for file in part]
    if not files and len(patterns) == 1:
        table = _load_hub_table(str(patterns[0]), name, revision, split or "train")
        return DataSource((), table, str(patterns[0]))
    for pattern, part in zip(patterns, found, strict=True):
        if not part:
            raise FileNotFoundError(
                f"{pattern} is no local file, and a list can only hold those: mend the path, or "
                "name one Hub data set alone."
            )
    stated = {"data_name": name, "data_revision": revision, "split": split}
    for setting, value in stated.items():
        if value is not None:
            raise ValueError(
                f"{setting} is only for Hub data sets, but data means local files: leave it out."
            )
    for file in files:
        if _ending(file) not in _READERS:
            raise ValueError(
                f"{file} ends in {_ending(file) or 'nothing'}, expected one of "
                f"{', '.join(_READERS)}: convert or rename it."
            )
    return DataSource(tuple(files), None, ", ".join(map(str, patterns)))


def _local_files(pattern: str) -> list[Path]:
    """The files that a path or pattern means; none if it can only be a Hub name."""
    path = Path(pattern)
    if path.is_file():
        return [path]
    if path.is_dir():
        raise ValueError(f"{pattern} is a folder: name its files, as {pattern}/*.jsonl.")
    if glob.has_magic(pattern):
        found = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]
        files = [file for file in found if file.is_file()]
        if not files:
            raise FileNotFoundError(f"No file matches {pattern!r}.")
        return files
    looks_local = path.is_absolute() or pattern.startswith((".", "~")) or pattern.count("/") > 1
    if looks_local or _ending(path) in _READERS:
        raise FileNotFoundError(f"{pattern} does not exist: mend the path.")
    return []


def _load_hub_table(name: str, config: str | None, revision: str | None, split: str) -> Dataset:
    try:
        return load_dataset(name, config, split=split, revision=revision)
    except (OSError, ValueError) as error:  # the Hub's errors are OSErrors; a bad split, ValueError
        raise FileNotFoundError(
            f"no training data {name!r}: it is no local file, and the Hub's data set of that name "
            f"could not be loaded ({str(error).splitlines()[0]}); mend data, data_name or split"
        ) from error


def read_records(
    source: DataSource, *, columns: Sequence[str] | None, needed: Callable[[str, set[str]], None]
) -> Iterator[Record]:
    """Read the rows of all files.

    Args:
        source: where they lie.
        columns: names of all columns of .tsv and .csv files without header; None if the first line
            names them.
        needed: called with a file's name and its header before its rows; raises where a column
            that is needed is missing.

    Raises:
        ValueError: a malformed line, or what `needed` raises.
    """
    if source.table is not None:
        _refuse_list(source.name, columns)
        needed(source.name, set(source.table.column_names))
        for number, row in enumerate(_table_rows(source.table), start=1):
            yield f"{source.name}:{number}", row
    for file in source.files:
        if _ending(file) not in (".tsv", ".csv"):
            _refuse_list(str(file), columns)
        yield from _READERS[_ending(file)](file, columns, needed)


def _refuse_list(name: str, columns: Sequence[str] | None) -> None:
    if columns:
        raise ValueError(
            f"{name} names its fields itself, so columns maps our names to its, as "
            "{query: question}; a list is for .tsv and .csv files without header."
        )


def _table_rows(table: Dataset) -> Iterator[Mapping[str, Any]]:
    for batch in table.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        yield from batch.to_pylist()


def _read_jsonl(file: Path, columns: Any, needed: Any) -> Iterator[Record]:
    for number, record in read_objects(file):
        yield f"{file}:{number}", record


def _read_json(file: Path, columns: Any, needed: Any) -> Iterator[Record]:
    """One JSON array, or an object a line."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
        begins = stream.read(1 << 12).removeprefix(codecs.BOM_UTF8).lstrip()
    if not begins.startswith(b"["):
        yield from _read_jsonl(file, columns, needed)
        return
    for number, record in read_array(file):
        if not isinstance(record, dict):
            raise ValueError(
                f"{file}:{number}: a JSON {type(record).__name__}, expected an array of objects"
            )
        yield f"{file}:{number}", record


def _read_tsv(file: Path, columns: Sequence[str] | None, needed: Any) -> Iterator[Record]:
    header, line = (0, "") if columns else next(read_lines(file), (0, ""))
    names = list(columns) if columns else line.split("\t")
    needed(str(file), set(names))
    for number, fields in read_fields(file, n=len(names), what=", ".join(names)):
        if number > header:
            yield f"{file}:{number}", dict(zip(names, fields, strict=True))


def _read_csv(file: Path, columns: Sequence[str] | None, needed: Any) -> Iterator[Record]:
    csv.field_size_limit(_LONGEST_FIELD)
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8-sig", newline="") as stream:  # type: ignore[operator]
        rows = csv.reader(stream, strict=True)
        try:
            names = list(columns) if columns else next(rows, [])
            needed(str(file), set(names))
            begins = rows.line_num + 1
            for fields in rows:
                place, begins = f"{file}:{begins}", rows.line_num + 1
                if not fields:
                    continue
                if len(fields) != len(names):
                    raise ValueError(
                        f"{place}: {len(fields)} fields between commas, expected {len(names)} "
                        f"({', '.join(names)}): mend the line, or quote the text"
                    )
                yield place, dict(zip(names, fields, strict=True))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{file}: not UTF-8 behind line {rows.line_num} ({error.reason}): convert it "
                "(iconv -f latin1 -t utf-8)"
            ) from error
        except csv.Error as error:
            raise ValueError(f"{file}:{rows.line_num}: not CSV ({error}): mend the line") from error


def _read_parquet(file: Path, columns: Any, needed: Any) -> Iterator[Record]:
    with pq.ParquetFile(file) as table:
        needed(str(file), set(table.schema_arrow.names))
        number = 0
        for batch in table.iter_batches(batch_size=_BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield f"{file}:{number}", row


_READERS: dict[str, Callable[[Path, Any, Any], Iterator[Record]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _ending(file: Path) -> str:
    return Path(plain_name(file)).suffix.lower()
