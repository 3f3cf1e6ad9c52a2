"""Reads rows of files, plain or compressed (.gz, .bz2, .xz, .zst), and stores rows in a cache.

Values stay as they are written, and the rows before a broken line are read.
`load_dataset("json")` makes a time of the id "2020-01-01" even if its features call it text, and
refuses half a character, and rows with columns that the features lack. pandas' `read_csv`, on which
`load_dataset("csv")` builds, fills short rows, renames repeated columns, and ends a line at a
carriage return. An array of JSON is read item by item, because DPR's have gigabytes.
"""

import bz2
import csv
import glob
import gzip
import hashlib
import io
import json
import logging
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, load_dataset
from datasets.exceptions import DatasetGenerationError, DatasetsError

logger = logging.getLogger(__name__)

_OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda path: pa.input_stream(str(path), compression="zstd"),
}
_UTF8 = "utf-8-sig"
_JSON = json.JSONDecoder(parse_constant=lambda name: None)  # NaN and Infinity
_JSON_CHUNK = 1 << 16  # characters
_BETWEEN_VALUES = re.compile(r"[,\s]*")
_LONGEST_WORD = len(r"\ud83d\ude00") + 1  # that an end of a chunk makes an error of
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half of a character beyond U+FFFF, or both halves
_PARQUET_ROWS = 256  # in memory
_BATCH_ROWS = 8192  # of a fingerprint, which depends on it
_OF_EXCEL = ["sep=", ""]  # a line above the columns, which names the separator
_CSV_SAMPLE = 1 << 16  # characters
_STSB_LINE = re.compile(r"([^\t]*\t){4}[\d.]+\t[^\t]*\t")  # the fifth column is a score
_STSB_COLUMNS = ("genre", "file", "year", "number", "score", "sentence1", "sentence2")


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
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, which may be compressed; damaged content is a ValueError that names the file."""
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
def _open_text(
    path: Path, *, newline: str = "\n", encoding: str | None = None
) -> Iterator[IO[str]]:
    # `decode_file` has chosen another encoding, perhaps in spite of a few bad bytes.
    errors = "replace" if encoding else "strict"
    with open_bytes(path) as file:
        yield io.TextIOWrapper(file, encoding=encoding or _UTF8, errors=errors, newline=newline)


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
    quoted: bool = False,
    encoding: str | None = None,
    is_padded: bool = False,
) -> Iterator[dict[str, str]]:
    """Read the rows of a table whose columns are named here or in the first line.

    Fields are quoted as by the csv module, or quotes are text. Short rows are refused, unless the
    table `is_padded`: then their last fields are empty, as Excel writes them.
    """
    csv.field_size_limit(2**31 - 1)
    is_short = False
    with _open_text(path, newline="" if quoted else "\n", encoding=encoding) as stream:
        split_lines = (line.rstrip("\r\n").split(delimiter) for line in stream)
        rows = csv.reader(stream, delimiter=delimiter) if quoted else split_lines
        for number, fields in enumerate(filter(any, rows), start=1):
            if columns is None:
                if fields != _OF_EXCEL:
                    columns = [field.strip() for field in fields]
                    _refuse_repeated(path, columns)
            elif len(fields) == len(columns) or (is_padded and len(fields) < len(columns)):
                if len(fields) < len(columns) and not is_short:
                    is_short = True
                    logger.warning(
                        "%s: row %d has %d fields of %d; the last of such rows count as empty.",
                        *(path, number, len(fields), len(columns)),
                    )
                fields += [""] * (len(columns) - len(fields))
                yield dict(zip(columns, fields, strict=True))
            else:
                raise ValueError(
                    f"{path}: row {number} has {len(fields)} fields, expected {len(columns)} "
                    f"({', '.join(columns)})."
                )


def _refuse_repeated(path: Path, columns: Sequence[str]) -> None:
    if repeated := sorted({name for name in columns if name and columns.count(name) > 1}):
        raise ValueError(f"{path} has several columns {repeated[0]!r}: rename all but one.")


def read_json(path: Path, encoding: str | None = None) -> Iterator[dict[str, Any]]:
    """Read the objects of a file: one in each line, one after another, or those of one array.

    NaN, which is not JSON, becomes null; half of a character (as in \\ud83d) becomes U+FFFD.
    """
    for number, (text, value) in enumerate(_read_values(path, encoding), 1):
        if not isinstance(value, dict):
            raise ValueError(f"{path}: item {number}, {value!r:.80}, is not a JSON object.")
        if _SURROGATE.search(text):
            value = json.loads(join_halves(json.dumps(value, ensure_ascii=False)))
        yield value


def join_halves(text: str) -> str:
    """Join the halves of characters (surrogates), which no file can hold; lone ones are U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_values(path: Path, encoding: str | None) -> Iterator[tuple[str, Any]]:
    """Read the values of a file, or of the array in it; DPR's for Natural Questions has 8 GB.

    Yields:
        The text of a value, and the value.
    """
    with _open_text(path, encoding=encoding) as stream:
        text = stream.read(_JSON_CHUNK)
        start = len(text) - len(text.lstrip())
        is_array = text.startswith("[", start)
        place, line = start + is_array, 1
        while True:
            place = _BETWEEN_VALUES.match(text, place).end()  # type: ignore[union-attr]
            try:
                value, end = _JSON.raw_decode(text, place)
                yield text[place:end], value
                place = end
            except json.JSONDecodeError as error:
                if is_array and text.startswith("]", place):
                    return
                line += text.count("\n", 0, place)
                text, place = text[place:], 0
                # Longer pieces each time, because a value is decoded from its beginning again.
                more = stream.read(_JSON_CHUNK + len(text)) if _is_cut(error) else ""
                if not (more or text or is_array):
                    return
                if not more:
                    broken = text.partition("\n")[0]
                    raise ValueError(
                        f"{path}:{line}: {broken!r:.80} is not JSON ({error.msg}): expected "
                        "objects, or one array of objects."
                    ) from None
                text += more


def _is_cut(error: json.JSONDecodeError) -> bool:
    """Whether a value may be decoded if more of the text is read, which ends in it."""
    is_at_end = error.pos > len(error.doc) - _LONGEST_WORD
    return is_at_end or error.msg.startswith("Unterminated string")


def _read_parquet(path: Path, needed: str | None) -> Iterator[dict[str, Any]]:
    try:
        table = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is not a parquet file ({error}).") from None
    names = table.schema_arrow.names
    _refuse_repeated(path, names)
    columns = [needed] if needed in names else None
    for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=columns):
        yield from batch.to_pylist()


def _read_csv(path: Path, encoding: str | None, is_padded: bool) -> Iterator[dict[str, str]]:
    """Read a table, whose separator is found out.

    A file of the STS benchmark (Cer et al. 2017) has tabs and no header, and quotes are text.
    """
    with _open_text(path, newline="", encoding=encoding) as stream:
        beginning = stream.read(_CSV_SAMPLE)
    if _STSB_LINE.match(beginning.partition("\n")[0]):
        for _, line in read_lines(path):
            yield dict(zip(_STSB_COLUMNS, line.split("\t"), strict=False))
        return
    yield from read_table(
        path,
        delimiter=_find_delimiter(beginning),
        quoted=True,
        encoding=encoding,
        is_padded=is_padded,
    )


def _find_delimiter(beginning: str) -> str:
    """Find the separator with which most records have as many fields as the first, and none more.

    If there is none, it is that which the first line has most often.
    """
    csv.field_size_limit(2**31 - 1)
    fits = {}  # the share of records with all fields, and the number of fields
    for delimiter in ",;\t|":
        rows = list(csv.reader(io.StringIO(beginning, newline=""), delimiter=delimiter))
        if len(beginning) == _CSV_SAMPLE:
            rows.pop()  # which may be cut
        lengths = [len(row) for row in rows if any(row) and row != _OF_EXCEL] or [1]
        most = max(lengths)
        has_all = most > 1 and lengths[0] == most
        fits[delimiter] = (lengths.count(most) / len(lengths), most) if has_all else (0.0, 1)
    first = beginning.splitlines()[:1]
    candidates = [each for each, fit in fits.items() if fit == max(fits.values())]
    return max(candidates, key="".join(first).count)


def _read_text_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read each line, also an empty one, as the column `text` of a row."""
    with _open_text(path) as file:
        for line in file:
            yield {"text": line.removesuffix("\n").removesuffix("\r")}


def read_rows(
    file: Path,
    *,
    needed: str | None = None,
    encoding: str | None = None,
    is_padded: bool = False,
) -> Iterable[dict[str, Any]]:
    """Read the rows of a file one by one: .jsonl, .json, .tsv, .csv, .txt or .parquet.

    All but parquet may be compressed. Quotes are text in .tsv files.

    Args:
        file: its ending says what it holds.
        needed: the only column that the caller uses; others may be missing from the rows.
        encoding: of all but .txt and .parquet files.
        is_padded: whether short rows of .csv and .tsv files have empty fields at their end.
    """
    match plain_ending(file):
        case ".txt":
            return _read_text_rows(file)
        case ".tsv":
            return read_table(file, encoding=encoding, is_padded=is_padded)
        case ".csv":
            return _read_csv(file, encoding, is_padded)
        case ".json" | ".jsonl":
            return read_json(file, encoding)
        case ".parquet":
            return _read_parquet(file, needed)
    raise ValueError(
        f"{file}: expected a file of type .jsonl, .json, .tsv, .csv, .txt or .parquet."
    )


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


def store_rows(
    make_rows: Callable[[], Iterable[Mapping[str, Any]]],
    features: Mapping[str, Any],
    *,
    identity: Iterable[str],
    batch_rows: int = 1000,
) -> Dataset:
    """Store rows in the cache of `datasets`, or open rows that were stored with this identity.

    The identity must contain everything that the rows depend on. Memory holds `batch_rows` rows.
    """
    text = "\0".join([str(features), *identity])
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    try:
        return Dataset.from_generator(
            make_rows,
            features=Features(features),
            fingerprint=f"condenser-{digest[:32]}",
            writer_batch_size=batch_rows,
        )
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None


def fingerprint_rows(table: Dataset) -> str:
    """Return the SHA-256 of a table's values, whatever files they come from."""
    digest = hashlib.sha256(b"condenser rows 2")
    for batch in table.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        digest.update(json.dumps(batch.to_pydict()).encode())
    return digest.hexdigest()


def iterate_rows(table: Dataset) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a data set; reading in batches is many times as fast."""
    for batch in table.with_format("arrow").iter(batch_size=1000):
        yield from batch.to_pylist()


def file_states(files: Iterable[Path]) -> list[str]:
    """Identify the content of files by paths, sizes and modification times."""
    stats = [(file.resolve(), file.stat()) for file in files]
    return [f"{file}: {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats]
