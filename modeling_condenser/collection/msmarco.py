"""Reads MS MARCO's passages and documents from the published files.

Columns are separated by tabs, without a header; quotes are part of the text. Files may end in
`.gz`.

    passages     collection.tsv (id, text); or the files of RocketQA, which the Condenser paper
                 uses (section 4.4): para.txt (id, text) and para.title.txt (id, title); or
                 corpus.tsv (id, text or id, title, text), as Tevatron's script writes it
    queries      queries.<split>.tsv, or RocketQA's <split>.query.txt
    judgements   qrels.<split>.tsv (query, 0, passage, grade; or RocketQA's query, passage)
    documents    msmarco-docs.tsv (id, URL, title, body), with queries and judgements in
                 msmarco-doc<split>-queries.tsv and msmarco-doc<split>-qrels.tsv
    TREC DL      splits dl19 and dl20: msmarco-test<year>-queries.tsv, and <year>qrels-pass.txt or
                 <year>qrels-docs.txt

A split has the name that the files have ("train", "dev.small").
"""

import re
from collections.abc import Iterator
from pathlib import Path

from .collection import Judgement, Question
from .passages import PassageRows, Row
from .text_files import find_file, need_file, plain_name, read_lines, read_table

DESCRIPTION = "msmarco-docs.tsv, para.txt, corpus.tsv or collection.tsv (MS MARCO)"
_DOCUMENTS_FILE = "msmarco-docs.tsv"
_PASSAGE_FILES = (_DOCUMENTS_FILE, "para.txt", "corpus.tsv", "collection.tsv")  # the first is read
_COLUMNS = {3: ["id", "title", "text"], 4: ["id", "url", "title", "text"]}
_NO_TITLE = "-"  # in RocketQA's titles


def is_layout(folder: Path) -> bool:
    return find_file(folder, *_PASSAGE_FILES) is not None


def read_passages(folder: Path, split: str) -> PassageRows:
    file = need_file(folder, *_PASSAGE_FILES)
    titles = find_file(folder, "para.title.txt") if plain_name(file) == "para.txt" else None
    return _read_passages(file, titles), [file, *([titles] if titles else [])]


def _read_passages(file: Path, titles_file: Path | None) -> Iterator[Row]:
    """Read passages; the format follows from the number of columns.

    A second file may hold titles of some passages, in the same order.
    """
    _, first = next(read_lines(file), (1, ""))
    columns = _COLUMNS.get(first.count("\t") + 1, ["id", "text"])
    titles = read_table(titles_file, ["id", "title"]) if titles_file else iter(())
    pending = next(titles, None)
    for row in read_table(file, columns):
        title = row.get("title", "")
        if pending is not None and pending["id"] == row["id"]:
            title, pending = pending["title"], next(titles, None)
        yield row["id"], "" if title == _NO_TITLE else title, row["text"]
    if pending is not None:
        raise ValueError(
            f"{titles_file}: passage {pending['id']!r} is missing in {file}, or in another order"
            " there: sort both files by the same key."
        )


def read_split(folder: Path, split: str) -> tuple[list[Question], list[Judgement]]:
    qrels_name, queries_names = _split_names(folder, split)
    judgements = list(_read_judgements(need_file(folder, qrels_name)))
    queries = read_table(need_file(folder, *queries_names), ["id", "text"])
    return [(row["id"], row["text"], None) for row in queries], judgements


def _split_names(folder: Path, split: str) -> tuple[str, list[str]]:
    """Return the file name of a split's judgements, and the possible names of its queries."""
    documents = find_file(folder, _DOCUMENTS_FILE) is not None
    if track := re.fullmatch(r"dl(19|20)", split):
        kind = "docs" if documents else "pass"
        return f"20{track[1]}qrels-{kind}.txt", [f"msmarco-test20{track[1]}-queries.tsv"]
    if documents:
        return f"msmarco-doc{split}-qrels.tsv", [f"msmarco-doc{split}-queries.tsv"]
    parts = dict.fromkeys([split, split.removesuffix(".small")])  # dev contains dev.small
    names = [name for part in parts for name in (f"queries.{part}.tsv", f"{part}.query.txt")]
    return f"qrels.{split}.tsv", names


def _read_judgements(path: Path) -> Iterator[Judgement]:
    for number, line in read_lines(path):
        match line.split():
            case [query_id, passage_id]:
                yield query_id, passage_id, 1
            case [query_id, _, passage_id, grade]:
                yield query_id, passage_id, grade
            case _:
                raise ValueError(
                    f"{path}:{number}: {line!r:.80}, expected 4 fields (query, 0, passage, grade)."
                )
