"""Turns labels (questions with the passages that answer them) into queries and judgements."""

import hashlib
import json
import logging
import re
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import regex  # type: ignore[import-untyped]

from .beir import CORPUS_FILE, QRELS_FOLDER, QRELS_HEADER, QUERIES_FILE
from .document_files import RAGGED_ROWS, Collected, as_whole_number
from .passages import plain_text
from .text_files import read_any_rows, read_json

logger = logging.getLogger(__name__)

_SPLITS = ("train", "dev", "test")
_QUESTION_COLUMNS = ("question", "query")
_TEXT_COLUMNS, _NAME_COLUMNS = ("passage", "text"), ("file", "passage_id", "id")
_KINDS = (_QUESTION_COLUMNS, _TEXT_COLUMNS, _NAME_COLUMNS)
_COLUMNS = tuple(chain.from_iterable(_KINDS))
_MOST_DOCUMENTS = 5  # with a text; one that more have does not say which is meant
_MARKS = regex.compile(r"[^\p{L}\p{M}\p{N}]+")
_BROAD = 5  # passages of a question; more are hardly all answers
_SHORT_TEXT = 30  # letters and digits; of a shorter part of a passage, two do not say it either


class Labels(NamedTuple):
    """The rows of a file of labels, and how many have more fields than columns."""

    file: Path
    rows: list[dict[str, Any]]
    n_ragged: int

    @classmethod
    def read(cls, file: Path, columns: Mapping[str, str], encoding: str | None = None) -> "Labels":
        """Read a file; `columns` are our names -> the file's names.

        `encoding` is that of text that is not UTF-8; found out by default.

        Raises:
            ValueError: a column is missing.
        """
        table, n_ragged, _ = read_any_rows(file, encoding)
        rows = [{name.strip(): value for name, value in row.items()} for row in table]
        stated = dict.fromkeys(chain.from_iterable(rows))
        for name, own in columns.items():
            if name not in _COLUMNS or own not in stated:
                raise ValueError(
                    f"label_columns is {dict(columns)}: expected some of {', '.join(_COLUMNS)}, "
                    f"and columns of {file}, which are {', '.join(stated)}."
                )
        ours = {own: name for name, own in columns.items()}
        # A column that the user named stands for all of its kind.
        replaced = {name for kind in _KINDS if columns.keys() & {*kind} for name in kind}
        names = {
            name: ours.get(name, name.lower())
            for name in stated
            if name in ours or name.lower() not in replaced
        }
        found = set(names.values())
        for expected in (_QUESTION_COLUMNS, (*_TEXT_COLUMNS, *_NAME_COLUMNS)):
            if found.isdisjoint(expected):
                raise ValueError(
                    f"{file} has no column {' or '.join(expected)}: its columns are "
                    f"{', '.join(stated) or 'none'}. Name them with --label_columns "
                    '"{question: ..., passage: ...}".'
                )
        if unread := found.difference(_COLUMNS):
            logger.info("Columns of %s that are not read: %s.", file, ", ".join(sorted(unread)))
        labels = [
            {names[name]: value for name, value in row.items() if name in names} for row in rows
        ]
        return cls(file, labels, n_ragged)


def write_labels(
    folder: Path,
    labels: Labels,
    documents: Mapping[str, Sequence[str]],
    stated: Mapping[str, str],
    done: Collected,
) -> None:
    """Write queries and judgements; all labels of a document are in one split.

    Args:
        folder: of the collection, with its passages.
        documents: document -> ids of its passages, also of those that it shares with earlier ones.
        stated: document -> its name, for those whose name an earlier one has.
        done: counts the labels, and why some are left out.

    Raises:
        ValueError: no label has a passage in the collection.
    """
    owners: dict[str, str] = {}  # passage -> the first document that has it
    for document, ids in documents.items():
        for passage in ids:
            owners.setdefault(passage, document)
    done.counts["labels"] = len(labels.rows) + labels.n_ragged
    if labels.n_ragged:
        done.left_out["labels"][RAGGED_ROWS] = labels.n_ragged
    by_name = [(stated.get(document, document), ids) for document, ids in documents.items()]
    judged = _find_passages(labels.rows, folder / CORPUS_FILE, by_name, owners, done)
    if not judged:
        why = ", ".join(f"{reason}: {n:,}" for reason, n in done.left_out["labels"].items())
        raise ValueError(
            f"{labels.file}: no label has a passage in the collection ({why}). A passage is its "
            "text or a part of it, a file is named as it is in the folder, and ids are in the "
            "columns of your tables."
        )
    _warn_of_titles(judged, folder / CORPUS_FILE)
    queries, qrels = [], {split: ["\t".join(QRELS_HEADER)] for split in _SPLITS}
    splits = _split_by_document([passages for _, passages in judged], owners)
    for (question, passages), split in zip(judged, splits, strict=True):
        query = _name_query(question)
        queries.append(json.dumps({"_id": query, "text": question}, ensure_ascii=False))
        qrels[split] += [f"{query}\t{passage}\t1" for passage in sorted(passages)]
    done.notes["labels"] = Counter({split: splits.count(split) for split in _SPLITS})
    if n_broad := sum(len(passages) > _BROAD for _, passages in judged):
        logger.warning(
            "%d of %d questions have more than %d passages, because a label that names a document "
            "is about all of its passages. Give the text of a passage to name one.",
            *(n_broad, len(judged), _BROAD),
        )
    _write_lines(folder / QUERIES_FILE, queries)
    (folder / QRELS_FOLDER).mkdir()
    for split, lines in qrels.items():
        if split in splits:
            _write_lines(folder / QRELS_FOLDER / f"{split}.tsv", lines)
    if empty := [split for split in _SPLITS if split not in splits]:
        logger.warning("No question is in %s: give labels of more documents.", " or ".join(empty))


def _warn_of_titles(judged: Sequence[tuple[str, set[str]]], corpus: Path) -> None:
    """Log a warning if questions are the titles of their passages, as in a collected FAQ."""
    titles = {row["_id"]: _squeeze(row["title"]) for row in read_json(corpus)}
    n_same = sum(_squeeze(question) in map(titles.get, passages) for question, passages in judged)
    if n_same > len(judged) / 2:
        logger.warning(
            "%d of %d questions are the title of their own passage, so every measure will be near "
            "1 and say nothing of your users. Leave the titles out (--title_column ''), or give "
            "questions that users asked.",
            *(n_same, len(judged)),
        )


def _name_query(question: str) -> str:
    """The id of a question, which stays when others come and go: run files name it."""
    return f"q{hashlib.sha256(plain_text(question).encode()).hexdigest()[:12]}"


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _find_passages(
    labels: Sequence[Mapping[str, Any]],
    corpus: Path,
    documents: Sequence[tuple[str, Sequence[str]]],
    owners: Mapping[str, str],
    done: Collected,
) -> list[tuple[str, set[str]]]:
    """The questions that have passages, each with all of its passages."""
    texts, parts = _find_texts(corpus, [_first(row, _TEXT_COLUMNS) for row in labels], owners)
    names = _find_named([_first(row, _NAME_COLUMNS) for row in labels], documents, owners)
    judged: dict[str, tuple[str, set[str]]] = {}  # `plain_text` of a question is the key
    left_out, unknown = done.left_out["labels"], []
    for row in labels:
        question, text = _first(row, _QUESTION_COLUMNS), _first(row, _TEXT_COLUMNS)
        name = _first(row, _NAME_COLUMNS)
        passages = texts[_squeeze(text)] if text else names[name]
        if not question:
            left_out["no question"] += 1
        elif not passages:
            left_out["no such passage, or several documents"] += 1
            unknown.append(text or name or question)
        elif text and (why := _why_unclear(_squeeze(text), passages, owners, parts)):
            left_out[why] += 1
        else:
            judged.setdefault(plain_text(question), (question, set()))[1].update(passages)
    if unknown:
        names_shown = ", ".join(f"{name!r:.80}" for name in unknown[:3])
        if len(unknown) > 3:
            names_shown += f" and {len(unknown) - 3} more"
        logger.warning(
            "Labels that fit no passage, or several documents (of a table, give the row's id): %s",
            names_shown,
        )
    return list(judged.values())


def _why_unclear(
    text: str, passages: Iterable[str], owners: Mapping[str, str], parts: Collection[str]
) -> str:
    """Why a text does not say which passages are meant; nothing if it does."""
    n_documents = len({owners[passage] for passage in passages})
    if n_documents > _MOST_DOCUMENTS:
        return f"the text is in more than {_MOST_DOCUMENTS} documents"
    if n_documents > 1 and text in parts and len(text) < _SHORT_TEXT:
        return "the text is short and in several documents"
    return ""


def _first(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """The first value of these columns that is not blank."""
    values = (row[name] for name in columns if row.get(name) is not None)
    texts = (str(as_whole_number(value)).strip() for value in values)
    return next(filter(None, texts), "")


def _squeeze(text: str) -> str:
    """The letters and digits of a text, because Markdown and HTML are read without their marks.

    In Unicode's form NFKC: files of macOS have letters and accents apart, and PDF has ligatures.
    """
    return _MARKS.sub("", unicodedata.normalize("NFKC", text)).casefold()


def _find_texts(
    corpus: Path, texts: Iterable[str], owners: Mapping[str, str]
) -> tuple[Mapping[str, list[str]], set[str]]:
    """`_squeeze` of a text -> the passages of which it is, or has, or spans a part.

    And the texts that are no whole passage.
    """
    wanted = set(map(_squeeze, texts)) - {""}
    found: dict[str, list[str]] = defaultdict(list)
    rows = [*read_json(corpus)] if wanted else []
    whole_passages = wanted.intersection(_squeeze(row["text"]) for row in rows)
    others = wanted - whole_passages
    for _, group in groupby(rows, key=lambda row: owners[row["_id"]]):
        own, parts, above = [*group], list[str](), ""
        for row in own:
            # The headings above a text are quoted, too: they stand before their first passage.
            heading = "" if row["title"] == above else row["title"].rpartition(" > ")[2]
            parts.append(_squeeze(heading + row["text"]))
            above = row["title"]
            if (text := _squeeze(row["text"])) in whole_passages:
                found[text].append(row["_id"])
        document, ends = "".join(parts), np.cumsum([len(part) for part in parts])
        for text in others:
            if text in document:
                start = document.index(text)
                first, last = np.searchsorted(ends, [start, start + len(text) - 1], side="right")
                while last + 1 < len(own) and text in parts[last + 1]:  # repeated by overlap
                    last += 1
                found[text] += [row["_id"] for row in own[first : last + 1]]
    return found, others


def _find_named(
    names: Iterable[str], documents: Iterable[tuple[str, Sequence[str]]], owners: Iterable[str]
) -> dict[str, Sequence[str]]:
    """Name -> the passage that has it as its id, or the passages of the document with the name.

    A document is named by its file, also without its first folder or folders, or by the id of its
    row. A name of several different documents has no passages.
    """
    exact: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    loose: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for document, ids in documents:
        document = unicodedata.normalize("NFC", document)
        folders = document.split("/")
        for i in range(len(folders)):
            (loose if i > 1 else exact)["/".join(folders[i:])].add(tuple(ids))
        for row_id in {document.partition("#")[2], document.rpartition("#")[2]} - {""}:
            loose[row_id].add(tuple(ids))
    exact |= {unicodedata.normalize("NFC", passage): {(passage,)} for passage in owners}
    found: dict[str, Sequence[str]] = {}
    for name in names:
        key = re.sub(r"\s", "_", unicodedata.normalize("NFC", name))
        key = key.replace("\\", "/").removeprefix("./")
        passages = exact.get(key) or loose.get(key, set())
        found[name] = next(iter(passages)) if len(passages) == 1 else ()
    return found


def _split_by_document(judged: Iterable[Iterable[str]], owners: Mapping[str, str]) -> list[str]:
    """The split of each question: questions with a document in common have the same."""
    linked: dict[str, str] = {}  # document -> one before it in the alphabet, in the same split

    def first(document: str) -> str:
        while document in linked:
            document = linked[document]
        return document

    groups = [[owners[passage] for passage in passages] for passages in judged]
    for group in groups:
        lowest, *others = sorted(set(map(first, group)))
        linked.update(dict.fromkeys(others, lowest))
    hashes = [zlib.crc32(first(group[0]).encode()) for group in groups]
    return [{0: "test", 1: "dev"}.get(number % 5, "train") for number in hashes]
