"""Files that are whole or absent: written beside their place, to the disk, then renamed.

A process can be killed, and a disk can fill, in the middle of writing. What has its name is whole.
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
    """Write a file whole or not at all: beside its place, to the disk, then renamed.

    The name beside it is this process's own, so that two of them cannot mix their bytes.

    Raises:
        OSError: it cannot be written. That no space is left is said with the number of bytes free.
    """
    partial = path.with_name(partial_name(path.name))
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        if error.errno in _NO_SPACE:
            free = shutil.disk_usage(path.parent).free
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno)}: {path} cannot be written, {free:,} bytes are free. "
                "All that was finished before stays valid: make space, and run the same command "
                "again to go on.",
            ) from error
        raise
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def partial_name(name: str) -> str:
    """What a file is called while this process writes it."""
    return f".{name}.{socket.gethostname()}-{os.getpid()}.partial"


def is_partial(file: Path) -> bool:
    """Whether a file is one that is being written, or was when its process was killed."""
    return file.name.startswith(".") and file.name.endswith(".partial")


def write_json(path: Path, content: object) -> None:
    """Write a JSON file whole or not at all."""
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    header = io.BytesIO()
    described = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        header, {"descr": described, "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, which it keeps when the first goes; copy it where that cannot be.

    The file must not be written to afterwards, but only replaced.
    """
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def checksum_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remove_partials(folder: Path, name: str) -> None:
    """Remove what killed processes left of a file that no living one is writing."""
    for partial in folder.glob(f".{name}.*.partial"):
        partial.unlink(missing_ok=True)
