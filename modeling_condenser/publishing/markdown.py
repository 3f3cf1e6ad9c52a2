"""Write Markdown from text that may hold any characters."""

import html
import re
from typing import Any


def escape(text: object) -> str:
    """Text on one line, with the special characters of Markdown and HTML escaped."""
    line = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~$#])", r"\\\1", line)


def code(text: object) -> str:
    """Text as inline code on one line; safe in a table cell."""
    line = " ".join(str(text).split()).replace("|", "\\|").replace("`", "'")
    return f"`{line}`"


def code_block(text: str, language: str = "") -> str:
    """Text in a fenced block, with fences longer than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """ "1 query", "2,310 queries"."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def p_in_words(p: float | None) -> str:
    """ "p = 0.031", "p < 0.001" or "not tested"."""
    if p is None:
        return "not tested"
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def as_list(value: Any) -> list[Any]:
    """A list or tuple as a list, another value as a list of one, nothing as an empty list."""
    if isinstance(value, list | tuple):
        return list(value)
    return [value] if value else []
