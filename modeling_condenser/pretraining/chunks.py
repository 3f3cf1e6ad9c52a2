"""Bound the text that is held and tokenized at once by its characters.

Texts differ in length by a factor of a million, so a fixed number of them bounds nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from datasets import Dataset

Item = TypeVar("Item")
CHUNK_CHARACTERS = 1_000_000
_READ_BYTES = 16_000_000


def in_chunks(
    items: Iterable[Item], *, most: int, text: Callable[[Item], str | None]
) -> Iterator[list[Item]]:
    """Group items: up to `most`, or until their texts have `CHUNK_CHARACTERS`."""
    chunk: list[Item] = []
    n_characters = 0
    for item in items:
        chunk.append(item)
        n_characters += len(text(item) or "")
        if len(chunk) == most or n_characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, n_characters = [], 0
    if chunk:
        yield chunk


def rows_a_read(rows: Dataset, *, most: int) -> int:
    """How many rows to read at once: up to `most`, of 16 MB on average."""
    return max(1, min(most, _READ_BYTES * len(rows.data) // max(rows.data.nbytes, 1)))
