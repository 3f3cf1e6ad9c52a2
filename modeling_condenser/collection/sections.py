"""Reads a document as a title and sections: Markdown, HTML, plain text, PDF or DOCX."""

import re
from pathlib import Path
from typing import NamedTuple

from bs4 import BeautifulSoup, NavigableString, Tag
from markdown_it import MarkdownIt

from .text_files import decode_file, plain_name

DOCUMENT_ENDINGS = (".txt", ".md", ".markdown", ".html", ".htm", ".pdf", ".docx")

_SKIPPED = "title script style template noscript svg nav footer".split()
_HEADINGS = [f"h{level}" for level in range(1, 7)]
_LONGEST_HEADING = 200  # characters; a longer one lacks its end
_BLOCKS = "article aside blockquote div dl figure header hr main ol p pre section table ul".split()
_LINES = "br caption dd dt figcaption li tr".split()
_PARAGRAPH_END, _LINE_END = "\u2029", "\u2028"
_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)(?:---|\.\.\.)(?:\n|\Z)", re.DOTALL)
_STATED_TITLE = re.compile(r"""^title:[ \t]*["']?(.*?)["']?[ \t]*$""", re.MULTILINE)
_HYPHENATED = re.compile(r"(?<=\w)-\n(?=[a-zß-ÿ])")  # a word that continues on the next line


class Section(NamedTuple):
    """The headings above a text, outermost first, and the text up to the next heading."""

    headings: tuple[str, ...]
    text: str


class Document(NamedTuple):
    """A title, which is empty if the document states none, and sections that are not blank."""

    title: str
    sections: list[Section]


def read_document(file: Path, encoding: str | None = None) -> tuple[Document, str]:
    """Read a document, and say in which encoding; `encoding` is that of text that is not UTF-8.

    Raises:
        ImportError: the package that reads PDF or DOCX is not installed.
        ValueError: the file cannot be read.
    """
    ending = Path(plain_name(file)).suffix.lower()
    if ending in _LIBRARIES:
        return _LIBRARIES[ending](file), "utf-8"
    text, found = decode_file(file, encoding)
    if ending == ".txt":
        return Document("", [Section((), text)] if text.strip() else []), found
    return (parse_markdown if ending in (".md", ".markdown") else parse_html)(text), found


def parse_markdown(text: str) -> Document:
    """Parse Markdown with tables; a title in its front matter goes before a heading."""
    front = _FRONT_MATTER.match(text)
    stated = _STATED_TITLE.search(front[1]) if front else None
    page = MarkdownIt("commonmark").enable("table").render(text[front.end() :] if front else text)
    return parse_html(page, title=stated[1] if stated else "")


def parse_html(page: str, *, title: str = "") -> Document:
    """Parse HTML, without scripts, styles, navigation and footers.

    The title is the given one, or the only heading of the first level, or that of the page.
    """
    soup = BeautifulSoup(page, "html.parser")
    stated = " ".join(soup.title.get_text().split()) if soup.title else ""
    _mark_lines(soup)
    path: list[tuple[int, str]] = []
    found: list[tuple[list[tuple[int, str]], list[str]]] = [(path, [])]
    for node in soup.descendants:
        if isinstance(node, Tag) and node.name in _HEADINGS:
            level, heading = int(node.name[1]), " ".join(node.get_text().split())
            path = [above for above in path if above[0] < level]
            path += [(level, heading)] if heading else []
            found.append((path, []))
        elif type(node) is NavigableString and not node.find_parent(_HEADINGS):
            is_code = node.find_parent("pre")
            found[-1][1].append(node if is_code else re.sub(r"[ \t\r\n\f]+", " ", node))
    highest = {path[0][1] for path, _ in found if path and path[0][0] == 1}
    title = title or (highest.pop() if len(highest) == 1 else stated)
    texts = [(path, _join_lines("".join(parts))) for path, parts in found]
    sections = [
        Section(tuple(heading for level, heading in path if (level, heading) != (1, title)), text)
        for path, text in texts
        if text
    ]
    return Document(title, sections)


def _mark_lines(soup: BeautifulSoup) -> None:
    """Remove what is not read, and mark the ends of lines and paragraphs."""
    for tag in soup(_SKIPPED):
        tag.decompose()
    for tag in soup(_HEADINGS):
        if len(tag.get_text()) > _LONGEST_HEADING:
            tag.name = "div"
    for names, mark in ((_BLOCKS, _PARAGRAPH_END), (_LINES, _LINE_END), (["td", "th"], " ")):
        for tag in soup(names):
            tag.insert_before(mark)
            tag.insert_after(mark)


def _join_lines(text: str) -> str:
    """Replace the marks by line breaks, with one blank line between paragraphs."""
    text = re.sub(rf"[ {_LINE_END}]*{_PARAGRAPH_END}[ {_LINE_END}{_PARAGRAPH_END}]*", "\n\n", text)
    text = re.sub(rf" *{_LINE_END}[ {_LINE_END}]*", "\n", text)
    lines = "\n".join(" ".join(line.split()) for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip()


def _read_pdf(file: Path) -> Document:
    import pypdf

    try:
        pages = [page.extract_text() for page in pypdf.PdfReader(file).pages]
    except Exception as error:  # a damaged file makes pypdf raise errors of many types
        raise ValueError(f"{file} is not a readable PDF ({error}).") from error
    text = _HYPHENATED.sub("", "\n\n".join(pages)).strip()
    return Document("", [Section((), text)] if text else [])


def _read_docx(file: Path) -> Document:
    import mammoth

    try:
        with file.open("rb") as stream:
            page = mammoth.convert_to_html(stream, convert_image=lambda image: []).value
    except Exception as error:  # likewise
        raise ValueError(f"{file} is not a readable DOCX ({error}).") from error
    return parse_html(page)


_LIBRARIES = {".pdf": _read_pdf, ".docx": _read_docx}
