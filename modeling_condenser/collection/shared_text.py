"""Leaves out what many pages of HTML begin or end with: menus, language lists, footers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from .conversion import Document

_EDGE = 30  # paragraphs at the start, and at the end of a page
_MOST_OTHERS = 2  # paragraphs in a row that few files have, such as the title of the next page
_FEWEST_PAGES, _LEAST_SHARE = 5, 0.25  # of the pages in a folder, which share a line


@dataclass
class SharedText:
    """Counts the lines that pages begin and end with, and removes paragraphs of shared lines.

    A line is shared if at least five pages, and a quarter of all in one folder (at any depth), have
    it. A paragraph is shared if all of its lines are. The first page keeps it.

    Attributes:
        removed: first shared line of a paragraph -> how many paragraphs were removed.
    """

    removed: Counter[str] = field(default_factory=Counter)
    _n_pages: Counter[str] = field(default_factory=Counter)  # by folder
    _n_with: Counter[int] = field(default_factory=Counter)  # by hash of folder and line
    _kept: set[str] = field(default_factory=set)  # of pages before

    def count(self, document: Document) -> None:
        """Count the lines of a page."""
        paragraphs = [lines for _, lines in _paragraphs(document)]
        at_edges = {line for lines in paragraphs[:_EDGE] + paragraphs[-_EDGE:] for line in lines}
        at_edges.update(headings[-1] for headings, _ in document.sections if headings)
        for folder in _folders(document):
            self._n_pages[folder] += 1
            self._n_with.update(hash((folder, line)) for line in at_edges)

    def remove(self, document: Document) -> Document:
        """Remove the shared paragraphs of a page, unless nothing would be left."""
        paragraphs = list(_paragraphs(document))
        folders = _folders(document)
        shared = [
            [line for line in lines if self._is_shared(line, folders)] for _, lines in paragraphs
        ]
        is_shared = [
            len(of_it) == len(lines) for of_it, (_, lines) in zip(shared, paragraphs, strict=True)
        ]
        places = _from_start(is_shared)
        places |= {len(is_shared) - 1 - place for place in _from_start(is_shared[::-1])}
        removed = {place for place in places if self._kept.issuperset(shared[place])}
        self._kept.update(line for place in places - removed for line in shared[place])
        kept: list[list[str]] = [[] for _ in document.sections]
        for place, (section, lines) in enumerate(paragraphs):
            if place not in removed:
                kept[section].append("\n".join(lines))
        sections = []
        for (headings, text), texts in zip(document.sections, kept, strict=True):
            if texts:
                sections.append((headings, "\n\n".join(texts)))
            elif headings and not self._is_shared(headings[-1], folders):
                sections.append((headings, text))  # or its heading would be lost
        if not sections:
            return document
        self.removed.update(shared[place][0] for place in removed)
        return replace(document, sections=sections)

    def _is_shared(self, line: str, folders: Sequence[str]) -> bool:
        for folder in folders:
            fewest = max(_FEWEST_PAGES, _LEAST_SHARE * self._n_pages[folder])
            if self._n_with[hash((folder, line))] >= fewest:
                return True
        return False


def _from_start(is_shared: Sequence[bool]) -> set[int]:
    """The places of shared paragraphs, up to the first of several that are not."""
    places: set[int] = set()
    n_others = 0
    for place, shared in enumerate(is_shared):
        n_others = 0 if shared else n_others + 1
        if n_others > _MOST_OTHERS:
            break
        if shared:
            places.add(place)
    return places


def _paragraphs(document: Document) -> Iterator[tuple[int, list[str]]]:
    """Yield the place of a section, and the lines of each of its paragraphs."""
    for section, (_, text) in enumerate(document.sections):
        for paragraph in text.split("\n\n"):
            yield section, paragraph.split("\n")


def _folders(document: Document) -> list[str]:
    return [str(folder) for folder in PurePosixPath(document.file).parents[:-1]]
