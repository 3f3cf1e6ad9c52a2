"""Files of similarity tasks: each layout as it is published, and errors that name the line."""

import csv
import gzip
import json
import logging
from pathlib import Path

import pytest

from modeling_condenser.measures.pair_files import (
    GradedPair,
    Triplet,
    read_graded_pairs,
    read_triplets,
)

PAIRS = [
    GradedPair("A girl, styling her hair.", 'He said "no".', 2.5),
    GradedPair("None", "東京\u2028大学", 0.0),
    GradedPair("1984", "A plane\nis taking off.", 5.0),
]


def write_csv(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_graded_pairs_are_read_from_csv_as_they_are(tmp_path: Path) -> None:
    rows = [list(pair) for pair in PAIRS]
    path = write_csv(tmp_path / "test.csv", ["sentence1", "sentence2", "score"], rows)
    assert read_graded_pairs(path) == PAIRS


def test_columns_can_have_other_names_and_an_order_of_their_own(tmp_path: Path) -> None:
    rows = [[i, pair.score, pair.sentence2, pair.sentence1] for i, pair in enumerate(PAIRS)]
    path = write_csv(tmp_path / "test.csv", ["n", "similarity", "b", "a"], rows)
    columns = {"sentence1": "a", "sentence2": "b", "score": "similarity"}
    assert read_graded_pairs(path, columns=columns) == PAIRS


def test_graded_pairs_are_read_from_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(pair._asdict()) + "\n" for pair in PAIRS)
    assert read_graded_pairs(path) == PAIRS


@pytest.mark.parametrize("name", ["sts-test.csv", "sts-test.tsv"])
def test_the_benchmarks_own_files_have_no_header_and_mean_nothing_by_quotes(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_text(
        'main-captions\tMSRvid\t2012test\t0024\t2.500\tA "girl" is, styling\tA girl is "brushing\n'
        "main-news\theadlines\t2016\t0001\t5\tOne.\tTwo.\tlicence\thttp://x\n"
    )
    assert read_graded_pairs(path) == [
        GradedPair('A "girl" is, styling', 'A girl is "brushing', 2.5),
        GradedPair("One.", "Two.", 5.0),
    ]


@pytest.mark.parametrize(
    "header", [["anchor", "positive", "negative"], ["Sentence1", "Sentence2", "Sentence3"]]
)
def test_triplets_are_read_with_either_header(tmp_path: Path, header: list[str]) -> None:
    rows = [["a, b", "c", "d"], ['"e"', "f\ng", ""]]
    path = write_csv(tmp_path / "test.csv", header, rows)
    assert read_triplets(path) == [Triplet("a, b", "c", "d"), Triplet('"e"', "f\ng", "")]


def test_triplets_can_be_mapped_too(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", ["Sentence1", "Sentence2", "Sentence3"], [list("abc")])
    columns = {"anchor": "Sentence3", "positive": "Sentence2", "negative": "Sentence1"}
    assert read_triplets(path, columns=columns) == [Triplet("c", "b", "a")]


def test_blank_texts_are_kept_and_counted(tmp_path: Path, caplog) -> None:
    path = write_csv(tmp_path / "t.csv", ["anchor", "positive", "negative"], [["a", " ", "c"]] * 2)
    with caplog.at_level(logging.WARNING):
        assert len(read_triplets(path)) == 2
    assert "2 of 2 rows have a blank text" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence1,sentence2\na,b\n", "has no column 'score'.*: map ours .*{score: sentence2}"),
        ("sentence1,sentence2,score\na,b,1\na,b,high\n", "test.csv:3: the score is 'high', exp"),
        ("sentence1,sentence2,score\na,b,nan\n", "test.csv:2: the score is 'nan', expected a f"),
        ("sentence1,sentence2,score\na,b,c,1\n", "test.csv:2: 4 fields between commas, expected 3"),
        ("sentence1,sentence2,score\n", "holds no row, expected at least one"),
        ("", "holds no row, expected at least one"),
        ("g\tf\ty\t1\t2.5\ta\tb\ng\tf\ty\t2\t2.5\ta\n", "test.csv:2: 6 fields between tabs"),
        ("g\tf\ty\t1\t2.5\ta\tb\ng\tf\ty\t2\tx\ta\tb\n", "test.csv:2: the score is 'x', expected"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_its_line(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "test.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_graded_pairs(path)


def test_a_text_that_is_none_and_an_unknown_column_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"anchor": "a", "positive": "b", "negative": "c"}\n{"anchor": "a", ')
    with pytest.raises(ValueError, match="t.jsonl:2: not JSON"):
        read_triplets(path)
    path.write_text('{"anchor": "a", "positive": "b", "negative": null}\n')
    with pytest.raises(ValueError, match="t.jsonl:1: 'negative' is None"):
        read_triplets(path)
    with pytest.raises(ValueError, match="columns maps 'ancor'.* did you mean 'anchor'"):
        read_triplets(path, columns={"ancor": "x"})
    with pytest.raises(FileNotFoundError, match="no file at"):
        read_triplets(tmp_path / "absent.csv")
