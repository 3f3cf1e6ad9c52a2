"""Pieces of Markdown: foreign text in, text that cannot break a table or a sentence out."""

import re
from collections.abc import Sequence

_LONGEST_TEXT = 120
_SPECIAL = re.compile(r"([\\`*_\[\]|~$#])")


def escape(text: object) -> str:
    """A name as plain text on one line, whatever characters it holds."""
    one_line = " ".join(str(text).split())
    html = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", html)


def code(text: object) -> str:
    """A text between backticks on one line, which it cannot end; a table's cell may hold it."""
    one_line = " ".join(str(text).split()).replace("|", "\\|")
    longest = max((len(ticks) for ticks in re.findall("`+", one_line)), default=0)
    ticks = "`" * (longest + 1)
    space = " " if longest or not one_line else ""
    return f"{ticks}{space}{one_line}{space}{ticks}"


def shorten(text: str) -> str:
    """The beginning of a text of more than 120 characters, escaped."""
    one_line = " ".join(text.split())
    if len(one_line) > _LONGEST_TEXT:
        one_line = one_line[: _LONGEST_TEXT - 1].rstrip() + "…"
    return escape(one_line)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int = 1) -> str:
    """A table of ready-made cells.

    Args:
        header: names of the columns.
        rows: as many cells each.
        numbers_from: this column and those after it are aligned to the right.
    """
    rule = ["---" if i < numbers_from else "---:" for i in range(len(header))]
    lines = [header, rule, *rows]
    assert all(len(line) == len(header) for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code_block(text: str, language: str = "") -> str:
    """Text as it is, between fences that it cannot close."""
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def details(summary: str, content: str) -> str:
    """Content that a reader opens by a click."""
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
    """ "p = 0.031", "p < 0.001", or that there is none."""
    if p is None:
        return "not tested"
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def duration(seconds: float) -> str:
    """ "45 s", "12 min", "3 h 20 min"."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60} min"
