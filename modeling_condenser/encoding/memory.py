"""Peak memory of this process while something runs.

Pages of files that are mapped into memory do not count: passages and vectors are read through such
pages, which the system takes back when it needs them.
"""

import resource
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_STATUS = Path("/proc/self/status")
_INTERVAL = 0.05  # seconds


class PeakMemory:
    """Samples resident memory in a thread; a context manager."""

    def __init__(self) -> None:
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def so_far(self) -> int:
        """Bytes, the most since the block began."""
        self._peak = max(self._peak, resident_bytes())
        return self._peak

    def _sample(self) -> None:
        while not self._ended.wait(_INTERVAL):
            self._peak = max(self._peak, resident_bytes())


def resident_bytes() -> int:
    """Memory of this process without mapped files; its peak so far where there is no /proc."""
    try:
        status = _STATUS.read_text()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    kilobytes = {
        line.split(":")[0]: line.split()[1] for line in status.splitlines() if "kB" in line
    }
    return 1024 * (int(kilobytes["RssAnon"]) + int(kilobytes["RssShmem"]))


def peak_accelerator_bytes(device: str) -> int | None:
    """What torch held on a GPU at most, in this process; None for another device."""
    if not device.startswith("cuda"):
        return None
    import torch

    return int(torch.cuda.max_memory_allocated(device))


def available_bytes() -> int | None:
    """Memory that new processes can have; None where there is no /proc."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
