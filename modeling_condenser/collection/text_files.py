"""Reads lines, tables and JSON, plain or compressed (`.gz`), and parquet.

Values are not converted: a library that guesses types would change the text "None" or the id
"2020-01-01". Only a line feed ends a line, because a passage may contain separators such as U+2028.
"""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

_JSON_CHUNK = 1 << 22  # characters
_STSB_COLUMNS = ("genre", "file", "year", "number", "score", "sentence1", "sentence2")


def find_file(folder: Path, *names: str) -> Path | None:
    """Return the first of the named files in a folder, as `name` or as `name.gz`."""
    paths = (folder / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def need_file(folder: Path, *names: str) -> Path:
    """Like `find_file`, but raise FileNotFoundError if there is none."""
    file = find_file(folder, *names)
    if file is None:
        raise FileNotFoundError(
            f"{folder} has no {' or '.join(names)} (or .gz); it holds {list_names(folder)}."
        )
    return file


def list_names(folder: Path) -> str:
    """List the first file names of a folder, for error messages."""
    return ", ".join(sorted(path.name for path in folder.glob("*"))[:12]) or "nothing"


def plain_name(path: Path) -> str:
    """Return the name of a file without `.gz`."""
    return path.name.removesuffix(".gz")


@contextmanager
def _open_text(path: Path, newline: str = "\n") -> Iterator[IO[str]]:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline=newline) as file:
            yield file
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): expected UTF-8 text, or a complete gzip file."
        ) from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read the lines that are not empty, with their numbers, from 1."""
    with _open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if text := line.removesuffix("\n").removesuffix("\r"):
                yield number, text


def read_table(
    path: Path, columns: Sequence[str] | None = None, *, delimiter: str = "\t", quoted: bool = False
) -> Iterator[dict[str, str]]:
    """Read the rows of a table whose columns are named here or in the first line.

    If `quoted` is true, fields are quoted as by the csv module; otherwise quotes are text.
    """
    csv.field_size_limit(2**31 - 1)
    with _open_text(path, newline="" if quoted else "\n") as stream:
        split_lines = (line.rstrip("\r\n").split(delimiter) for line in stream)
        rows = csv.reader(stream, delimiter=delimiter) if quoted else split_lines
        for number, fields in enumerate(filter(any, rows), start=1):
            if columns is None:
                columns = fields
            elif len(fields) == len(columns):
                yield dict(zip(columns, fields, strict=True))
            else:
                raise ValueError(
                    f"{path}: row {number} has {len(fields)} fields, expected {len(columns)} "
                    f"({', '.join(columns)})."
                )


def read_json(path: Path) -> Iterator[dict[str, Any]]:
    """Read the objects of a file of lines, or of one array."""
    with _open_text(path) as stream:
        is_array = stream.read(_JSON_CHUNK).lstrip().startswith("[")
    for number, value in enumerate(_read_array(path) if is_array else _read_json_lines(path), 1):
        if not isinstance(value, dict):
            raise ValueError(f"{path}: item {number}, {value!r:.80}, is not a JSON object.")
        yield value


def _read_array(path: Path) -> Iterator[Any]:
    """Read the items of a JSON array one by one: DPR's file for Natural Questions has 8 GB."""
    decoder, separators = json.JSONDecoder(), re.compile(r"[,\s]*")
    with _open_text(path) as stream:
        text = stream.read(_JSON_CHUNK).lstrip()
        place = 1
        while True:
            place = separators.match(text, place).end()  # type: ignore[union-attr]
            try:
                item, place = decoder.raw_decode(text, place)
                yield item
            except json.JSONDecodeError as error:
                if text.startswith("]", place):
                    return
                more = stream.read(_JSON_CHUNK)
                if not more:
                    raise ValueError(f"{path} is not a JSON array ({error}).") from None
                text, place = text[place:] + more, 0


def _read_json_lines(path: Path) -> Iterator[Any]:
    for number, line in read_lines(path):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {line!r:.80} is not JSON ({error}).") from None


def read_rows(file: Path, columns: Sequence[str] | None = None) -> Iterable[dict[str, Any]]:
    """Read the rows of a file one by one: .jsonl, .json, .tsv, .csv (also with .gz) or .parquet.

    `columns` names the columns of a table without a header. A .csv file of the STS benchmark (Cer
    et al. 2017) is recognised: it has tabs and no header, and quotes are text.
    """
    match Path(plain_name(file)).suffix.lower():
        case ".tsv":
            return read_table(file, columns)
        case ".csv":
            _, first = next(read_lines(file), (1, ""))
            if first.count("\t") < len(_STSB_COLUMNS) - 1:
                return read_table(file, columns, delimiter=",", quoted=True)
            lines = (line.split("\t") for _, line in read_lines(file))
            return (dict(zip(_STSB_COLUMNS, fields, strict=False)) for fields in lines)
        case ".json" | ".jsonl":
            return read_json(file)
        case ".parquet":
            try:
                batches = pq.ParquetFile(file).iter_batches()
            except pa.ArrowInvalid as error:
                raise ValueError(f"{file} is not a parquet file ({error}).") from None
            return chain.from_iterable(batch.to_pylist() for batch in batches)
    raise ValueError(f"{file}: expected a file of type .jsonl, .json, .tsv, .csv or .parquet.")
