"""Reads text files line by line: plain or tab-separated, also compressed as `.gz`.

Lines end at a line feed only, since a passage may hold other separators such as U+2028.
"""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


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
    """The first file names of a folder, for errors."""
    return ", ".join(sorted(path.name for path in folder.glob("*"))[:12]) or "nothing"


def plain_name(path: Path) -> str:
    """The name of a file without `.gz`."""
    return path.name.removesuffix(".gz")


@contextmanager
def open_text(path: Path, *, newline: str = "\n") -> Iterator[IO[str]]:
    """Open a UTF-8 file, plain or compressed; `newline` is that of `open`."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline=newline) as file:
            yield file
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): expected UTF-8 text, or a complete gzip file."
        ) from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read lines, numbered from 1, without their ends; empty lines are skipped."""
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if text := line.removesuffix("\n").removesuffix("\r"):
                yield number, text


def read_fields(path: Path, *, n: int, what: str) -> Iterator[list[str]]:
    """Split each line at its tabs into `n` fields; `what` describes them, for errors."""
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) != n:
            raise ValueError(
                f"{path}:{number}: {len(fields)} fields between tabs, expected {n} ({what})."
            )
        yield fields
