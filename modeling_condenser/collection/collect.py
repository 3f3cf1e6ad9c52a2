"""Builds a collection from files of documents: passages of whole sentences, in BEIR's layout."""

import codecs
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import regex  # type: ignore[import-untyped]

from modeling_condenser.model_files.model_folder import find_model_folder
from modeling_condenser.publishing.markdown import as_list
from modeling_condenser.runs.progress import bar
from modeling_condenser.runs.run_folder import whole_folder
from modeling_condenser.runs.whole_files import write_json

from .beir import CORPUS_FILE, QUERIES_FILE
from .labels import write_labels
from .passages import hash_text
from .sections import DOCUMENT_ENDINGS, Section, read_document
from .sentences import cut_at_sentences
from .text_files import plain_name, read_any_rows

logger = logging.getLogger(__name__)

FACTS_FILE = "collected.json"
_TABLE_ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
_TEXT_COLUMNS = ("text", "content", "body")
_INSTALL_HINT = 'pip install -c constraints.txt -e ".[documents]"'
_NO_TEXT = "no text"
_LEAST_TOKENS, _MAX_WORDS, _MAX_TOKENS = 16, 180, 256  # 180 English words are about 256 tokens
# A character of a script without spaces is a word, and so are 20 characters without a space.
_SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(rf"[{_SPACELESS}]|[^\s{_SPACELESS}]{{1,20}}")


class _Document(NamedTuple):
    """A file of text or a row of a table; its title may be made of the file's name."""

    name: str
    file: str
    title: str
    is_titled: bool
    sections: Sequence[Section]


def _counters() -> dict[str, Counter[str]]:
    return defaultdict(Counter)


@dataclass
class Collected:
    """What `collect` read, and what it left out.

    Attributes:
        folder: of the collection.
        counts: "files", "documents", "passages" and "labels" that there are.
        left_out: of these, why they are not in the collection -> how many.
        notes: of these, other figures.
        unread: file -> why it was not read, or not to its end.
    """

    folder: str
    counts: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, Counter[str]] = field(default_factory=_counters)
    notes: dict[str, Counter[str]] = field(default_factory=_counters)
    unread: dict[str, str] = field(default_factory=dict)

    def leave_out(self, file: str, why: str, details: str = "") -> None:
        self.left_out["files"][why] += 1
        self.unread[file] = details or why

    def __str__(self) -> str:
        lines = []
        for what, n in self.counts.items():
            notes = ", ".join(f"{name} {number:,}" for name, number in self.notes[what].items())
            lines.append(f"{what:<10}{n - self.left_out[what].total():>10,}  {notes}".rstrip())
            lines += [f"  left out{n:>10,}  {why}" for why, n in self.left_out[what].items()]
        return "\n".join(lines)

    def warn(self) -> None:
        """Log a warning if more than a tenth was left out."""
        for what, n in self.counts.items():
            if (n_left_out := self.left_out[what].total()) > n / 10:
                reasons = ", ".join(f"{why} ({n:,})" for why, n in self.left_out[what].items())
                logger.warning("%d of %d %s were left out: %s", n_left_out, n, what, reasons)


def collect(
    folders: list[str],
    out: str,
    *,
    labels: str | None = None,
    max_tokens: int | None = None,
    overlap: int = 0,
    model: str | None = None,
    text_column: list[str] | None = None,
    title_column: str = "title",
    encoding: str | None = None,
) -> Collected:
    """Write the passages of files as a collection, in a new folder or that of an earlier call.

    A text file (.txt, .md, .html, .pdf, .docx) is one document, a table (.csv, .tsv, .jsonl, .json,
    .parquet) has one in each row. Documents are cut at headings and between sentences.

    Args:
        folders: folders with files at any depth, or files.
        out: folder of the collection.
        labels: table with the columns question, and passage (its text), file or id.
        max_tokens: of a passage with its title; without a model, words; 256 tokens or 180 words by
            default. A Chinese, Japanese or Thai character is a word.
        overlap: tokens that a passage may repeat of the one before, as whole sentences.
        model: folder or Hub name of the encoder whose tokens are counted, at most as many as it
            reads.
        text_column: of tables; by default text, content or body. Of several, the first that a row
            has is read.
        title_column: of tables.
        encoding: of text that is not UTF-8; found out by default.

    Raises:
        FileNotFoundError: a folder, a file or the model does not exist.
        ValueError: `out` holds something else, a setting is wrong, or there is no document.
    """
    target, done = Path(out), Collected(str(out))
    _check_target(target, labels)
    _check_encoding(encoding or "utf-8")
    cut = _open_cutter(model, max_tokens, overlap)
    written = {target.resolve(), Path(labels or out).resolve()}
    found = _find_files(as_list(folders), without=written)
    how = _Reading(text_column or _TEXT_COLUMNS, title_column, encoding)
    with whole_folder(target) as folder:
        with (folder / CORPUS_FILE).open("w", encoding="utf-8") as corpus:
            documents = _write_passages(corpus, _read_files(found, how, done), cut, done)
        if not documents:
            raise ValueError(f"There are no documents in {', '.join(as_list(folders))}:\n{done}")
        if labels:
            kept = write_labels(folder, Path(labels), documents)
            done.counts["labels"], done.notes["labels"], done.left_out["labels"] = kept
        write_json(folder / FACTS_FILE, vars(done))
    done.warn()
    return done


def _check_target(target: Path, labels: str | None) -> None:
    """Check that nothing will be lost, before hours of reading."""
    if labels and not Path(labels).is_file():
        raise FileNotFoundError(f"There is no file {labels}.")
    if target.is_dir() and any(target.iterdir()) and not (target / FACTS_FILE).is_file():
        raise ValueError(
            f"{target} is not empty and was not written by `collect`. The last word names the "
            "folder to write: choose a new one."
        )
    if (target / QUERIES_FILE).is_file() and not labels:
        raise ValueError(f"{target} has queries, which would be lost: give --labels again.")


def _check_encoding(name: str) -> None:
    try:
        codecs.lookup(name)
    except LookupError:
        raise ValueError(f"encoding is {name!r}, expected a name such as cp1252.") from None


Cut = Callable[[str, str], Iterator[tuple[str, str, bool]]]
"""Title and text of a section -> its passages: title, text, and whether it ends with a sentence."""


def _open_cutter(model: str | None, max_tokens: int | None, overlap: int) -> Cut:
    tokenizer: Any = None
    longest, n_special = max_tokens or _MAX_WORDS, 0
    if model:
        from transformers import AutoTokenizer  # takes seconds

        tokenizer = AutoTokenizer.from_pretrained(find_model_folder(model))
        longest = min(max_tokens or _MAX_TOKENS, tokenizer.model_max_length)
        n_special = tokenizer.num_special_tokens_to_add()
    if longest < _LEAST_TOKENS or not 0 <= overlap < longest:
        raise ValueError(
            f"max_tokens is {longest} and overlap is {overlap}: expected at least {_LEAST_TOKENS} "
            "tokens, and an overlap of fewer."
        )

    def token_starts(text: str) -> list[int]:
        if tokenizer is None:
            return [word.start() for word in _WORD.finditer(text)]
        options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
        return [start for start, _ in tokenizer(text, **options)["offset_mapping"]]

    def cut(title: str, text: str) -> Iterator[tuple[str, str, bool]]:
        room = longest - n_special
        starts = token_starts(title)
        if len(starts) > room // 2:  # a title takes at most half of a passage
            title = title[: starts[room // 2]].strip()
        room -= min(len(starts), room // 2)
        spans = cut_at_sentences(text, token_starts(text), room=room, overlap=overlap)
        for start, stop, is_whole in spans:
            if passage := text[start:stop].strip():
                yield title, passage, is_whole

    return cut


def _find_files(sources: Iterable[str], *, without: set[Path]) -> dict[str, Path]:
    """Find files, by a name that begins with that of their folder; hidden ones are left out."""
    files: dict[str, Path] = {}
    for source in map(Path, sources):
        if not source.exists():
            raise FileNotFoundError(f"There is no file or folder {source}.")
        root = source.resolve()
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            parts = path.relative_to(root).parts
            if any(part.startswith(".") for part in parts) or not path.is_file():
                continue
            if without.isdisjoint((path, *path.parents)):
                other = files.setdefault("/".join((root.name, *parts)), path)
                if other != path:
                    raise ValueError(
                        f"{other} and {path} would have the same name in the collection: give one "
                        "folder that holds both."
                    )
    return files


class _Reading(NamedTuple):
    """How files are read; see `collect`."""

    text_columns: Sequence[str]
    title_column: str
    encoding: str | None


def _read_files(files: Mapping[str, Path], how: _Reading, done: Collected) -> Iterator[_Document]:
    """Read the documents of files; a file that cannot be read is named and left out."""
    for name, path in bar(files.items(), "read", unit="file"):
        done.counts["files"] += 1
        ending = Path(plain_name(path)).suffix.lower()
        try:
            if ending in DOCUMENT_ENDINGS:
                yield _read_text(name, path, how, done)
            elif ending in _TABLE_ENDINGS:
                yield from _read_table(name, path, how, done)
            else:
                done.leave_out(name, f"of another kind ({ending or 'no ending'})")
        except ImportError as error:
            done.leave_out(name, f"{ending} needs {error.name}: {_INSTALL_HINT}")
        except (ValueError, OSError) as error:
            logger.warning("%s cannot be read: %s", name, error)
            done.leave_out(name, "not readable", str(error))


def _note_encoding(encoding: str, done: Collected) -> None:
    if encoding != "utf-8":
        done.notes["files"][encoding] += 1


def _read_text(name: str, path: Path, how: _Reading, done: Collected) -> _Document:
    document, encoding = read_document(path, how.encoding)
    _note_encoding(encoding, done)
    if not document.sections:
        done.unread[name] = _NO_TEXT
    title = document.title or re.sub(r"[-_\s]+", " ", path.stem)
    return _Document(name, name, title, bool(document.title), document.sections)


def _read_table(name: str, path: Path, how: _Reading, done: Collected) -> Iterator[_Document]:
    rows, n_ragged, encoding = read_any_rows(path, how.encoding)
    _note_encoding(encoding, done)
    if n_ragged:
        done.counts["documents"] += n_ragged
        done.left_out["documents"]["rows with more fields than columns"] += n_ragged
    columns: dict[str, None] = {}
    has_column = False
    for number, row in enumerate(rows, start=1):
        columns |= dict.fromkeys(row)
        has_column = has_column or not row.keys().isdisjoint(how.text_columns)
        if not has_column:
            continue
        text = next((row[key] for key in how.text_columns if row.get(key) is not None), None)
        text = str(text) if isinstance(text, str | int | float) else ""
        row_id = next((row[key] for key in ("_id", "id") if row.get(key) not in (None, "")), number)
        title = " ".join(str(row.get(how.title_column) or "").split())
        yield _Document(f"{name}#{row_id}", name, title, True, [Section((), text)])
    if not has_column:
        raise ValueError(
            f"there is no column {' or '.join(how.text_columns)}, only "
            f"{', '.join(map(str, columns)) or 'an empty table'}. Name one with --text_column."
        )


def _write_passages(
    corpus: IO[str], documents: Iterable[_Document], cut: Cut, done: Collected
) -> dict[str, list[str]]:
    """Write the passages of documents; return the ids of each document's passages."""
    written: dict[str, list[str]] = {}
    seen: dict[int, str] = {}  # hash of a passage -> its id
    for document in documents:
        done.counts["documents"] += 1
        name = re.sub(r"\s", "_", document.name)
        while name in written:
            name += "_"
        ids: list[str] = []
        for section in document.sections:
            headings = " > ".join(section.headings)
            heading = " > ".join(filter(None, (document.title, headings)))
            content = heading if document.is_titled else headings
            for title, text, is_whole in cut(heading, section.text):
                done.counts["passages"] += 1
                own = name if "#" in name and not ids else f"{name}#{len(ids) + 1}"
                ids.append(seen.setdefault(hash_text(f"{content}\0{text}"), own))
                if ids[-1] != own:
                    done.left_out["passages"]["copies of another passage"] += 1
                    continue
                if not is_whole:
                    done.notes["passages"]["cut within a sentence"] += 1
                row = {"_id": own, "title": title, "text": text, "headings": headings}
                line = json.dumps({**row, "file": document.file}, ensure_ascii=False)
                corpus.write(f"{line}\n")
        if ids:
            written[name] = ids
        else:
            done.left_out["documents"][_NO_TEXT] += 1
        if len(ids) > 1:
            done.notes["documents"]["of several passages"] += 1
    return written
