"""Writes files atomically: under a temporary name beside their place, then renamed.

So a file that has its name is complete, even if a process was killed or a disk was full.
"""

import errno
import hashlib
import io
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file atomically; a failed block leaves no file, or the old one.

    Each process has a temporary name of its own, so that two of them do not mix their bytes.

    Raises:
        OSError: the file cannot be written; the message of a full disk names the file.
    """
    partial = path.with_name(partial_name(path.name))
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        free = shutil.disk_usage(path.parent).free
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno)}: {path} cannot be written, {free:,} bytes are free. "
            "Finished files stay valid: make space, and run the same command again.",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def partial_name(name: str) -> str:
    """The name of a file while this process writes it."""
    return f".{name}.{socket.gethostname()}-{os.getpid()}.partial"


def is_partial(file: Path) -> bool:
    """Whether a file is being written, or was left by a killed process."""
    return file.name.startswith(".") and file.name.endswith(".partial")


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The header of a .npy file."""
    header = io.BytesIO()
    described = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        header, {"descr": described, "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def link_or_copy(source: Path, target: Path) -> None:
    """Create a hard link to a file, or a copy where links are not supported.

    Neither file may be written to afterwards, only replaced.
    """
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def checksum_file(file: Path) -> str:
    """SHA-256 of a file's content, 64 hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remove_partials(folder: Path, name: str) -> None:
    """Remove temporary files that killed processes left; no process may be writing the file."""
    for partial in folder.glob(f".{name}.*.partial"):
        partial.unlink(missing_ok=True)
