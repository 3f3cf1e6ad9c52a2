"""MS MARCO's folders, for passages and for documents, with the files as they are published.

All files have tabs between columns and no header, and may end in `.gz`; quotes are part of the
text:

    passages     collection.tsv (id, text); or as prepared by RocketQA, which the Condenser paper
                 uses (section 4.4): para.txt (id, text) and para.title.txt (id, title); or
                 corpus.tsv (id, text or id, title, text), which Tevatron's script makes of these
    queries      queries.<split>.tsv, or RocketQA's <split>.query.txt
    judgements   qrels.<split>.tsv (query, 0, passage, grade; or RocketQA's query, passage)
    documents    msmarco-docs.tsv (id, URL, title, body), with queries and judgements in
                 msmarco-doc<split>-queries.tsv and msmarco-doc<split>-qrels.tsv
    TREC DL      splits dl19 and dl20: msmarco-test<year>-queries.tsv, and <year>qrels-pass.txt or
                 <year>qrels-docs.txt
"""

import re
from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset

from .collection import Collection, Qrels, build_collection, gather_judgements
from .passages import Row, store_passages
from .text_files import find_file, list_names, need_file, plain_name, read_fields, read_lines

DESCRIPTION = "msmarco-docs.tsv, para.txt, corpus.tsv or collection.tsv (MS MARCO)"
DOCUMENTS_FILE = "msmarco-docs.tsv"
PASSAGE_FILES = (DOCUMENTS_FILE, "para.txt", "corpus.tsv", "collection.tsv")  # the first is read
_NO_TITLE = "-"  # in RocketQA's titles


def is_layout(folder: Path) -> bool:
    return find_file(folder, *PASSAGE_FILES) is not None


def load_collection(folder: Path, *, split: str) -> Collection:
    """Load one split: as in the names of the files ("train", "dev.small"), or "dl19" or "dl20"."""
    qrels_name, queries_names = _split_names(folder, split)
    qrels_file = find_file(folder, qrels_name)
    if qrels_file is None:
        raise ValueError(
            f"{folder} has no split {split!r}: expected {qrels_name}; it holds"
            f" {list_names(folder)}."
        )
    fields = read_fields(need_file(folder, *queries_names), n=2, what="query id, text")
    queries = ((query_id, text, None) for query_id, text in fields)
    passages, qrels = load_passages(folder), read_trec_qrels(qrels_file)
    name = folder.resolve().name
    return build_collection(passages, queries, qrels, name=name, source=qrels_file)


def load_passages(folder: Path) -> Dataset:
    """Load passages or documents: columns `_id`, `title`, `text`."""
    file = need_file(folder, *PASSAGE_FILES)
    titles = find_file(folder, "para.title.txt")
    if plain_name(file) == "para.txt" and titles:
        return store_passages(_titled_passages(file, titles), files=[file, titles], name=file)
    return store_passages(_passages(file), files=[file], name=file)


def read_trec_qrels(path: Path) -> Qrels:
    """Read TREC's judgements (query, 0, passage, grade), or RocketQA's pairs (query, passage)."""
    return gather_judgements(_judgements(path), source=path)


def _judgements(path: Path) -> Iterator[tuple[str, str, object]]:
    for number, line in read_lines(path):
        match line.split():
            case [query_id, passage_id]:
                yield query_id, passage_id, 1
            case [query_id, _, passage_id, grade]:
                yield query_id, passage_id, grade
            case _:
                raise ValueError(
                    f"{path}:{number}: {line!r:.80}, expected 4 fields (query, 0, passage, grade)"
                    " or 2 (query, passage)."
                )


def _passages(file: Path) -> Iterator[Row]:
    """Read passages or documents; the number of columns tells the format."""
    _, first = next(read_lines(file), (1, ""))
    n = max(2, first.count("\t") + 1)
    for passage_id, *rest, text in read_fields(file, n=n, what="id, text, or as above"):
        yield passage_id, _clean_title(rest[-1]) if rest else "", text


def _titled_passages(file: Path, titles_file: Path) -> Iterator[Row]:
    """Join passages with their titles; both files have the same order, some titles are absent."""
    titles = read_fields(titles_file, n=2, what="id, title")
    pending = next(titles, None)
    for passage_id, text in read_fields(file, n=2, what="id, text"):
        title = ""
        if pending is not None and pending[0] == passage_id:
            title, pending = _clean_title(pending[1]), next(titles, None)
        yield passage_id, title, text
    if pending is not None:
        raise ValueError(
            f"{titles_file}: the title of passage {pending[0]!r} is not in the order of {file}."
            " Sort both files by id."
        )


def _clean_title(title: str) -> str:
    return "" if title == _NO_TITLE else title


def _split_names(folder: Path, split: str) -> tuple[str, list[str]]:
    """The name of a split's judgements, and the names that its queries may have."""
    documents = find_file(folder, DOCUMENTS_FILE) is not None
    if track := re.fullmatch(r"dl(19|20)", split):
        kind = "docs" if documents else "pass"
        return f"20{track[1]}qrels-{kind}.txt", [f"msmarco-test20{track[1]}-queries.tsv"]
    if documents:
        return f"msmarco-doc{split}-qrels.tsv", [f"msmarco-doc{split}-queries.tsv"]
    parts = dict.fromkeys([split, split.removesuffix(".small")])  # dev holds those of dev.small
    names = [name for part in parts for name in (f"queries.{part}.tsv", f"{part}.query.txt")]
    return f"qrels.{split}.tsv", names
