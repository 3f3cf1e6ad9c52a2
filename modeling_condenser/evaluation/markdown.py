"""Pieces of Markdown: foreign text in, text that cannot break a table or a sentence out."""

import re
from collections.abc import Sequence

_SPECIAL = re.compile(r"([\\`*_\[\]|~$#])")
_LONGEST_TEXT = 120


def escape(text: str) -> str:
    """A name or a query as plain text on one line, whatever characters it holds."""
    one_line = " ".join(text.split())
    html = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", html)


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


def code_block(text: str) -> str:
    """Text as it is, between fences that it cannot close."""
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def listed(items: Sequence[str]) -> str:
    """ "a", "a and b", or "a, b and c"."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """ "1 query", "2,310 queries"."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def p_value(p: float | None) -> str:
    """ "p = 0.031", and never zero."""
    if p is None:
        return "not tested"
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"
