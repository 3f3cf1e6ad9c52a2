"""Reads PDF files with pdfminer.six: their text, cut at the bookmarks that the file has."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

import regex

from .markdown import HeadingPath, Section, gather_sections

# A word that continues on the next line.
_HYPHENATED = regex.compile(r"(?<=\w)[-\xad\u2010]\n(?=\p{Ll})")
_UNKNOWN = re.compile(r"\(cid:\d+\)")  # a glyph of which the file does not say the character
_LIGATURE = re.compile("[\ufb00-\ufb06]")
_DOTS = re.compile(r"(?:[ \t]?\.){5,}")  # between a heading and its page
_NO_TITLE = re.compile(  # what programs write there
    r"Microsoft \w+ - .*|PowerPoint Presentation|\(?(?:untitled|anonymous)\)?"
    r"|.*\.(?:ai|do[ct][mx]?|dvi|eps|gif|html?|indd|jpe?g|key|md|od[pst]|p65|pages|pdf|pmd|png"
    r"|pptx?|ps|pub|qxd|rtf|tex|tiff?|txt|wpd|xlsx?)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\b[0-9]{1,4}\b")
_FEWEST_PAGES = 3  # with a line at their start or end that is a running title

Bookmark = tuple[int, str, int]
"""Level, from 1, title, and index of the page."""


def read_pdf(stream: IO[bytes]) -> tuple[str, list[Section], int]:
    """Read a file, also one that is encrypted with an empty password.

    Returns:
        Its title, if it states one; its sections; and how many pages have no text.
    """
    from pdfminer.high_level import extract_text
    from pdfminer.pdfdocument import PDFDocument
    from pdfminer.pdfparser import PDFParser
    from pdfminer.pdftypes import resolve1
    from pdfminer.utils import decode_text

    file: Any = stream  # which may be compressed
    pages = _UNKNOWN.sub("", extract_text(file)).split("\f")[:-1]
    document = PDFDocument(PDFParser(file))
    stated = resolve1(document.info[0].get("Title")) if document.info else None
    title = " ".join(decode_text(stated).split()) if isinstance(stated, bytes) else ""
    n_without_text = sum(not page.strip() for page in pages)
    pages = [_LIGATURE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), p) for p in pages]
    bookmarks: list[Bookmark] = []
    with suppress(Exception):  # damaged bookmarks raise errors of many types
        bookmarks = list(_read_bookmarks(document))
    sections = _cut_at_bookmarks(_without_running_titles(pages), bookmarks)
    return "" if _NO_TITLE.fullmatch(title) else title, sections, n_without_text


def _read_bookmarks(document: Any) -> Iterator[Bookmark]:
    from pdfminer.pdfdocument import PDFDestinationNotFound, PDFNoOutlines
    from pdfminer.pdfpage import PDFPage
    from pdfminer.pdftypes import resolve1

    places = {page.pageid: place for place, page in enumerate(PDFPage.create_pages(document))}
    with suppress(PDFNoOutlines):
        for level, title, target, action, _ in document.get_outlines():
            target = resolve1(target or (resolve1(action) or {}).get("D"))
            with suppress(PDFDestinationNotFound):
                if not isinstance(target, list | None):  # a name
                    target = resolve1(document.get_dest(getattr(target, "name", target)))
                if isinstance(target, dict):
                    target = resolve1(target.get("D"))
                place = places.get(getattr(target[0], "objid", None)) if target else None
                if place is not None and title.strip():
                    yield level, " ".join(title.split()), place


def _without_running_titles(pages: list[str]) -> list[str]:
    """Remove first and last lines that other pages have, too, but for the number of the page.

    The first of these pages keeps them.
    """
    cut = [page.split("\n") for page in pages]
    n_pages: Counter[str] = Counter()
    for page, lines in enumerate(cut):
        n_pages.update({key for place in _edges(lines) for key in _keys(lines[place], page)})
    seen: set[str] = set()
    for page, lines in enumerate(cut):
        repeated: set[str] = set()
        for place in _edges(lines):
            keys = {key for key in _keys(lines[place], page) if n_pages[key] >= _FEWEST_PAGES}
            repeated |= keys
            if keys & seen:
                lines[place] = ""
        seen |= repeated
    return ["\n".join(lines).strip() for lines in cut]


def _edges(lines: list[str]) -> list[int]:
    """The places of the first two and the last two lines with text."""
    places = [place for place, line in enumerate(lines) if line.strip()]
    return [*places[:2], *places[-2:]]


def _keys(line: str, page: int) -> list[str]:
    """A line as it is, and with each number relative to the page's: which one is the page's?"""
    line = line.strip()
    keys = [line]
    for number in _NUMBER.finditer(line):
        offset = int(number[0]) - page
        keys.append(f"{line[: number.start()]}\0{offset}\0{line[number.end() :]}")
    return keys


def _cut_at_bookmarks(pages: list[str], bookmarks: list[Bookmark]) -> list[Section]:
    """Cut the text where the titles of bookmarks stand on their pages, on lines of their own."""
    text, starts = "", []
    for page in pages:
        starts.append(len(text))
        text += f"{page}\n\n"
    starts.append(len(text))
    path: HeadingPath = []
    parts: list[tuple[HeadingPath, str]] = []
    begin = 0
    for level, title, place in bookmarks:
        words = r"\s+".join(map(re.escape, title.split()))
        line = re.compile(rf"^.{{0,12}}?{words}[ \t]*$", re.IGNORECASE | re.MULTILINE)
        heading = line.search(text, max(begin, starts[place]), starts[place + 1])
        if heading:
            parts.append((path, text[begin : heading.start()]))
            path = [above for above in path if above[0] < level] + [(level, title)]
            begin = heading.end()
    parts.append((path, text[begin:]))
    return gather_sections(
        [(path, _DOTS.sub("", _HYPHENATED.sub("", part))) for path, part in parts]
    )
