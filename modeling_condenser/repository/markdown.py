"""Write Markdown from text that may hold any characters."""

import re
from collections.abc import Sequence
from typing import Any

_LONGEST_TEXT = 120
_SPECIAL = re.compile(r"([\\`*_\[\]|~$#])")


def escape(text: object) -> str:
    """Text on one line, with the characters that mean something in Markdown or HTML escaped."""
    one_line = " ".join(str(text).split())
    html = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", html)


def code(text: object) -> str:
    """Text as inline code on one line; safe in a table cell."""
    one_line = " ".join(str(text).split()).replace("|", "\\|")
    longest = max((len(ticks) for ticks in re.findall("`+", one_line)), default=0)
    ticks = "`" * (longest + 1)
    space = " " if longest or not one_line else ""
    return f"{ticks}{space}{one_line}{space}{ticks}"


def shorten(text: str) -> str:
    """The first 120 characters of a text, escaped."""
    one_line = " ".join(text.split())
    if len(one_line) > _LONGEST_TEXT:
        one_line = one_line[: _LONGEST_TEXT - 1].rstrip() + "…"
    return escape(one_line)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int = 1) -> str:
    """A table of finished cells.

    Args:
        header: column names.
        rows: cells of each row.
        numbers_from: columns from this one on are aligned to the right.
    """
    rule = ["---" if i < numbers_from else "---:" for i in range(len(header))]
    lines = [header, rule, *rows]
    assert all(len(line) == len(header) for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code_block(text: str, language: str = "") -> str:
    """Text in a fenced block, with fences longer than any in the text."""
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def details(summary: str, content: str) -> str:
    """Content that opens on a click."""
    return f"<details>\n<summary>{summary}</summary>\n\n{content}\n\n</details>"


def listed(items: Sequence[str]) -> str:
    """ "a", "a and b", or "a, b and c"."""
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else "".join(items)


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """ "1 query", "2,310 queries"."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def p_value(p: float) -> str:
    """ "0.031", and never zero."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def p_in_words(p: float | None) -> str:
    """ "p = 0.031", "p < 0.001" or "not tested"."""
    if p is None:
        return "not tested"
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def duration(seconds: float) -> str:
    """ "45 s", "12 min", "3 h 20 min"."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60} min"


def as_list(value: Any) -> list[Any]:
    """A list or tuple as a list, another value as a list of one, nothing as an empty list."""
    return list(value) if isinstance(value, list | tuple) else [value] if value else []
