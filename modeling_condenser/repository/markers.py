"""Sections of a card that are written anew, within a text that a person may have written.

Each stands between two comments, which a reader of the card does not see:

    <!-- condenser:results -->
    ...
    <!-- /condenser:results -->

What is outside of them is never touched.
"""

import re
from collections.abc import Mapping
from pathlib import Path

_MARKER = re.compile(r"^<!-- (/?)condenser:([a-z]+) -->[ \t]*$", re.MULTILINE)
_REPOSITORY = re.compile(r"^<!-- condenser:repository (\S+) -->$", re.MULTILINE)

Part = tuple[str | None, str]
"""A section's name and content, or None and a text between sections."""


def merge_sections(text: str, sections: Mapping[str, str], *, file: Path) -> str:
    """Put sections into a text: in their old places, or behind their neighbours, or at its end.

    Args:
        text: of a card, without metadata; empty for a new card.
        sections: name -> content, in their order. A section of the text that is not among them is
            taken out.
        file: for messages.

    Raises:
        ValueError: a comment that begins a section has none that ends it, or the reverse.
    """
    parts = split_sections(text, file=file)
    parts = [(name, sections.get(name, "") if name else content) for name, content in parts]
    parts = [part for part in parts if part[0] is None or part[0] in sections]
    order = list(sections)
    for place, name in enumerate(order):
        present = [part[0] for part in parts]
        if name in present:
            continue
        before = [present.index(other) for other in order[:place] if other in present]
        after = [present.index(other) for other in order[place:] if other in present]
        index = before[-1] + 1 if before else after[0] if after else len(parts)
        parts.insert(index, (name, sections[name]))
    blocks = [_block(name, content) if name else content.strip("\n") for name, content in parts]
    return "\n\n".join(block for block in blocks if block.strip()) + "\n"


def split_sections(text: str, *, file: Path) -> list[Part]:
    """The sections of a card and the texts between them, in their order.

    Raises:
        ValueError: see `merge_sections`.
    """
    parts: list[Part] = []
    opened: str | None = None
    end = 0
    for marker in _MARKER.finditer(text):
        closes, name = bool(marker[1]), marker[2]
        expected = f"/condenser:{opened}" if opened else "one that begins a section"
        is_again = not closes and name in [part[0] for part in parts]
        if closes != (opened is not None) or (closes and name != opened) or is_again:
            line = text.count("\n", 0, marker.start()) + 1
            raise ValueError(
                f"{file}, line {line} of the text, has the comment {marker[0].strip()}, expected "
                f"{expected}: the comments around a section come in pairs, once a card. Mend "
                "them, or take out both to have the section written anew."
            )
        parts.append((opened, text[end : marker.start()]))
        opened, end = (None if closes else name), marker.end()
    if opened is not None:
        raise ValueError(
            f"{file} has the comment condenser:{opened}, and none that ends this section: add "
            f"<!-- /condenser:{opened} --> where your own text goes on."
        )
    return [*parts, (None, text[end:])]


def repository_comment(name: str) -> str:
    """A comment that keeps the repository's name for the next time the card is written."""
    return f"<!-- condenser:repository {name} -->"


def find_repository(text: str) -> str | None:
    """The repository's name that a card was written for, if any."""
    found = _REPOSITORY.search(text)
    return found[1] if found else None


def _block(name: str, content: str) -> str:
    # Foreign text in a section must not end it.
    inner = _MARKER.sub(r" \g<0>", content.strip("\n"))
    return f"<!-- condenser:{name} -->\n\n{inner}\n\n<!-- /condenser:{name} -->"
