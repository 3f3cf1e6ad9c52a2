"""A file that is one JSON array, read item by item: memory holds one item, however long the array.

DPR's training data for Natural Questions is one array of 8 GB.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

_CHUNK = 1 << 22  # characters; items are far shorter, so few are tried a second time
_BLANKS = " \t\r\n"
# How far from the end of what was read an item that is merely cut off can seem broken: within a
# literal such as `false`, a number such as 1.5e-7, or an escaped character such as \u00e9.
_CUT_OFF = 16


class _Reader:
    """The unread rest of a file, of which a window is in memory."""

    def __init__(self, path: Path, file: TextIO):
        self.path, self.file = path, file
        self.text, self.place, self.line, self.is_whole = "", 0, 1, False

    def read_on(self) -> None:
        """Widen the window."""
        more = self.file.read(_CHUNK)
        self.line += self.text.count("\n", 0, self.place)
        self.text, self.place, self.is_whole = self.text[self.place :] + more, 0, not more

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            while self.place < len(self.text) and self.text[self.place] in _BLANKS:
                self.place += 1
            if self.place < len(self.text) or self.is_whole:
                return self.text[self.place : self.place + 1]
            self.read_on()

    def line_number(self, place: int) -> int:
        return self.line + self.text.count("\n", 0, place)

    def item(self) -> tuple[int, Any]:
        """The next value, and the number of the line that it begins on."""
        decoder = json.JSONDecoder()
        while True:
            try:
                value, end = decoder.raw_decode(self.text, self.place)
            except json.JSONDecodeError as error:
                is_cut_off = error.pos > len(self.text) - _CUT_OFF or "Unterminated" in error.msg
                if self.is_whole or not is_cut_off:
                    raise ValueError(
                        f"{self.path}:{self.line_number(error.pos)}: not JSON ({error.msg}), "
                        "expected an array of objects: it is damaged or cut off; fetch it again"
                    ) from error
            else:
                # A number may go on behind the window; anything else ends where it ends.
                is_number = not isinstance(value, dict | list | str)
                if not is_number or end < len(self.text) - _CUT_OFF or self.is_whole:
                    number = self.line_number(self.place)
                    self.place = end
                    return number, value
            self.read_on()


def read_array(path: Path) -> Iterator[tuple[int, Any]]:
    """Read the items of a JSON array.

    Args:
        path: the file, also with `.gz`.

    Yields:
        The number of the line that an item begins on, from 1, and the item.

    Raises:
        ValueError: the file is no JSON array, or not UTF-8; the message names the line.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig") as file:  # type: ignore[operator]
        reader = _Reader(path, file)
        try:
            yield from _items(reader)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: not UTF-8 behind line {reader.line_number(len(reader.text))} "
                f"({error.reason}): convert it (iconv -f latin1 -t utf-8)"
            ) from error
        except (EOFError, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is damaged ({error}): fetch it again") from error


def _items(reader: _Reader) -> Iterator[tuple[int, Any]]:
    _expect(reader, "[")
    if reader.peek() == "]":
        reader.place += 1
    else:
        while True:
            reader.peek()
            yield reader.item()
            if reader.peek() == "]":
                reader.place += 1
                break
            _expect(reader, ",")
    rest = reader.peek()
    if rest:
        raise _unexpected(reader, "the end of the file behind the array")


def _expect(reader: _Reader, character: str) -> None:
    if reader.peek() != character:
        raise _unexpected(reader, repr(character))
    reader.place += 1


def _unexpected(reader: _Reader, expected: str) -> ValueError:
    came = reader.peek()
    return ValueError(
        f"{reader.path}:{reader.line_number(reader.place)}: {repr(came) if came else 'the end'} "
        f"came, expected {expected}: the file is no JSON array, or it is damaged or cut off"
    )
