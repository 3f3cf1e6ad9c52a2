"""The faults that a test orders from the loopback Hub: an error status, a cut line, changed bytes.

In go orders (`fail_next`, `cut_next`, `corrupt_next`), each for the next so many requests that
match a method and a regular expression on the path; the request handler asks for what is due.
"""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["fail", "cut request", "cut response", "corrupt"]


@dataclass
class Fault:
    """One order: what goes wrong, for which requests, and how many times more."""

    kind: Kind
    method: str
    path_regex: str
    times: int
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    after_bytes: int = 0

    def fits(self, method: str, path: str) -> bool:
        """Whether the request is one of those meant; `*` stands for any method."""
        return (
            self.times > 0
            and self.method in ("*", method)
            and re.search(self.path_regex, path) is not None
        )


class Faults:
    """The orders still open. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._open: list[Fault] = []
        self._lock = threading.Lock()

    def order(self, fault: Fault) -> None:
        """Takes an order; orders that fit one request are served one after the other."""
        with self._lock:
            self._open.append(fault)

    def take(self, kind: Kind, method: str, path: str) -> Fault | None:
        """The first open order of a kind that fits the request, with one of its times used up."""
        with self._lock:
            for fault in self._open:
                if fault.kind == kind and fault.fits(method, path):
                    fault.times -= 1
                    return fault
        return None

    def left(self) -> int:
        """How many ordered faults have not happened; 0 once all did."""
        with self._lock:
            return sum(fault.times for fault in self._open)

    def clear(self) -> None:
        """Withdraws all orders."""
        with self._lock:
            self._open.clear()


def changed(content: bytes) -> bytes:
    """As many bytes as came, the middle one another."""
    if not content:
        return content
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
