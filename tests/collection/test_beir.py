"""BEIR's layout, as files and as tables."""

from pathlib import Path
from typing import Any

import pytest

from modeling_condenser.collection.load import load_collection, load_passages

from .conftest import (
    CORPUS,
    EXPECTED_QRELS,
    EXPECTED_QUERIES,
    QRELS,
    QUERIES,
    write_beir,
    write_jsonl,
    write_lines,
    write_mteb,
    write_tables,
)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_split_holds_all_passages_and_the_judged_queries(tmp_path: Path, ending: str) -> None:
    collection = load_collection(write_beir(tmp_path / "c", ending=ending))
    assert collection.passages.to_list() == CORPUS
    assert list(collection.queries.items()) == list(EXPECTED_QUERIES.items())
    assert collection.qrels == EXPECTED_QRELS
    assert list(collection.qrels) == ["q2", "q1"]
    assert (collection.answers, collection.name) == ({}, "c")
    rows = [{"query-id": "q1", "corpus-id": "p1", "score": 2.0}]
    write_jsonl(tmp_path / "c" / "qrels" / "dev.jsonl", rows)
    assert load_collection(tmp_path / "c", split="dev").qrels == {"q1": {"p1": 2}}


def test_ids_and_texts_are_read_as_they_are(tmp_path: Path) -> None:
    corpus: list[dict[str, Any]] = [
        {"_id": "2020-01-01", "text": "a date as an id"},
        {"_id": "007", "title": None, "text": "zeros in front", "url": "dropped"},
        {"_id": 12, "title": "T", "text": 'a "quoted" word\u2028and\x0b\r separators'},
    ]
    passages = load_passages(write_beir(tmp_path / "c", corpus=corpus))
    assert passages.to_list() == [
        {"_id": "2020-01-01", "title": "", "text": corpus[0]["text"]},
        {"_id": "007", "title": "", "text": corpus[1]["text"]},
        {"_id": "12", "title": "T", "text": corpus[2]["text"]},
    ]


def test_a_split_without_judgements_holds_the_answered_queries_of_no_other_split(
    tmp_path: Path,
) -> None:
    queries = [{**query, "answers": [f"answer {i}"]} for i, query in enumerate(QUERIES)]
    queries.append({"_id": "q4", "text": "unanswered", "answers": []})
    folder = write_beir(tmp_path / "c", queries=queries)
    judged, answered = load_collection(folder), load_collection(folder, split="dev")
    assert judged.answers == {"q2": ("answer 0",), "q1": ("answer 1",)}
    assert (answered.answers, answered.qrels) == ({"q3": ("answer 2",)}, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": []}, "corpus.jsonl holds no passage"),
        ({"corpus": [{"_id": 1.5, "text": "x"}]}, "corpus.jsonl: an id is 1.5, expected text"),
        ({"corpus": [*CORPUS, *CORPUS[1:]]}, "2 ids occur more than once"),
        ({"qrels": [QRELS[0], "q1\tp9\t1", "q1\tp8\t1"]}, "2 of 2 passage ids .* as 'p8', 'p9'"),
        ({"qrels": [QRELS[0], "q9\tp1\t1"]}, "1 judged queries .* such as 'q9'"),
        ({"qrels": [*QRELS, "q1\tp1\t1"]}, "'p1' has two grades for query 'q1'"),
        ({"qrels": [QRELS[0], "q1\tp1\t0.5"]}, "test.tsv: the grade '0.5' is not a whole"),
        ({"qrels": QRELS[1:]}, "expected the header query-id corpus-id score"),
    ],
)
def test_a_broken_collection_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_collection(write_beir(tmp_path / "c", **changes))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", b'{"_id": "p1", "te', "corpus.jsonl:1: .* is not a JSON object"),
        ("corpus.jsonl.gz", b"not gzip", "corpus.jsonl.gz cannot be read .Not a gzipped"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_passages(tmp_path)


def test_tables_are_read_as_readme_declares_them(tmp_path: Path) -> None:
    folder = write_mteb(tmp_path / "set")
    collection = load_collection(folder)
    assert collection.passages.to_list() == CORPUS == load_passages(folder).to_list()
    assert (collection.queries, collection.qrels) == (EXPECTED_QUERIES, EXPECTED_QRELS)
    assert collection.name == "set"
    # `datasets` calls the split "dev" validation.
    assert load_collection(folder, split="dev").qrels == {"q1": {"p1": 2}}


def test_numbers_as_ids_become_text_and_a_split_may_have_a_corpus_of_its_own(
    tmp_path: Path,
) -> None:
    corpus = [{"id": 7, "text": "seven"}, {"id": 11, "text": "eleven"}]
    folder = write_mteb(
        tmp_path / "set",
        corpus={"train": corpus[:1], "test": corpus},
        queries={"train": [{"id": 3, "text": "which?"}]},
        default={"test": [{"query-id": 3, "corpus-id": 11, "score": 1}]},
    )
    collection = load_collection(folder)
    assert collection.passages.to_list() == [
        {"_id": "7", "title": "", "text": "seven"},
        {"_id": "11", "title": "", "text": "eleven"},
    ]
    assert (collection.queries, collection.qrels) == ({"3": "which?"}, {"3": {"11": 1}})


def test_judgements_may_be_in_a_second_folder(tmp_path: Path) -> None:
    tables = {"corpus": {"corpus": CORPUS}, "queries": {"queries": QUERIES}}
    folder = write_tables(tmp_path / "set", tables)
    with pytest.raises(ValueError, match="no split 'test': it has judgements for no split"):
        load_collection(folder)
    write_lines(tmp_path / "set-qrels" / "test.tsv", QRELS)
    assert load_collection(folder).qrels == EXPECTED_QRELS


def test_broken_tables_are_refused(tmp_path: Path) -> None:
    write_mteb(tmp_path, corpus={"a": CORPUS, "b": CORPUS})
    with pytest.raises(ValueError, match=r"\(corpus\) has no split 'test'; its splits are a, b"):
        load_passages(tmp_path)
    (tmp_path / "corpus" / "a.parquet").unlink()
    with pytest.raises(ValueError, match=r"\(corpus\) cannot be read .*missing, empty or damaged"):
        load_passages(tmp_path)
