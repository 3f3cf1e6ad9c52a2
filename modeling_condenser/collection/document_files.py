"""Reads documents of every kind of file, as titles and sections, and counts what is left out."""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from bs4 import BeautifulSoup, NavigableString, Tag
from markdown_it import MarkdownIt

from modeling_condenser.files.progress import bar

from .text_files import decode_file, join_halves, plain_ending, read_any_rows

logger = logging.getLogger(__name__)

TEXT_COLUMNS = ("text", "content", "body")
NO_TEXT, RAGGED_ROWS = "no text", "rows with more fields than columns"
_TABLE_ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
_INSTALL_HINT = 'pip install -c constraints.txt -e ".[documents]"'
_DOCUMENT_ENDINGS = (".txt", ".rst", ".md", ".markdown", ".html", ".htm", ".pdf", ".docx")
_SKIPPED = "title script style template noscript svg nav footer".split()
_HEADINGS = [f"h{level}" for level in range(1, 7)]
_LONGEST_HEADING = 200  # characters; a longer one lacks its end
_BLOCKS = (
    "address article aside blockquote details dialog div dl fieldset figure form header hgroup hr "
    "main menu ol p pre search section table ul"
).split()
_LINES = "br caption dd dt figcaption legend li optgroup option summary tr".split()
_PARAGRAPH_END, _LINE_END = "\u2029", "\u2028"
_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)(?:---|\.\.\.)(?:\n|\Z)", re.DOTALL)
_STATED_TITLE = re.compile(r"""^title:[ \t]*["']?(.*?)["']?[ \t]*$""", re.MULTILINE)
_RULE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*")  # under a heading of reStructuredText
_TARGET = re.compile(r"[ \t]*\.\. _.*:[ \t]*")  # that links lead to
_HYPHENATED = re.compile(r"(?<=\w)[-\xad]\n(?=[a-zß-ÿ])")  # a word that continues on the next line
_SOFT_HYPHEN = re.compile(r"\xad|&shy;|&#173;|&#xad;", re.IGNORECASE)  # where a word may be broken


_Path: TypeAlias = list[tuple[int, str]]  # levels and headings, outermost first


class Section(NamedTuple):
    """The headings above a text, outermost first, and the text up to the next heading."""

    headings: tuple[str, ...]
    text: str


class Document(NamedTuple):
    """A title, which is empty if the document states none, and sections that are not blank."""

    title: str
    sections: list[Section]

    @property
    def text(self) -> str:
        """All of the text, with title and headings as in Markdown."""
        parts = [f"# {self.title}"] if self.title else []
        for headings, text in self.sections:
            level = len(headings) + bool(self.title)
            parts += [f"{'#' * level} {headings[-1]}", text] if headings else [text]
        return "\n\n".join(parts)


class FoundDocument(NamedTuple):
    """A document with the name of its file, to which that of a row of a table adds its id."""

    name: str
    file: str
    document: Document


@dataclass(repr=False)  # a notebook shows the summary
class Collected:
    """What was read, and what was left out.

    Attributes:
        folder: of the collection.
        counts: "files", "documents", "passages" and "labels" that there are.
        left_out: of these, why they are not in the collection -> how many.
        notes: of these, other figures.
        unread: file -> why it was not read, or not to its end.
        copies: id of a passage that is left out -> that of the same one, which is kept.
    """

    folder: str
    counts: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    notes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    unread: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = []
        for what, n in self.counts.items():
            notes = ", ".join(f"{name} {number:,}" for name, number in self.notes[what].items())
            lines.append(f"{what:<10}{n - self.left_out[what].total():>10,}  {notes}".rstrip())
            lines += [f"  left out{n:>10,}  {why}" for why, n in self.left_out[what].items()]
        return "\n".join(lines)

    __repr__ = __str__

    def warn(self) -> None:
        """Log a warning if more than a tenth was left out."""
        for what, n in self.counts.items():
            if (n_left_out := self.left_out[what].total()) > n / 10:
                reasons = ", ".join(f"{why} ({n:,})" for why, n in self.left_out[what].items())
                logger.warning("%d of %d %s were left out: %s", n_left_out, n, what, reasons)


def find_files(sources: Iterable[str], *, without: Iterable[Path] = ()) -> dict[str, Path]:
    """Find files, by a name that begins with that of their folder; hidden ones are left out.

    Raises:
        FileNotFoundError: a source does not exist.
        ValueError: two files have the same name.
    """
    files: dict[str, Path] = {}
    left_out = set(without)
    for source in map(Path, sources):
        if not source.exists():
            raise FileNotFoundError(f"There is no file or folder {source}.")
        root = source.resolve()
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            parts = path.relative_to(root).parts
            is_hidden = any(part.startswith((".", "~$")) for part in parts)  # ~$: open in Word
            if is_hidden or not path.is_file() or not left_out.isdisjoint((path, *path.parents)):
                continue
            name = join_halves("/".join((root.name, *parts)))  # perhaps not of UTF-8
            other = files.setdefault(name, path)
            if other != path:
                raise ValueError(
                    f"{other} and {path} would have the same name in the collection: give one "
                    "folder that holds both."
                )
    return files


@dataclass(frozen=True)
class FileReader:
    """Reads the documents of files; a file that cannot be read is named and left out.

    A file of text is one document, and a table has one in each row.

    Attributes:
        done: counts what is read.
        text_columns: of tables; of several, the first that a row has is read.
        title_column, id_column: of tables, before title, and before _id and id; "" for no titles.
        encoding: of text that is not UTF-8; found out by default.
        columns: of the tables that were read.
    """

    done: Collected
    text_columns: Sequence[str] = TEXT_COLUMNS
    title_column: str = "title"
    id_column: str = "_id"
    encoding: str | None = None
    columns: set[str] = field(default_factory=set)

    def read(self, files: Mapping[str, Path]) -> Iterator[FoundDocument]:
        """Read the documents of files, see `find_files`."""
        for name, path in bar(files.items(), "read", unit="file"):
            self.done.counts["files"] += 1
            ending = plain_ending(path)
            try:
                if ending in _DOCUMENT_ENDINGS:
                    document, encoding = read_document(path, self.encoding)
                    self._note_encoding(encoding)
                    if not document.sections:
                        self.done.unread[name] = NO_TEXT
                    yield FoundDocument(name, name, document)
                elif ending in _TABLE_ENDINGS:
                    yield from self._read_table(name, path)
                else:
                    self._leave_out(name, f"of another kind ({ending or 'no ending'})")
            except ImportError as error:
                self._leave_out(name, f"{ending} needs {error.name}: {_INSTALL_HINT}")
            except (ValueError, OSError) as error:
                details = str(error).replace(str(path), name)
                is_named = name in details
                logger.warning("%s", details if is_named else f"{name} cannot be read: {details}")
                self._leave_out(name, "not readable", details)

    def _note_encoding(self, encoding: str) -> None:
        if encoding != "utf-8":
            self.done.notes["files"][encoding] += 1

    def _leave_out(self, file: str, why: str, details: str = "") -> None:
        self.done.left_out["files"][why] += 1
        self.done.unread[file] = details or why

    def _read_table(self, name: str, path: Path) -> Iterator[FoundDocument]:
        rows, n_ragged, encoding = read_any_rows(path, self.encoding)
        if n_ragged:
            self.done.counts["documents"] += n_ragged
            self.done.left_out["documents"][RAGGED_ROWS] += n_ragged
        columns: dict[str, None] = {}
        for number, stated in enumerate(rows, start=1):
            row = {column.strip(): value for column, value in stated.items()}
            columns |= dict.fromkeys(row)
            self.columns.update(row)
            if columns.keys().isdisjoint(self.text_columns):
                continue
            text = _first(row, self.text_columns)
            titles = (self.title_column, "title") if self.title_column else ()
            title = " ".join(str(_first(row, titles) or "").split())
            sections = [Section((), str(text))] if isinstance(text, str | int | float) else []
            ids = (self.id_column, "_id", "id")
            row_id = as_whole_number(_first(row, ids))
            if row_id is None:  # a number alone could be another row's id
                row_id = number if columns.keys().isdisjoint(ids) else f"row-{number}"
            yield FoundDocument(f"{name}#{row_id}", name, Document(title, sections))
        if columns.keys().isdisjoint(self.text_columns):
            raise ValueError(
                f"there is no column {' or '.join(self.text_columns)}, only "
                f"{', '.join(columns) or 'an empty table'}. Name one with --text_column."
            )
        self._note_encoding(encoding)


def _first(row: Mapping[str, Any], columns: Sequence[str]) -> Any:
    """The first value of these columns that is neither null nor empty."""
    return next((row[name] for name in columns if row.get(name) not in (None, "")), None)


def as_whole_number(value: Any) -> Any:
    """An id as it was before pandas made floats of its column, because of nulls."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_document(file: Path, encoding: str | None = None) -> tuple[Document, str]:
    """Read a document, and say in which encoding; `encoding` is that of text that is not UTF-8.

    Raises:
        ImportError: the package that reads PDF or DOCX is not installed.
        ValueError: the file cannot be read.
    """
    ending = plain_ending(file)
    if ending in _LIBRARIES:
        return _LIBRARIES[ending](file), "utf-8"
    text, found = decode_file(file, encoding)
    if ending in (".txt", ".rst"):
        return parse_underlined(text), found
    return (parse_markdown if ending in (".md", ".markdown") else parse_html)(text), found


def parse_underlined(text: str) -> Document:
    """Parse plain text or reStructuredText; a line with a rule below it is a heading.

    Rules of each kind, alone or also above the heading, are a level, in the order in which they
    come, as in reStructuredText.
    """
    lines = [line for line in text.splitlines() if not _TARGET.fullmatch(line)]
    kinds: list[tuple[str, bool]] = []
    path: _Path = []
    found: list[tuple[_Path, list[str]]] = [(path, [])]
    row, above = 0, ""  # the line above, which is blank after a heading
    while row < len(lines):
        line, below = lines[row], lines[row + 1] if row + 1 < len(lines) else ""
        if not _is_underlined(line, below, above):
            found[-1][1].append(line)
            row, above = row + 1, line.strip()
            continue
        has_two = above != ""
        if has_two:
            found[-1][1].pop()
        kind = (below[0], has_two)
        kinds += [] if kind in kinds else [kind]
        level = kinds.index(kind) + 1
        path = [*(outer for outer in path if outer[0] < level), (level, line.strip())]
        found.append((path, []))
        row, above = row + 2, ""
    return _as_document([(path, "\n".join(parts).strip()) for path, parts in found])


def _is_underlined(line: str, below: str, above: str) -> bool:
    """Whether a line is a heading: after a blank line or a rule, and above a rule as long."""
    rule = below.strip()
    if not line.strip() or _RULE.fullmatch(line) or not _RULE.fullmatch(rule):
        return False
    return above in ("", rule) and len(line.strip()) <= len(rule) and not below[0].isspace()


def parse_markdown(text: str) -> Document:
    """Parse Markdown with tables; a title in its front matter goes before a heading."""
    front = _FRONT_MATTER.match(text)
    stated = _STATED_TITLE.search(front[1]) if front else None
    page = MarkdownIt("commonmark").enable("table").render(text[front.end() :] if front else text)
    return parse_html(page, title=stated[1] if stated else "")


def parse_html(page: str, *, title: str = "") -> Document:
    """Parse HTML, without scripts, styles, navigation, footers and soft hyphens.

    Of a page with one <main>, only that is read if it has more than a quarter of the text. The
    title is the given one, or the only heading of the first level, or that of the page.
    """
    soup = BeautifulSoup(_SOFT_HYPHEN.sub("", page), "html.parser")
    stated = " ".join(soup.title.get_text().split()) if soup.title else ""
    _mark_lines(soup)
    content: Tag = soup
    mains = soup.select("main, [role=main]")
    if len(mains) == 1 and len(mains[0].get_text()) > len(soup.get_text()) / 4:
        content = mains[0]
        if len(highest := soup("h1")) == 1:  # perhaps above <main>
            stated = " ".join(highest[0].get_text().split())
    path: _Path = []
    found: list[tuple[_Path, list[str]]] = [(path, [])]
    for node in content.descendants:
        if isinstance(node, Tag) and node.name in _HEADINGS:
            level, heading = int(node.name[1]), " ".join(node.get_text().split())
            path = [above for above in path if above[0] < level]
            path += [(level, heading)] if heading else []
            found.append((path, []))
        elif type(node) is NavigableString and not node.find_parent(_HEADINGS):
            is_code = node.find_parent("pre")
            found[-1][1].append(node if is_code else re.sub(r"[ \t\r\n\f]+", " ", node))
    texts = [(path, _join_lines("".join(parts))) for path, parts in found]
    return _as_document(texts, title, stated)


def _as_document(texts: Sequence[tuple[_Path, str]], title: str = "", stated: str = "") -> Document:
    """A document of texts, each with the headings above it.

    The title is the given one, or the only heading of the first level, or the stated one.
    """
    highest = {path[0][1] for path, _ in texts if path and path[0][0] == 1}
    title = title or (highest.pop() if len(highest) == 1 else stated)
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
    text = _HYPHENATED.sub("", join_halves("\n\n".join(pages))).strip()
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
