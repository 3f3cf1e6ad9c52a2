"""Turns labels (questions with the passages that answer them) into queries and judgements."""

import json
import logging
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from .beir import CORPUS_FILE, QRELS_FOLDER, QRELS_HEADER, QUERIES_FILE
from .passages import plain_text
from .text_files import read_any_rows, read_json

logger = logging.getLogger(__name__)

_SPLITS = ("train", "dev", "test")
_QUESTION_COLUMNS = ("question", "query")
_TEXT_COLUMNS, _NAME_COLUMNS = ("passage", "text"), ("file", "passage_id", "id")
_MOST_DOCUMENTS = 5  # with a text; one that more have does not say which is meant

Judged = dict[str, tuple[str, set[str]]]
"""`plain_text` of a question -> the question, and the ids of its passages."""


def write_labels(
    folder: Path, file: Path, documents: Mapping[str, Sequence[str]]
) -> tuple[int, Counter[str], Counter[str]]:
    """Write queries and judgements; all labels of a document are in one split.

    Args:
        folder: of the collection, with its passages.
        file: of the labels.
        documents: document -> ids of its passages, also of those that it shares with earlier ones.

    Returns:
        The number of labels; split -> queries; why labels were left out -> labels.

    Raises:
        ValueError: a column is missing, or no label has a passage in the collection.
    """
    owners: dict[str, str] = {}
    for document, ids in documents.items():
        owners.update((passage, document) for passage in ids if passage not in owners)
    labels, n_ragged = _read_labels(file)
    judged, left_out = _find_passages(labels, folder / CORPUS_FILE, documents, owners)
    left_out += Counter({"rows with more fields than columns": n_ragged})
    if not judged:
        raise ValueError(
            f"{file}: no label has a passage in the collection ({dict(left_out)}). A passage is "
            "its text or a part of it, a file is named as it is in the folder, and ids are in "
            "the columns of your tables."
        )
    splits = _split_by_document([passages for _, passages in judged.values()], owners)
    counts = Counter({split: splits.count(split) for split in _SPLITS})
    if empty := [split for split in _SPLITS if not counts[split]]:
        logger.warning("No question is in %s: give labels of more documents.", " or ".join(empty))
    queries = [(f"q{number}", *label) for number, label in enumerate(judged.values(), start=1)]
    with (folder / QUERIES_FILE).open("w", encoding="utf-8") as stream:
        for query, question, _ in queries:
            stream.write(json.dumps({"_id": query, "text": question}, ensure_ascii=False) + "\n")
    (folder / QRELS_FOLDER).mkdir()
    for split in filter(counts.get, _SPLITS):
        lines = ["\t".join(QRELS_HEADER)]
        for (query, _, passages), other in zip(queries, splits, strict=True):
            lines += [f"{query}\t{passage}\t1" for passage in sorted(passages) if other == split]
        text = "\n".join(lines) + "\n"
        (folder / QRELS_FOLDER / f"{split}.tsv").write_text(text, encoding="utf-8")
    return len(labels) + n_ragged, counts, left_out


def _read_labels(file: Path) -> tuple[list[dict[str, Any]], int]:
    """Read labels, and count those that have more fields than columns."""
    rows, n_ragged, _ = read_any_rows(file)
    labels = [{str(name).strip().lower(): value for name, value in row.items()} for row in rows]
    columns = {name for row in labels for name in row}
    for expected in (_QUESTION_COLUMNS, (*_TEXT_COLUMNS, *_NAME_COLUMNS)):
        if columns.isdisjoint(expected):
            raise ValueError(
                f"{file} has no column {' or '.join(expected)}: its columns are "
                f"{', '.join(sorted(columns)) or 'none'}."
            )
    return labels, n_ragged


def _find_passages(
    labels: Sequence[Mapping[str, Any]],
    corpus: Path,
    documents: Mapping[str, Sequence[str]],
    owners: Mapping[str, str],
) -> tuple[Judged, Counter[str]]:
    """Find the passages of each question, and count the labels that have none."""
    texts = _find_texts(corpus, [_first(row, _TEXT_COLUMNS) for row in labels], owners)
    names = _find_named([_first(row, _NAME_COLUMNS) for row in labels], documents, owners)
    judged: Judged = {}
    left_out, unknown = Counter[str](), []
    for row in labels:
        question, text = _first(row, _QUESTION_COLUMNS), _first(row, _TEXT_COLUMNS)
        name = _first(row, _NAME_COLUMNS)
        passages = texts[_squeeze(text)] if text else names[name]
        n_documents = len({owners[passage] for passage in passages})
        if not question:
            left_out["no question"] += 1
        elif not passages:
            left_out["no such passage"] += 1
            unknown.append(text or name)
        elif text and n_documents > _MOST_DOCUMENTS:
            left_out[f"the text is in more than {_MOST_DOCUMENTS} documents"] += 1
        else:
            judged.setdefault(plain_text(question), (question, set()))[1].update(passages)
    if unknown:
        names_shown = ", ".join(f"{name!r:.80}" for name in unknown[:3])
        logger.warning("No passage, or several, of the collection: %s", names_shown)
    return judged, left_out


def _first(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """The first value of these columns that is not blank."""
    values = (str(row[name]).strip() for name in columns if row.get(name) is not None)
    return next(filter(None, values), "")


def _squeeze(text: str) -> str:
    """The letters and digits of a text, because Markdown and HTML are read without their marks."""
    return re.sub(r"\W+", "", text).casefold()


def _find_texts(
    corpus: Path, texts: Iterable[str], owners: Mapping[str, str]
) -> Mapping[str, list[str]]:
    """`_squeeze` of a text -> the passages of which it is, or has, or spans a part."""
    wanted = set(map(_squeeze, texts)) - {""}
    found: dict[str, list[str]] = defaultdict(list)
    passages = [(row["_id"], _squeeze(row["text"])) for row in read_json(corpus)] if wanted else []
    whole_passages = wanted.intersection(text for _, text in passages)
    others = wanted - whole_passages
    for _, rows in groupby(passages, key=lambda passage: owners[passage[0]]):
        ids, parts = zip(*rows, strict=True)
        document, ends = "".join(parts), np.cumsum([len(part) for part in parts])
        inside = [text for text in others if text in document]
        for text in (*whole_passages.intersection(parts), *inside):
            start = document.index(text)
            first, last = np.searchsorted(ends, [start, start + len(text) - 1], side="right")
            found[text] += ids[first : last + 1]
    return found


def _find_named(
    names: Iterable[str], documents: Mapping[str, Sequence[str]], owners: Iterable[str]
) -> dict[str, Sequence[str]]:
    """Name -> the passage that has it as its id, or the passages of the document with the name.

    A document is named by its file, also without its first folder or folders, or by the id of its
    row. A name of several different documents has no passages.
    """
    exact: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    loose: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for document, ids in documents.items():
        folders = document.split("/")
        for i in range(len(folders)):
            (loose if i > 1 else exact)["/".join(folders[i:])].add(tuple(ids))
        loose[document.rpartition("#")[2]].add(tuple(ids))
    for passage in owners:
        exact[passage] = {(passage,)}
    found: dict[str, Sequence[str]] = {}
    for name in names:
        key = re.sub(r"\s", "_", name).replace("\\", "/").removeprefix("./")
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
    return [_hash_to_split(first(group[0])) for group in groups]


def _hash_to_split(name: str) -> str:
    return {0: "test", 1: "dev"}.get(zlib.crc32(name.encode()) % 5, "train")
