"""Claims: which process works on which shard.

Several processes may fill one folder at once, started together or by mistake. Each claims a shard
before it touches its files, by a lock of the system on one byte of a file. The system itself ends
the claims of a process that dies, however it dies, so that there are no stale ones to recognise.

On a network file system these locks hold across machines where it supports them (NFS 4, GPFS,
Lustre with `flock`). Where it silently keeps them to one machine, two runs on two machines would do
the same work twice; files stay whole even then, because each process writes under names of its own.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

CLAIMS_FILE = ".claims"
_HELD = (errno.EACCES, errno.EAGAIN)


class Claims:
    """The claims of this process in a folder; a context manager.

    Claims are between processes: two threads of one process do not see each other's, and a process
    may open those of a folder only once at a time.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / CLAIMS_FILE
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    @contextmanager
    def of_folder(self) -> Iterator[None]:
        """Hold manifest and ids; waits until no other process does."""
        self._lock(fcntl.LOCK_EX, 0)
        try:
            yield
        finally:
            self._lock(fcntl.LOCK_UN, 0)

    @contextmanager
    def of_shard(self, shard: int) -> Iterator[bool]:
        """Try to hold a shard: yields False at once if another process does."""
        is_mine = self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB, 1 + shard)
        try:
            yield is_mine
        finally:
            if is_mine:
                self._lock(fcntl.LOCK_UN, 1 + shard)

    def _lock(self, kind: int, place: int) -> bool:
        try:
            fcntl.lockf(self._descriptor, kind, 1, place)
        except OSError as error:
            if error.errno in _HELD:
                return False
            raise OSError(
                error.errno,
                f"{error.strerror}: the file system of {self._file.parent} has no file "
                "locks, which keep two processes from the same work. Encode into a folder on "
                "another file system, or mount this one with locks.",
            ) from error
        return True
