"""Reads lines, tables and JSON, plain or compressed (.gz, .bz2, .xz, .zst), and parquet.

Values are not converted: a library that guesses types would change the text "None" or the id
"2020-01-01". Only a line feed ends a line, because a passage may contain separators such as U+2028.
"""

import bz2
import csv
import glob
import gzip
import io
import json
import logging
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from charset_normalizer import from_bytes, is_binary
from charset_normalizer.utils import any_specified_encoding
from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetsError

logger = logging.getLogger(__name__)

_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda path: pa.input_stream(str(path), compression="zstd"),
}
_JSON_CHUNK = 1 << 22  # characters
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half of a character beyond U+FFFF, or both halves
_PARQUET_ROWS = 256  # in memory
_LONGEST_ROW = 1 << 20  # characters of a row that spans lines
_QUOTED = r'"(?:[^"]|"")*+"'
_QUOTED_ROW = re.compile(rf"{_QUOTED}(\t{_QUOTED})+")
_ROW = re.compile(rf'({_QUOTED}|[^"\t]*)(\t({_QUOTED}|[^"\t]*))*')
# Among all encodings, Western European text is often mistaken for cp1250 and Big5 for Johab.
_USUAL_ENCODINGS = (
    "utf_8 utf_16 utf_16_le utf_16_be utf_32 cp1252 gb18030 big5 cp932 euc_jp euc_kr cp1251 koi8_r "
    "cp1253 cp1254 cp1255 cp1256 cp874"
).split()
_TABLE_STYLES: tuple[dict[str, Any], ...] = (
    {"strict": True},
    {"strict": True, "skipinitialspace": True},
    {"strict": True, "escapechar": "\\", "doublequote": False},
    {"quoting": csv.QUOTE_NONE},
    {},
)
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
    """Return the name of a file without the ending of its compression."""
    return path.stem if path.suffix.lower() in _OPENERS else path.name


def plain_ending(path: Path) -> str:
    """Return the ending of `plain_name`, in lower case."""
    return Path(plain_name(path)).suffix.lower()


def match_paths(name: str | Path) -> list[Path]:
    """Return the path of this name, or if there is none, the paths that match it as a pattern."""
    path = Path(name)
    return [path] if path.exists() else sorted(map(Path, glob.glob(str(name), recursive=True)))


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    try:
        with _OPENERS.get(path.suffix.lower(), lambda path: path.open("rb"))(path) as file:
            yield file
    except (UnicodeDecodeError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the system's, such as a missing file
            raise
        raise ValueError(
            f"{path} cannot be read ({error}): expected UTF-8 text, or a complete compressed file."
        ) from error


@contextmanager
def _open_text(path: Path, newline: str = "\n") -> Iterator[IO[str]]:
    with _open(path) as file:
        yield io.TextIOWrapper(file, encoding="utf-8-sig", newline=newline)


def decode_file(path: Path, encoding: str | None = None) -> tuple[str, str]:
    """Read a text of any encoding: its text, with line feeds, and the name of the encoding.

    It is UTF-8, or `encoding`, or what the text states (HTML, XML), or what charset-normalizer
    finds. A ValueError is raised if there is no such encoding.
    """
    with _open(path) as file:
        data = file.read()
    for name in filter(None, ("utf-8-sig", encoding or any_specified_encoding(data))):
        with suppress(UnicodeDecodeError):
            if "\0" not in (text := data.decode(name)):
                return _with_line_feeds(text), name.removesuffix("-sig")
    found = None
    if not is_binary(data):
        found = from_bytes(data, cp_isolation=_USUAL_ENCODINGS).best() or from_bytes(data).best()
    if found is None:
        raise ValueError(f"{path} is not text of a known encoding.")
    return _with_line_feeds(str(found)), found.encoding


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_table(text: str) -> tuple[list[dict[str, str]], int]:
    """Parse a table with a header, whichever of , ; | or tab separates it, however it is quoted.

    Returns:
        The rows, of which short ones lack the last columns; and the number of those left out,
        because they have more fields than the header.
    """
    csv.field_size_limit(2**31 - 1)
    delimiter = max("\t,;|", key=text.lstrip("\n").partition("\n")[0].count)
    readings = []
    for style in _TABLE_STYLES:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, **style)
        try:
            rows = [row for row in reader if any(row)]
        except csv.Error:
            continue
        n_ragged = sum(len(row) != len(rows[0]) for row in rows)
        readings.append((n_ragged, rows))
        if not n_ragged:
            break
    _, rows = min(readings, key=itemgetter(0))
    columns, rows = (rows[0], rows[1:]) if rows else ([], [])
    fitting = [dict(zip(columns, row, strict=False)) for row in rows if len(row) <= len(columns)]
    return fitting, len(rows) - len(fitting)


def read_any_rows(
    file: Path, encoding: str | None = None
) -> tuple[Iterable[dict[str, Any]], int, str]:
    """Read a table with a header whoever wrote it, or JSON or parquet as `read_rows` does.

    Returns:
        The rows, the number of rows that were left out (`parse_table`), and the encoding.
    """
    if plain_ending(file) not in (".csv", ".tsv"):
        return read_rows(file), 0, "utf-8"
    text, found = decode_file(file, encoding)
    return *parse_table(text), found


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read the lines that are not empty, with their numbers, from 1."""
    with _open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if text := line.removesuffix("\n").removesuffix("\r"):
                yield number, text


def read_table(
    path: Path,
    columns: Sequence[str] | None = None,
    *,
    delimiter: str = "\t",
    quoted: bool | None = False,
) -> Iterator[dict[str, str]]:
    """Read the rows of a table whose columns are named here or in the first line.

    If `quoted` is true, fields are quoted as by the csv module; if it is false, quotes are text. If
    it is None, the first row decides that only one of these explains.
    """
    csv.field_size_limit(2**31 - 1)
    if quoted is None:
        quoted = _is_quoted(path)
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


def _is_quoted(path: Path) -> bool:
    """Whether the fields of a table with tabs are quoted as the csv module and pandas do."""
    row, is_open, n_tabs = "", False, None
    with _open_text(path) as stream:
        for line in stream:
            row += line
            n_tabs = line.count("\t") if n_tabs is None else n_tabs
            is_open ^= line.count('"') % 2 == 1
            if is_open and len(row) < _LONGEST_ROW:
                continue  # a quoted field may span lines
            if '"' in row:
                row = row.rstrip("\r\n")
                if not _ROW.fullmatch(row):
                    return False
                is_ragged = row.count("\t") != n_tabs * (1 + row.count("\n"))
                if '""' in row or is_ragged or _QUOTED_ROW.fullmatch(row):
                    return True
            row, is_open = "", False
    return False


def read_json(path: Path) -> Iterator[dict[str, Any]]:
    """Read the objects of a file of lines, or of one array.

    A lone surrogate (half of a character, as in \\ud83d) becomes U+FFFD, with a warning.
    """
    with _open_text(path) as stream:
        is_array = stream.read(_JSON_CHUNK).lstrip().startswith("[")
    n_replaced = 0
    items = _read_array(path) if is_array else _read_json_lines(path)
    for number, (text, value) in enumerate(items, 1):
        if not isinstance(value, dict):
            raise ValueError(f"{path}: item {number}, {value!r:.80}, is not a JSON object.")
        if _SURROGATE.search(text):
            whole = json.loads(join_halves(json.dumps(value, ensure_ascii=False)))
            n_replaced += whole != value
            value = whole
        yield value
    if n_replaced:
        logger.warning("%s: replaced halves of characters in %d items by U+FFFD", path, n_replaced)


def join_halves(text: str) -> str:
    """Join the halves of characters (surrogates), which no file can hold; lone ones are U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_array(path: Path) -> Iterator[tuple[str, Any]]:
    """Read the items of a JSON array one by one: DPR's file for Natural Questions has 8 GB.

    Yields:
        The text of an item, and its value.
    """
    decoder, separators = json.JSONDecoder(), re.compile(r"[,\s]*")
    with _open_text(path) as stream:
        text = stream.read(_JSON_CHUNK).lstrip()
        place = 1
        while True:
            place = separators.match(text, place).end()  # type: ignore[union-attr]
            try:
                item, end = decoder.raw_decode(text, place)
                yield text[place:end], item
                place = end
            except json.JSONDecodeError as error:
                if text.startswith("]", place):
                    return
                more = stream.read(_JSON_CHUNK)
                if not more:
                    raise ValueError(f"{path} is not a JSON array ({error}).") from None
                text, place = text[place:] + more, 0


def _read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in read_lines(path):
        try:
            yield line, json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {line!r:.80} is not JSON ({error}).") from None


def load_hub_rows(
    name: str, configuration: str | None, *, split: str, revision: str | None
) -> Dataset:
    """Load a data set of the Hub; a FileNotFoundError if it cannot be loaded."""
    try:
        return load_dataset(name, configuration, split=split, revision=revision)
    except (OSError, ValueError, DatasetsError) as error:
        raise FileNotFoundError(
            f"There is no file or folder {name!r}, and the Hub data set of that name could not be "
            f"loaded: {error.__cause__ or error}"
        ) from error


def _read_text_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read each line, also an empty one, as the column `text` of a row."""
    with _open_text(path) as file:
        for line in file:
            yield {"text": line.removesuffix("\n").removesuffix("\r")}


def read_rows(
    file: Path, columns: Sequence[str] | None = None, *, needed: str | None = None
) -> Iterable[dict[str, Any]]:
    """Read the rows of a file one by one: .jsonl, .json, .tsv, .csv, .txt or .parquet.

    All but parquet may be compressed. A .csv file of the STS benchmark (Cer et al. 2017) is
    recognised: it has tabs and no header, and quotes are text.

    Args:
        file: its ending says what it holds.
        columns: names of the columns of a table without a header.
        needed: the only column that the caller uses; others may be missing from the rows.
    """
    match plain_ending(file):
        case ".txt":
            return _read_text_rows(file)
        case ".tsv":
            return read_table(file, columns, quoted=None)
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
                table = pq.ParquetFile(file)
            except pa.ArrowInvalid as error:
                raise ValueError(f"{file} is not a parquet file ({error}).") from None
            names = [needed] if needed in table.schema_arrow.names else None
            batches = table.iter_batches(batch_size=_PARQUET_ROWS, columns=names)
            return chain.from_iterable(batch.to_pylist() for batch in batches)
    raise ValueError(
        f"{file}: expected a file of type .jsonl, .json, .tsv, .csv, .txt or .parquet."
    )
