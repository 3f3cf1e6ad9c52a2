"""Reads files of every kind as documents, which have a title and sections of plain text.

MarkItDown and mammoth convert .docx, .pptx and .epub files, and pdfminer.six reads .pdf files, if
they are installed.
"""

import codecs
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import IO, Any

import webencodings
from charset_normalizer import from_bytes, is_binary

from modeling_condenser.files.run_folder import bar

from .markdown import Section, html_to_markdown, split_markdown
from .pdf import read_pdf
from .rows import join_halves, open_bytes, plain_ending, read_rows
from .word_files import word_to_html

logger = logging.getLogger(__name__)

TEXT_COLUMNS = ("text", "content", "body")
TABLE_ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
HTML_ENDINGS = (".html", ".htm")
_CONVERTERS = {".pptx": "PptxConverter", ".epub": "EpubConverter"}
DOCUMENT_ENDINGS = (
    ".txt",
    ".rst",
    ".md",
    ".markdown",
    *HTML_ENDINGS,
    ".pdf",
    ".docx",
    *_CONVERTERS,
)
_SLIDE = re.compile(r"<!-- Slide number: \d+ -->")
_DECLARATION = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([\w:.-]+)""", re.IGNORECASE)
# Among all encodings, Western European text is often mistaken for cp1250 and Big5 for Johab.
_USUAL_ENCODINGS = (
    "utf_8 utf_16_le utf_16_be utf_32 cp1252 gb18030 big5 cp932 euc_jp euc_kr cp1251 koi8_r "
    "cp1253 cp1254 cp1255 cp1256 cp874"
).split()
_EAST_ASIAN = ("big5", "cp932", "cp949", "cp950", "euc_", "gb", "hz", "johab", "shift_jis")
_EAST_ASIAN_SHARE = 0.05  # of bytes beyond ASCII, in a text that is guessed to be East Asian
_BYTES_A_READ = 1 << 20
_BAD_SHARE = 0.01  # of characters that cannot be decoded, in a text whose encoding is kept
_FEW_BAD = 3  # such characters in a short text of UTF-8


@dataclass(frozen=True)
class Document:
    """A file or a row of a table.

    Attributes:
        name: of the file, to which that of a row adds its id.
        file: its name, which begins with that of the folder.
        title: empty if the document states none.
        sections: with text.
    """

    name: str
    file: str
    title: str
    sections: Sequence[Section]

    @property
    def text(self) -> str:
        """The whole text, with title and headings as paragraphs."""
        parts, above = [self.title], tuple[str, ...]()
        for headings, text in self.sections:
            outer = [headings[:n] != above[:n] for n in range(1, len(headings))]
            parts += [*compress(headings, outer), *headings[-1:], text]
            above = headings
        return "\n\n".join(filter(None, parts))


def find_files(sources: Iterable[str], *, without: Iterable[Path] = ()) -> dict[str, Path]:
    """Find files, by a name that begins with that of their folder; hidden ones are left out.

    Folders that must not be read are among them, so that they are reported.

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
            is_read = path.is_file() or not _is_open(path)
            if is_hidden or not is_read or not left_out.isdisjoint((path, *path.parents)):
                continue
            name = "/".join(map(_decode, (root.name, *parts)))
            if files.setdefault(name, path) != path:
                raise ValueError(
                    f"{files[name]} and {path} would have the same name in the collection: give "
                    "one folder that holds both."
                )
    return files


def _is_open(folder: Path) -> bool:
    return not folder.is_dir() or os.access(folder, os.R_OK | os.X_OK)


def _decode(name: str) -> str:
    """A file's name as text; one that is not UTF-8 is perhaps of Windows."""
    try:
        return os.fsencode(name).decode()
    except UnicodeDecodeError:
        return os.fsencode(name).decode("cp1252", "backslashreplace")


@dataclass(frozen=True)
class DocumentReader:
    """Reads the documents of files; those that cannot be read are left out, with a warning.

    A file of text is one document, and a table has one in each row.

    Attributes:
        text_columns: of tables; of several, the first that a row has is read.
        title_column, id_column: of tables, before title, and before _id and id; "" for no titles.
        encoding: of text that is not UTF-8; found out by default.
        unread: file -> why it was not read, or not to its end.
        pages_without_text: file -> pages of a PDF that have no text.
        columns: of the tables, also of those that were not read to their end.
    """

    text_columns: Sequence[str] = TEXT_COLUMNS
    title_column: str = "title"
    id_column: str = "_id"
    encoding: str | None = None
    unread: dict[str, str] = field(default_factory=dict)
    pages_without_text: dict[str, int] = field(default_factory=dict)
    columns: set[str] = field(default_factory=set)

    def read(self, files: Mapping[str, Path]) -> Iterator[Document]:
        """Read the documents of files, see `find_files`."""
        for name, path in bar(files.items(), "read", unit="file"):
            ending = plain_ending(path)
            if path.is_dir():
                self.unread[name] = "permission to read the folder is missing"
                logger.warning("%s: %s.", name, self.unread[name])
                continue
            if ending not in (*TABLE_ENDINGS, *DOCUMENT_ENDINGS):
                self.unread[name] = f"files of the kind {ending or '(no ending)'} are not read"
                continue
            try:
                if ending in TABLE_ENDINGS:
                    yield from self._read_table(name, path)
                else:
                    yield Document(name, name, *self._read_sections(name, path))
            except (ValueError, OSError, RecursionError) as error:
                self.unread[name] = str(error).replace(str(path), name)
                logger.warning("%s cannot be read: %s", name, self.unread[name])

    def _read_sections(self, name: str, file: Path) -> tuple[str, Sequence[Section]]:
        """Read the title and the sections of a document.

        Raises:
            ValueError: the file cannot be read or has no text.
        """
        ending = plain_ending(file)
        sections: Sequence[Section]
        if ending == ".pdf":
            with _open_for_library(file) as stream:
                title, sections, n_pages = read_pdf(stream)
            if n_pages:
                self.pages_without_text[name] = n_pages
        elif ending in (".txt", ".rst"):
            title, sections = "", [((), decode_file(file, self.encoding)[0].strip())]
        else:
            title, markdown = _convert_to_markdown(file, ending, self.encoding)
            title, sections = split_markdown(markdown, title)
        sections = [(tuple(map(_plain, headings)), _plain(text)) for headings, text in sections]
        if not any(text for _, text in sections):
            raise ValueError(f"{file} has no text.")
        return _plain(title), sections

    def _read_table(self, name: str, path: Path) -> Iterator[Document]:
        titles = (self.title_column, "title") if self.title_column else ()
        ids = (self.id_column, "_id", "id")
        columns: set[str] = set()
        stated = read_any_rows(path, self.encoding, is_padded=True)
        for number, row in enumerate(stated, start=1):
            self.columns.update(row)
            row = {name.casefold(): value for name, value in row.items()} | row  # also Title, ID
            columns.update(row)
            if columns.isdisjoint(self.text_columns):
                continue
            text, title = _first(row, self.text_columns), _first(row, titles)
            row_id = _first(row, ids) or str(number)
            yield Document(f"{name}#{row_id}", name, title, [((), text)] if text else [])
        if columns.isdisjoint(self.text_columns):
            raise ValueError(
                f"there is no column {' or '.join(self.text_columns)}, only "
                f"{', '.join(sorted(columns)) or 'an empty table'}. Name one with --text_column, "
                'or in pre-training as --corpus "{path: FILE, text_column: NAME}".'
            )


def _plain(text: str) -> str:
    """Remove soft hyphens, and halves of characters, which no file can hold."""
    return join_halves(text.replace("\xad", ""))


def _convert_to_markdown(file: Path, ending: str, encoding: str | None) -> tuple[str, str]:
    """Return the title that a document states, and its text as Markdown."""
    if ending in HTML_ENDINGS:
        return html_to_markdown(decode_file(file, encoding)[0])
    if ending == ".docx":
        with _open_for_library(file) as stream:
            property_title, html = word_to_html(stream)
        title, markdown = html_to_markdown(html)
        return title or property_title, markdown
    if ending in _CONVERTERS:
        with _open_for_library(file) as stream:
            from markitdown import StreamInfo, converters

            converter = getattr(converters, _CONVERTERS[ending])()
            converted = converter.convert(stream, StreamInfo(extension=ending))
        markdown = converted.markdown
        if ending == ".pptx":  # a slide may have no title, and each line is a paragraph
            markdown = _SLIDE.sub("#", markdown).replace("\n", "  \n")
        return converted.title or "", markdown
    return "", decode_file(file, encoding)[0]


@contextmanager
def _open_for_library(file: Path) -> Iterator[IO[bytes]]:
    """Open a file for a library of the extra `documents`, whose errors become ValueErrors."""
    try:
        with open_bytes(file) as stream:
            yield stream
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        hint = 'pip install -c constraints.txt -e ".[documents]"'
        raise ValueError(f"{plain_ending(file)} files need {library}: {hint}") from error
    except Exception as error:  # damaged files raise errors of many types
        reason = str(error) or type(error).__name__
        raise ValueError(f"{file} cannot be converted ({reason}).") from error


def read_any_rows(
    file: Path, encoding: str | None = None, *, is_padded: bool = False
) -> Iterable[dict[str, Any]]:
    """Read the rows of a table, see `read_rows` and `decode_file`; memory holds UTF-8 in parts."""
    if plain_ending(file) in TABLE_ENDINGS and plain_ending(file) != ".parquet":
        is_utf_8 = _is_utf_8(file, may_be_ascii=encoding is None)
        encoding = "utf-8-sig" if is_utf_8 else decode_file(file, encoding)[1]
    return read_rows(file, encoding=encoding, is_padded=is_padded)


def _is_utf_8(file: Path, *, may_be_ascii: bool) -> bool:
    """Whether `decode_file` would read a file as UTF-8 without bad bytes."""
    decoder, is_ascii = codecs.getincrementaldecoder("utf-8-sig")(), True
    with open_bytes(file) as stream:
        while data := stream.read(_BYTES_A_READ):
            with suppress(UnicodeDecodeError):
                if "\0" not in decoder.decode(data):
                    is_ascii = is_ascii and data.isascii()
                    continue
            return False
        with suppress(UnicodeDecodeError):
            decoder.decode(b"", final=True)
            return may_be_ascii or not is_ascii
    return False


def _first(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    """Return the first of these columns that is not blank."""
    return next(filter(None, (cell_text(row.get(name)) for name in columns)), "")


def cell_text(value: Any) -> str:
    """Return the text of a cell: none of null, NaN or a list; 17 of 17.0, as pandas writes ids."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_text = isinstance(value, str | int | float) and value == value  # NaN is not itself
    return str(value).strip() if is_text else ""


def decode_file(file: Path, encoding: str | None = None) -> tuple[str, str]:
    """Read a text of any encoding: the text, with line feeds, and the name of the encoding.

    It is the first of these in which all bytes are valid: that of a byte order mark, UTF-8,
    `encoding` or what a page of HTML declares. Else it is the first of these in which few bytes are
    bad (`_has_few_bad`), or what charset-normalizer finds, unless that `_is_doubtful`. Of ASCII
    bytes, such as those of ISO-2022-JP, UTF-8 is tried last.

    Raises:
        ValueError: there is no such encoding.
    """
    with open_bytes(file) as stream:
        data = stream.read()
    expected = encoding or (
        _declared_encoding(data) if plain_ending(file) in HTML_ENDINGS else None
    )
    names = [expected] if expected else []
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        names.insert(0, "utf-16")
    names.insert(len(names) if data.isascii() else 0, "utf-8-sig")
    for name in names:
        with suppress(UnicodeDecodeError):
            if "\0" not in (text := data.decode(name)):
                return _with_line_feeds(text), name
    for name in filter(None, ("utf-8-sig", expected)):
        text = data.decode(name, "replace")
        if _has_few_bad(text, is_utf_8=codecs.lookup(name).name.startswith("utf-8")):
            return _with_line_feeds(text), name
    guess = None
    if not is_binary(data):
        guess = from_bytes(data, cp_isolation=_USUAL_ENCODINGS).best() or from_bytes(data).best()
    if guess is not None and _is_doubtful(data, guess.encoding):
        with suppress(UnicodeDecodeError):
            text = _with_line_feeds(data.decode("cp1252"))
            logger.info("%s is read as cp1252.", file)
            return text, "cp1252"
    if guess is None:
        raise ValueError(f"{file} is not text of a known encoding.")
    logger.info("%s is read as %s.", file, guess.encoding)
    return _with_line_feeds(str(guess)), guess.encoding


def _is_doubtful(data: bytes, guess: str) -> bool:
    """Whether a guess rests on single bytes beyond ASCII, as signs of cp1252 are in 20 °C."""
    runs = re.findall(rb"[\x80-\xff]+", data)
    n_beyond = sum(map(len, runs))
    is_single = 2 * sum(len(run) == 1 for run in runs) > n_beyond and b"\0" not in data
    is_rare = guess.startswith(_EAST_ASIAN) and n_beyond < _EAST_ASIAN_SHARE * len(data)
    return is_single and (is_rare or n_beyond <= 2)


def _has_few_bad(text: str, *, is_utf_8: bool) -> bool:
    """Whether a text, decoded with U+FFFD for bad bytes, is likely to be of this encoding.

    UTF-8 shows in its characters of several bytes: most of them must be good.
    """
    n_bad = text.count("\ufffd")
    if "\0" in text:
        return False
    if is_utf_8:
        n_good = sum(character > "\x7f" for character in text) - n_bad
        return n_bad < n_good and n_bad <= max(_FEW_BAD, _BAD_SHARE * len(text))
    return n_bad < _BAD_SHARE * len(text)


def _declared_encoding(data: bytes) -> str | None:
    """Return the encoding that HTML declares, by the WHATWG's labels: iso-8859-1 is cp1252.

    A declaration that can be read as ASCII is not in UTF-16, whatever it says.
    """
    declaration = _DECLARATION.search(data, 0, 1024)
    encoding = webencodings.lookup(declaration[1].decode()) if declaration else None
    if encoding is None or encoding.name.startswith(("utf-16", "x-user-defined")):
        return None
    return encoding.codec_info.name


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
