"""MS MARCO's files as they are published: passages, RocketQA's preparation, documents, TREC DL."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from modeling_condenser.collection.load import load_collection, load_passages

from .conftest import write_lines

PASSAGES = ['0\tThe "Manhattan" project', "1\t", "10\tIt said \"yes\" and 'no'"]
QUERIES = ["300\twhat was it?", "7\twho said yes?", '8\tan "unjudged" one']


def write_msmarco(folder: Path) -> Path:
    write_lines(folder / "collection.tsv", PASSAGES)
    write_lines(folder / "queries.dev.small.tsv", QUERIES)
    write_lines(folder / "qrels.dev.small.tsv", ["7\t0\t10\t1", "300\t0\t0\t1"])
    return folder


def test_passages_are_read_literally_with_their_judged_queries(tmp_path: Path) -> None:
    collection = load_collection(write_msmarco(tmp_path / "ms"), split="dev.small")
    assert collection.passages.to_list() == [
        {"_id": "0", "title": "", "text": 'The "Manhattan" project'},
        {"_id": "1", "title": "", "text": ""},
        {"_id": "10", "title": "", "text": "It said \"yes\" and 'no'"},
    ]
    assert list(collection.queries.items()) == [("300", "what was it?"), ("7", "who said yes?")]
    assert collection.qrels == {"300": {"0": 1}, "7": {"10": 1}}
    assert collection.name == "ms"


def test_rocketqas_preparation_is_read_with_its_titles(tmp_path: Path) -> None:
    folder = tmp_path / "marco"
    write_lines(folder / "para.txt", PASSAGES)
    # A hyphen means no title; a passage may also be left out.
    write_lines(folder / "para.title.txt", ['0\tA "title"', "10\t-"])
    write_lines(folder / "dev.query.txt", QUERIES)
    write_lines(folder / "qrels.dev.tsv", ["7\t10", "300\t0", "300\t1"])
    write_lines(folder / "qrels.dev.small.tsv", ["7 0 10 1"])
    collection = load_collection(folder, split="dev")
    assert collection.passages["title"][:] == ['A "title"', "", ""]
    assert collection.passages["text"][:] == [line.split("\t")[1] for line in PASSAGES]
    assert collection.qrels == {"300": {"0": 1, "1": 1}, "7": {"10": 1}}
    small = load_collection(folder, split="dev.small")  # its queries are part of those of dev
    assert small.queries == {"7": "who said yes?"}


def test_titles_are_read_from_tevatrons_corpus_and_must_have_the_order_of_para_txt(
    tmp_path: Path,
) -> None:
    write_lines(tmp_path / "corpus.tsv", ["0\tT\tfirst", "1\t-\tsecond"])
    assert load_passages(tmp_path)["title"][:] == ["T", ""]
    write_lines(tmp_path / "para.txt", PASSAGES)
    write_lines(tmp_path / "para.title.txt", ["10\tT", "0\tU"])
    with pytest.raises(ValueError, match="para.title.txt: the title of passage '0' is not in the"):
        load_passages(tmp_path)


def test_graded_judgements_of_the_trec_track_have_a_split_of_their_own(tmp_path: Path) -> None:
    folder = write_msmarco(tmp_path / "ms")
    write_lines(folder / "msmarco-test2019-queries.tsv", QUERIES)
    write_lines(folder / "2019qrels-pass.txt", ["8 Q0 0 3", "8 Q0 10 0", "300 Q0 10 2"])
    collection = load_collection(folder, split="dl19")
    assert collection.qrels == {"300": {"10": 2}, "8": {"0": 3, "10": 0}}
    assert collection.queries["8"] == 'an "unjudged" one'


def test_documents_have_title_and_body(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    write_lines(
        folder / "msmarco-docs.tsv.gz",
        ['D1\thttps://a.b\tTitle\tBody "one"', "D2\thttps://c.d\t\tBody two"],
    )
    write_lines(folder / "msmarco-docdev-queries.tsv.gz", ["1\tone?", "2\ttwo?"])
    write_lines(folder / "msmarco-docdev-qrels.tsv.gz", ["2 0 D2 1"])
    write_lines(folder / "msmarco-test2019-queries.tsv", ["1\tone?"])
    write_lines(folder / "2019qrels-docs.txt", ["1 Q0 D1 3"])
    collection = load_collection(folder, split="dev")
    assert collection.passages.to_list() == [
        {"_id": "D1", "title": "Title", "text": 'Body "one"'},
        {"_id": "D2", "title": "", "text": "Body two"},
    ]
    assert (collection.queries, collection.qrels) == ({"2": "two?"}, {"2": {"D2": 1}})
    assert load_collection(folder, split="dl19").qrels == {"1": {"D1": 3}}


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("collection.tsv", ["0\ta", "1"], "collection.tsv:2: 1 fields between tabs, expected 2"),
        ("qrels.dev.small.tsv", ["7 0 10 1", "7 0 10"], "tsv:2: '7 0 10', expected 4 fields"),
        ("qrels.dev.small.tsv", ["7 0 11 1"], "1 of 1 passage ids .*, such as '11'"),
    ],
)
def test_broken_files_are_refused(
    tmp_path: Path, name: str, lines: Sequence[str], message: str
) -> None:
    folder = write_msmarco(tmp_path / "ms")
    with pytest.raises(ValueError, match="no split 'test': expected qrels.test.tsv; it holds coll"):
        load_collection(folder)
    write_lines(folder / name, lines)
    with pytest.raises(ValueError, match=message):
        load_collection(folder, split="dev.small")
