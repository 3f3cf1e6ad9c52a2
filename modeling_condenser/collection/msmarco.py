"""MS MARCO folders, for passages and for documents, as they are published.

In, each also with `.gz`, all without header and with tabs between columns:

    passages     collection.tsv (id, text), or as RocketQA prepared them, which Condenser's section
                 4.4 uses: para.txt (id, text) and para.title.txt (id, title); corpus.tsv (id, text
                 or id, title, text) is what Tevatron's script makes of those two
    queries      queries.<split>.tsv, or RocketQA's <split>.query.txt
    judgements   qrels.<split>.tsv: query, 0, passage, 1 (or RocketQA's query, passage)
    documents    msmarco-docs.tsv (id, URL, title, body), with queries and judgements in
                 msmarco-doc<split>-queries.tsv and msmarco-doc<split>-qrels.tsv
    TREC DL      splits dl19 and dl20: msmarco-test<year>-queries.tsv, and <year>qrels-pass.txt or
                 <year>qrels-docs.txt

Out: a `Collection`. Quotes in these files are part of the text. A document's URL is left out.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from datasets import Dataset

from .collection import Collection
from .judgements import Question, gather_questions, judged_by_passages, read_trec_qrels
from .passages import Row, store_passages
from .text_files import find_file, plain_name, read_fields

logger = logging.getLogger(__name__)

DOCUMENTS_FILE = "msmarco-docs.tsv"
PASSAGE_FILES = ("para.txt", "corpus.tsv", "collection.tsv")
_TITLES_FILE = "para.title.txt"
_NO_TITLE = "-"  # in RocketQA's titles
_PASSAGE_QRELS = re.compile(r"qrels\.(.+)\.tsv|20(19|20)qrels-pass\.txt")
_DOCUMENT_QRELS = re.compile(r"msmarco-doc(.+)-qrels\.tsv|20(19|20)qrels-docs\.txt")


def is_msmarco_folder(folder: Path) -> bool:
    """Whether a folder holds MS MARCO's passages or documents."""
    return find_file(folder, DOCUMENTS_FILE, *PASSAGE_FILES) is not None


def load_msmarco_collection(path: str | Path, *, split: str = "dev.small") -> Collection:
    """Load one split of an MS MARCO folder.

    Args:
        path: the folder.
        split: as in the names of the files: "train", "dev", "dev.small", or "dl19", "dl20".

    Returns:
        All passages (or documents), and the queries that the split judges.

    Raises:
        FileNotFoundError: the folder lacks passages or queries.
        ValueError: unknown split, malformed line, empty file, duplicate id, or an id in the qrels
            that there is not; the message names file and line, or id.
    """
    folder = Path(path)
    qrels_file, queries_file = _find_split(folder, split)
    qrels = read_trec_qrels(qrels_file)
    questions = gather_questions(_read_questions(queries_file), source=str(queries_file))
    return judged_by_passages(
        load_msmarco_passages(folder),
        questions,
        qrels,
        name=folder.resolve().name,
        places=(_passages_file(folder), queries_file, qrels_file),
    )


def load_msmarco_passages(path: str | Path) -> Dataset:
    """Load the passages or documents of an MS MARCO folder: columns `_id`, `title`, `text`.

    Raises:
        FileNotFoundError: the folder holds none.
        ValueError: malformed line, empty file, duplicate id, or a title without its passage.
    """
    file = _passages_file(Path(path))
    titles = find_file(file.parent, _TITLES_FILE) if plain_name(file) == "para.txt" else None
    if titles is not None:
        rows = partial(_read_titled_passages, file, titles)
        return store_passages(rows, files=[file, titles], where=str(file))
    documents = plain_name(file) == DOCUMENTS_FILE
    rows = partial(_read_documents if documents else _read_passages, file)
    return store_passages(rows, files=[file], where=str(file))


def _passages_file(folder: Path) -> Path:
    names = (DOCUMENTS_FILE, *PASSAGE_FILES)
    found = [name for name in names if find_file(folder, name)]
    file = find_file(folder, *names)
    if file is None:
        raise FileNotFoundError(
            f"no passages in {folder}: expected one of {', '.join(names)}, or one of them with .gz;"
            " add it"
        )
    if len(found) > 1:
        logger.warning(
            "%s holds %s: the passages are read from the first", folder, ", ".join(found)
        )
    return file


def _read_documents(file: Path) -> Iterator[Row]:
    for number, fields in read_fields(file, n=4, what="a document's id, URL, title and body"):
        yield number, _id(fields[0], file, number), fields[2], fields[3]


def _read_passages(file: Path) -> Iterator[Row]:
    widths = (2, 3) if plain_name(file) == "corpus.tsv" else 2
    what = "a passage's id and text, or its id, title and text" if widths != 2 else "id and text"
    for number, fields in read_fields(file, n=widths, what=what):
        title = fields[1] if len(fields) == 3 else ""
        yield number, _id(fields[0], file, number), _title(title), fields[-1]


def _read_titled_passages(file: Path, titles_file: Path) -> Iterator[Row]:
    """Join passages and titles, both in the same order, without holding either."""
    titles = read_fields(titles_file, n=2, what="a passage's id and title")
    number_of_title, pending = next(titles, (0, None))
    for number, (passage_id, text) in read_fields(file, n=2, what="a passage's id and text"):
        title = ""
        if pending is not None and pending[0] == passage_id:
            title = pending[1]
            number_of_title, pending = next(titles, (0, None))
        yield number, _id(passage_id, file, number), _title(title), text
    if pending is not None:
        raise ValueError(
            f"{titles_file}:{number_of_title}: a title for passage {pending[0]!r}, which does not"
            f" come next in {file}: expected both files in the same order; sort both by id"
        )


def _title(text: str) -> str:
    return "" if text == _NO_TITLE else text


def _id(text: str, file: Path, number: int) -> str:
    if not text:
        raise ValueError(f"{file}:{number}: the id is empty, expected an id before the first tab")
    return text


def _read_questions(file: Path) -> Iterator[tuple[str, str, Question]]:
    for number, (query_id, text) in read_fields(file, n=2, what="a query's id and text"):
        yield f"{file}:{number}", _id(query_id, file, number), Question(text)


def _find_split(folder: Path, split: str) -> tuple[Path, Path]:
    """The judgements and the queries of a split."""
    qrels_names, queries_names = _split_names(folder, split)
    qrels, queries = find_file(folder, *qrels_names), find_file(folder, *queries_names)
    if qrels is None:
        splits = _list_splits(folder)
        if not splits:
            raise FileNotFoundError(
                f"{folder} judges nothing: expected {' or '.join(qrels_names)} beside the passages;"
                " add it"
            )
        raise ValueError(
            f"{folder} has no split {split!r}, expected one of {', '.join(splits)}: choose one of"
            f" them, or add {' or '.join(qrels_names)}"
        )
    if queries is None:
        raise FileNotFoundError(
            f"{folder} has {qrels.name} but no queries for it: expected"
            f" {' or '.join(queries_names)}; add it"
        )
    return qrels, queries


def _split_names(folder: Path, split: str) -> tuple[Sequence[str], Sequence[str]]:
    """The names that the judgements and the queries of a split may have."""
    documents = find_file(folder, DOCUMENTS_FILE) is not None
    track = re.fullmatch(r"dl(19|20)", split)
    if track:
        year = f"20{track[1]}"
        kind = "docs" if documents else "pass"
        return [f"{year}qrels-{kind}.txt"], [f"msmarco-test{year}-queries.tsv"]
    if documents:
        return [f"msmarco-doc{split}-qrels.tsv"], [f"msmarco-doc{split}-queries.tsv"]
    names = dict.fromkeys([split, split.removesuffix(".small")])  # dev.small is a part of dev
    queries = [name for part in names for name in (f"queries.{part}.tsv", f"{part}.query.txt")]
    return [f"qrels.{split}.tsv"], queries


def _list_splits(folder: Path) -> list[str]:
    documents = find_file(folder, DOCUMENTS_FILE) is not None
    pattern = _DOCUMENT_QRELS if documents else _PASSAGE_QRELS
    matches = [pattern.fullmatch(plain_name(path)) for path in folder.iterdir()]
    return sorted({match[1] or f"dl{match[2]}" for match in matches if match})
