"""Writes files atomically, under a temporary name in the same folder, and reads JSON."""

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
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
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def checksum_file(file: Path) -> str:
    """SHA-256 of a file's content, 64 hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
