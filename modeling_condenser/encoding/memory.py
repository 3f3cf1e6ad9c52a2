"""Peak memory of this process while a block of code runs.

Pages of mapped files do not count, because the system can drop them at any time: passages and
vectors are read through such pages.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

_INTERVAL = 0.05  # seconds


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Sample memory in a thread; yields a function that returns the peak so far, in bytes."""
    samples = [resident_bytes()]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(_INTERVAL):
            samples[0] = max(samples[0], resident_bytes())

    thread = threading.Thread(target=sample, name="peak-memory", daemon=True)
    thread.start()
    try:
        yield lambda: max(samples[0], resident_bytes())
    finally:
        ended.set()
        thread.join()


def resident_bytes() -> int:
    """Resident memory of this process, without mapped files where the system tells (Linux)."""
    memory = psutil.Process().memory_info()
    return memory.rss - getattr(memory, "shared", 0)
