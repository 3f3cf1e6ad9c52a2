"""Writes files and folders beside their place, then renames them; reads and writes JSON."""

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file atomically; a failed block leaves no file, or the old one."""
    partial = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Write a folder atomically: yield a new folder, which replaces it if the block succeeds."""
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file: name a folder.")
    if folder.name in ("", ".."):
        raise ValueError(f"{folder} would be replaced as a whole: name a new folder in it.")
    folder = folder.resolve()  # a link stays one
    partial = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed process
    partial.mkdir(parents=True)
    try:
        yield partial
        _replace_folder(folder, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace_folder(folder: Path, new: Path) -> None:
    """Move a complete folder to the place of an earlier one, which is removed."""
    earlier = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        shutil.rmtree(earlier, ignore_errors=True)
        folder.replace(earlier)
    try:
        new.replace(folder)
    except OSError:
        if earlier.exists():
            earlier.replace(folder)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


def read_json(file: Path, otherwise: Any) -> Any:
    """The content of a JSON file; `otherwise` if there is no such file."""
    if not file.is_file():
        return otherwise
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}.") from error


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    with atomic_file(path) as file:
        file.write((json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def checksum_file(file: Path) -> str:
    """SHA-256 of a file's content, 64 hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
