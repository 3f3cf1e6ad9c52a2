"""MS MARCO's files as they are published: passages, RocketQA's preparation, documents, TREC DL."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from modeling_condenser.collection.load import load_collection, load_passages

from .conftest import write_lines

PASSAGES = ['0\tThe "Manhattan" project', "1\t", "10\tIt said \"yes\" and 'no'"]
QUERIES = ["300\twhat was it?", "7\twho said yes?", '8\tan "unjudged" one']


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "ms" / "collection.tsv", PASSAGES)
    write_lines(tmp_path / "ms" / "queries.dev.small.tsv", QUERIES)
    write_lines(tmp_path / "ms" / "qrels.dev.small.tsv", ["7\t0\t10\t1", "300\t0\t0\t1"])
    return tmp_path / "ms"


def test_passages_are_read_literally_with_their_judged_queries(folder: Path) -> None:
    collection = load_collection(folder, split="dev.small")
    assert collection.passages.to_list() == [
        {"_id": "0", "title": "", "text": 'The "Manhattan" project'},
        {"_id": "1", "title": "", "text": ""},
        {"_id": "10", "title": "", "text": "It said \"yes\" and 'no'"},
    ]
    assert list(collection.queries.items()) == [("300", "what was it?"), ("7", "who said yes?")]
    assert collection.qrels == {"300": {"0": 1}, "7": {"10": 1}}
    assert collection.name == "ms"


def test_rocketqas_preparation_is_read_with_its_titles(tmp_path: Path) -> None:
    write_lines(tmp_path / "para.txt", PASSAGES)
    # A hyphen means no title; a passage may also be left out.
    write_lines(tmp_path / "para.title.txt", ['0\tA "title"', "10\t-"])
    write_lines(tmp_path / "dev.query.txt", QUERIES)
    write_lines(tmp_path / "qrels.dev.tsv", ["7\t10", "300\t0", "300\t1"])
    write_lines(tmp_path / "qrels.dev.small.tsv", ["7 0 10 1"])
    collection = load_collection(tmp_path, split="dev")
    assert collection.passages["title"][:] == ['A "title"', "", ""]
    assert collection.passages["text"][:] == [line.split("\t")[1] for line in PASSAGES]
    assert collection.qrels == {"300": {"0": 1, "1": 1}, "7": {"10": 1}}
    small = load_collection(tmp_path, split="dev.small")  # its queries are part of those of dev
    assert small.queries == {"7": "who said yes?"}
    write_lines(tmp_path / "para.title.txt", ["10\tT", "0\tU"])
    with pytest.raises(ValueError, match="para.title.txt: the title of passage '0' is not in the"):
        load_passages(tmp_path)


def test_titles_are_read_from_tevatrons_corpus(tmp_path: Path) -> None:
    write_lines(tmp_path / "corpus.tsv", ["0\tT\tfirst", "1\t-\tsecond"])
    assert load_passages(tmp_path)["title"][:] == ["T", ""]


def test_graded_judgements_of_the_trec_track_have_a_split_of_their_own(folder: Path) -> None:
    write_lines(folder / "msmarco-test2019-queries.tsv", QUERIES)
    write_lines(folder / "2019qrels-pass.txt", ["8 Q0 0 3", "8 Q0 10 0", "300 Q0 10 2"])
    collection = load_collection(folder, split="dl19")
    assert collection.qrels == {"300": {"10": 2}, "8": {"0": 3, "10": 0}}
    assert collection.queries["8"] == 'an "unjudged" one'


def test_documents_have_title_and_body(tmp_path: Path) -> None:
    lines = ['D1\thttps://a.b\tTitle\tBody "one"', "D2\thttps://c.d\t\tBody two"]
    write_lines(tmp_path / "msmarco-docs.tsv.gz", lines)
    write_lines(tmp_path / "msmarco-docdev-queries.tsv.gz", ["1\tone?", "2\ttwo?"])
    write_lines(tmp_path / "msmarco-docdev-qrels.tsv.gz", ["2 0 D2 1"])
    write_lines(tmp_path / "msmarco-test2019-queries.tsv", ["1\tone?"])
    write_lines(tmp_path / "2019qrels-docs.txt", ["1 Q0 D1 3"])
    collection = load_collection(tmp_path, split="dev")
    assert collection.passages.to_list() == [
        {"_id": "D1", "title": "Title", "text": 'Body "one"'},
        {"_id": "D2", "title": "", "text": "Body two"},
    ]
    assert (collection.queries, collection.qrels) == ({"2": "two?"}, {"2": {"D2": 1}})
    assert load_collection(tmp_path, split="dl19").qrels == {"1": {"D1": 3}}


@pytest.mark.parametrize(
    ("split", "name", "lines", "message"),
    [
        ("dev.small", "collection.tsv", ["0\ta", "1"], "tsv:2: 1 fields between tabs, expected 2"),
        ("dev.small", "qrels.dev.small.tsv", ["7 0 10"], "tsv:1: '7 0 10', expected 4 fields"),
        ("dev.small", "qrels.dev.small.tsv", ["7 0 11 1"], "1 of 1 passage ids .*, such as '11'"),
        ("test", "queries.test.tsv", QUERIES, "no split 'test': expected qrels.test.tsv; it holds"),
    ],
)
def test_broken_files_are_refused(
    folder: Path, split: str, name: str, lines: Sequence[str], message: str
) -> None:
    write_lines(folder / name, lines)
    with pytest.raises(ValueError, match=message):
        load_collection(folder, split=split)
