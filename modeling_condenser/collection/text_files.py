"""Text files, read strictly: a path in; numbered lines, their fields or JSON objects out.

Every layout of a collection is read through here, so that whatever is wrong with a file is said
with its name and line. A line ends at a line feed and nowhere else, since a passage may hold any
other character that ends lines for Python. Quotes mean nothing. `.gz` files are read as their
content.
"""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def find_file(folder: Path, *names: str) -> Path | None:
    """The first of the named files that a folder holds, as it is or with `.gz` behind its name."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def plain_name(path: Path) -> str:
    """The name of a file without `.gz`."""
    return path.name.removesuffix(".gz")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read the lines of a file, numbered from 1, without their ends; empty ones are passed over.

    Raises:
        ValueError: a line is not UTF-8, or the file is not what its `.gz` promises.
    """
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                text = line.removesuffix(b"\n").removesuffix(b"\r").decode()
                if text:
                    yield number, text
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}:{number}: byte 0x{error.object[error.start]:02x} at {error.start + 1} is not"
            " UTF-8, expected a file in UTF-8: convert it (iconv -f latin1 -t utf-8)"
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged behind line {number} ({error}), expected a whole gzip file: fetch"
            " it again"
        ) from error


def read_fields(
    path: Path, *, n: int | Collection[int], what: str
) -> Iterator[tuple[int, list[str]]]:
    """Split each line of a file at its tabs.

    Args:
        path: the file.
        n: how many fields a line must have. Of several numbers the first line chooses one.
        what: the fields, in words, for errors.

    Raises:
        ValueError: a line with another number of fields; see also `read_lines`.
    """
    allowed = (n,) if isinstance(n, int) else tuple(n)
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) not in allowed:
            raise ValueError(
                f"{path}:{number}: {len(fields)} fields between tabs, expected"
                f" {' or '.join(map(str, allowed))} ({what}): mend the line"
            )
        allowed = (len(fields),)
        yield number, fields


def read_objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Read the JSON objects of a file, one a line.

    Raises:
        ValueError: a line that is not a JSON object, or not Unicode; see also `read_lines`.
    """
    for number, line in read_lines(path):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path}:{number}: not JSON ({error.msg} at {error.colno}), expected one object a"
                " line: mend the line"
            ) from error
        if not isinstance(record, dict):
            raise ValueError(
                f"{path}:{number}: a JSON {type(record).__name__}, expected one object a line, as"
                ' {"_id": ...}: mend the line'
            )
        if _ESCAPED_SURROGATE.search(line):
            _check_unicode(record, place=f"{path}:{number}")
        yield number, record


def _check_unicode(record: Mapping[str, Any], *, place: str) -> None:
    # JSON can spell half of a character (\ud83d), which no tokenizer and no file can take.
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place}: holds half of a surrogate pair ({error.object[error.start]!r}), expected"
            " whole characters: mend the line"
        ) from error
