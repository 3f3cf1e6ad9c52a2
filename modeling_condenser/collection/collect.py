"""Builds a collection from files of documents: passages of whole sentences, in BEIR's layout."""

import codecs
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import regex  # type: ignore[import-untyped]

from modeling_condenser.files.atomic import atomic_folder, write_json
from modeling_condenser.files.models import find_model_folder, module_paths, read_json
from modeling_condenser.publishing.markdown import as_list

from .beir import CORPUS_FILE, QUERIES_FILE
from .document_files import (
    NO_TEXT,
    TEXT_COLUMNS,
    Collected,
    FileReader,
    FoundDocument,
    find_files,
)
from .labels import Labels, write_labels
from .passages import hash_text
from .sentences import SPACELESS, cut_at_sentences

logger = logging.getLogger(__name__)

FACTS_FILE = "collected.json"
_LEAST_TOKENS, _MAX_WORDS, _MAX_TOKENS = 16, 180, 256  # 180 English words are about 256 tokens
# A character of a script without spaces is a word, and so are 20 characters without a space.
_WORD = regex.compile(rf"[{SPACELESS}]|[^\s{SPACELESS}]{{1,20}}")


def collect(
    folders: list[str],
    out: str,
    *,
    labels: str | None = None,
    label_columns: dict[str, str] | None = None,
    max_tokens: int | None = None,
    overlap: int = 0,
    model: str | None = None,
    text_column: list[str] | str | None = None,
    title_column: str = "title",
    id_column: str = "_id",
    encoding: str | None = None,
) -> Collected:
    """Write the passages of files as a collection, in a new folder or that of an earlier call.

    A text file (.txt, .rst, .md, .html, .pdf, .docx) is one document, a table (.csv, .tsv, .jsonl,
    .json, .parquet) has one in each row. Documents are cut at headings and between sentences.

    Args:
        folders: folders with files at any depth, or files.
        out: folder of the collection.
        labels: table with the columns question, and passage (its text), file or id; read as
            documents, too, only if `folders` names it.
        label_columns: our names -> the table's names, such as {question: Frage, passage: Antwort}.
        max_tokens: of a passage with its title; without a model, words; 256 tokens or 180 words by
            default. A Chinese, Japanese or Thai character is a word.
        overlap: tokens that a passage may repeat of the one before, as whole sentences.
        model: folder or Hub name of the encoder whose tokens are counted, at most as many as it
            reads.
        text_column: of tables, before text, content and body; the first that a row has is read.
        title_column: of tables, before title; "" for no titles.
        id_column: of tables, before _id and id; without ids, rows have their numbers, which change
            when a row goes.
        encoding: of text that is not UTF-8; found out by default.

    Raises:
        FileNotFoundError: a folder, a file or the model does not exist.
        ValueError: `out` holds something else, a setting is wrong, or there is no document.
    """
    target, sources = Path(out), list(map(str, as_list(folders)))
    if label_columns and not labels:
        raise ValueError("label_columns is set, but there are no labels: give labels, too.")
    _check(sources, target, labels, encoding)
    cut = _open_cutter(model, max_tokens, overlap)
    no_documents = {target.resolve(), Path(labels or out).resolve()}
    files = find_files(sources, without=no_documents - {Path(each).resolve() for each in sources})
    done = Collected(str(out))
    text_columns = as_list(text_column)
    columns = (*text_columns, *TEXT_COLUMNS)
    reader = FileReader(done, columns, title_column, id_column, encoding)
    read_labels = Labels.read(Path(labels), label_columns or {}, encoding) if labels else None
    with atomic_folder(target) as folder:
        with (folder / CORPUS_FILE).open("w", encoding="utf-8") as corpus:
            documents, stated = _write_passages(corpus, reader.read(files), cut, done)
        named = {*text_columns, title_column, id_column} - {"", "title", "_id"}
        _check_columns(named, reader.columns)
        if not documents:
            found = f":\n{done}" if str(done) else ", because it has no files of a known kind."
            raise ValueError(f"There are no documents in {', '.join(sources)}{found}")
        if read_labels:
            write_labels(folder, read_labels, documents, stated, done)
        write_json(folder / FACTS_FILE, vars(done))
    done.warn()
    return done


def _check(sources: list[str], target: Path, labels: str | None, encoding: str | None) -> None:
    """Check that nothing will be lost, before hours of reading."""
    for source in sources:
        if (Path(source) / FACTS_FILE).is_file():
            raise ValueError(
                f"{source} is a collection that `collect` wrote: name folders of documents, and "
                'last the folder to write. A list is one word: --text_column "[answer, body]".'
            )
    if labels and not Path(labels).is_file():
        raise FileNotFoundError(f"There is no file {labels}.")
    if target.is_dir() and any(target.iterdir()) and not (target / FACTS_FILE).is_file():
        raise ValueError(
            f"{target} is not empty and was not written by `collect`. The last word names the "
            "folder to write: choose a new one."
        )
    if (target / QUERIES_FILE).is_file() and not labels:
        raise ValueError(f"{target} has queries, which would be lost: give --labels again.")
    try:
        codecs.lookup(encoding or "utf-8")
    except LookupError:
        raise ValueError(f"encoding is {encoding!r}, expected a name such as cp1252.") from None


def _check_columns(wanted: Iterable[str], columns: Collection[str]) -> None:
    """Raise a ValueError if no table has a column that the user named."""
    if missing := sorted(set(wanted).difference(columns)):
        by_lower_case = {column.casefold(): column for column in columns}
        near = get_close_matches(missing[0].casefold(), by_lower_case, n=1)
        hint = f" Did you mean {by_lower_case[near[0]]}?" if near else ""
        raise ValueError(
            f"No table has a column {missing[0]!r}.{hint} Columns are "
            f"{', '.join(sorted(columns)) or 'none, as there are no tables'}."
        )


Cut = Callable[[str, str], Iterator[tuple[str, str, bool]]]
"""Title and text of a section -> its passages: title, text, and whether it ends with a sentence."""


def _open_cutter(model: str | None, max_tokens: int | None, overlap: int) -> Cut:
    tokenizer: Any = None
    longest, n_special = max_tokens or _MAX_WORDS, 0
    if model:
        from transformers import AutoTokenizer  # takes seconds

        folder = find_model_folder(model)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        limits = read_json(folder / module_paths(folder)[0] / "sentence_bert_config.json", {})
        limit = limits.get("max_seq_length") or tokenizer.model_max_length
        longest = min(max_tokens or _MAX_TOKENS, limit)
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


def _write_passages(
    corpus: IO[str], documents: Iterable[FoundDocument], cut: Cut, done: Collected
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Write the passages of documents.

    Returns:
        Document -> ids of its passages, and the names of those whose name an earlier one has.
    """
    written: dict[str, list[str]] = {}
    stated_names, n_with = dict[str, str](), Counter[str]()
    seen: dict[int, str] = {}  # hash of a passage -> its id
    named: set[str] = set()  # ids of passages
    for found in documents:
        done.counts["documents"] += 1
        base = name = re.sub(r"\s", "_", found.name)
        n_with[base] += 1
        if n_with[base] > 1:
            name = f"{base}_{n_with[base]}"
        while name in written:
            name += "_"
        if name != base:
            stated_names[name] = base
        is_row, stated = found.name != found.file, found.document.title
        title = stated if stated or is_row else re.sub(r"[-_\s]+", " ", Path(found.file).stem)
        ids: list[str] = []
        for section in found.document.sections:
            headings = " > ".join(section.headings)
            for heading, text, is_whole in cut(_join(title, headings), section.text):
                done.counts["passages"] += 1
                own = name if is_row and not ids else f"{name}#{len(ids) + 1}"
                while own in named:
                    own += "_"
                named.add(own)
                # Texts in two files are copies, although a title may be made of a file's name.
                copied = f"{_join(stated, headings)}\0{text}"
                ids.append(seen.setdefault(hash_text(copied), own))
                if ids[-1] != own:
                    done.left_out["passages"]["copies of another passage"] += 1
                    done.copies[own] = ids[-1]
                    continue
                if not is_whole:
                    done.notes["passages"]["cut within a sentence"] += 1
                row = {"_id": own, "title": heading, "text": text, "headings": headings}
                corpus.write(json.dumps({**row, "file": found.file}, ensure_ascii=False) + "\n")
        if ids:
            written[name] = ids
        else:
            done.left_out["documents"][NO_TEXT] += 1
        if len(ids) > 1:
            done.notes["documents"]["of several passages"] += 1
    if stated_names:
        logger.warning(
            "An id or name of several documents cannot name one in labels (%d times, such as %s).",
            *(len(stated_names), next(iter(stated_names.values()))),
        )
    return written, stated_names


def _join(title: str, headings: str) -> str:
    return " > ".join(filter(None, (title, headings)))
