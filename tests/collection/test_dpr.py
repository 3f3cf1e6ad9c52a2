"""DPR's passages and questions, quoted as its CSV writer does."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from modeling_condenser.collection.load import load_collection, load_passages

from .conftest import write_lines

# The first two lines are those of psgs_w100.tsv; the third has quotes around its title only.
PASSAGES = [
    "id\ttext\ttitle",
    '1\t"Aaron Aaron ( or ; ""Ahärôn"") is a prophet"\tAaron',
    '2\tGod at Sinai granted Aaron the priesthood\t"""Heroes"" (album)"',
]
QUESTIONS = [
    "who got it first\t['Wilhelm Conrad Röntgen']",
    'what is it called\t"[\'the ""Stone""\', ""it\'s""]"',
    'who got it first\t["a list as JSON\'s"]',
]


def write_dpr(folder: Path, *, ending: str = "") -> Path:
    write_lines(folder / f"psgs_w100.tsv{ending}", PASSAGES)
    write_lines(folder / f"nq-test.qa.csv{ending}", QUESTIONS)
    return folder


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_questions_are_judged_by_their_answers(tmp_path: Path, ending: str) -> None:
    collection = load_collection(write_dpr(tmp_path / "dpr", ending=ending), split="nq-test")
    text = "God at Sinai granted Aaron the priesthood"
    assert collection.passages.to_list() == [
        {"_id": "1", "title": "Aaron", "text": 'Aaron Aaron ( or ; "Ahärôn") is a prophet'},
        {"_id": "2", "title": '"Heroes" (album)', "text": text},
    ]
    questions = ["who got it first", "what is it called", "who got it first"]
    assert collection.queries == dict(zip("012", questions, strict=True))
    assert collection.answers == {
        "0": ("Wilhelm Conrad Röntgen",),
        "1": ('the "Stone"', "it's"),
        "2": ("a list as JSON's",),
    }
    assert (collection.qrels, collection.name) == ({}, "dpr")


def test_whatever_the_csv_module_writes_is_read_back(tmp_path: Path) -> None:
    texts = ["plain", '"', '""', '"a" and "b"', 'a "b"', "tab\tin it", "line\nfeed", '"x', 'x"']
    with (tmp_path / "psgs_w100.tsv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["id", "text", "title"])
        writer.writerows([i, text, text[::-1]] for i, text in enumerate(texts))
    passages = load_passages(tmp_path)
    assert passages["text"][:] == texts
    assert passages["title"][:] == [text[::-1] for text in texts]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("psgs_w100.tsv", PASSAGES[1:], "the header is .'1', .* expected the columns"),
        ("psgs_w100.tsv", [*PASSAGES, "3\ttext"], "psgs_w100.tsv:4: 2 fields between tabs"),
        ("psgs_other.tsv", PASSAGES, "psgs_other.tsv, psgs_w100.tsv, expected one file"),
        ("nq-test.qa.csv", ["who?\t__import__('os').abort()"], "the answers are .__im"),
    ],
)
def test_broken_files_are_refused(
    tmp_path: Path, name: str, lines: Sequence[str], message: str
) -> None:
    folder = write_dpr(tmp_path / "dpr")
    with pytest.raises(ValueError, match="no split 'test'; its splits are nq-test"):
        load_collection(folder)
    write_lines(folder / name, lines)
    with pytest.raises(ValueError, match=message):
        load_collection(folder, split="nq-test")
