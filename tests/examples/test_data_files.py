"""Files of training data as records: text stays text, and errors name file and line."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from modeling_condenser.examples import data_files
from modeling_condenser.examples.data_files import find_data, read_records

# What libraries that guess types read as missing, as a number, or otherwise than it stands.
TEXTS = ["None", "1984", "nan", 'a "quoted" word', "tab-free, comma", "1e5", " spaced ", "東京 😀"]
Write = Callable[[str, str], Path]


def read(data: Any, columns: list[str] | None = None, **hub: str) -> list[tuple[str, Any]]:
    def needed(file: str, header: set[str]) -> None:
        if not {"query", "positive"} <= header:
            raise ValueError(f"{file} lacks a column of {sorted(header)}")

    return list(read_records(find_data(data, **hub), columns=columns, needed=needed))


ROWS = [{"query": text, "positive": f"p {text}"} for text in TEXTS]


def test_every_kind_of_file_gives_the_same_text(
    tmp_path: Path, write_jsonl: Callable[..., Path], write_text: Write
) -> None:
    quoted = "".join(
        ",".join('"' + row[c].replace('"', '""') + '"' for c in ("query", "positive")) + "\r\n"
        for row in ROWS
    )
    tabs = "".join(f"{row['query']}\t{row['positive']}\n" for row in ROWS)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet", row_group_size=3)
    import json

    files = [
        write_jsonl(ROWS, "a.jsonl"),
        write_jsonl(ROWS, "a.jsonl.gz"),
        write_text(json.dumps(ROWS), "array.json"),
        write_jsonl(ROWS, "lines.json"),
        write_text(f"query,positive\r\n{quoted}", "a.csv"),
        write_text(f"﻿query\tpositive\n{tabs}", "a.tsv"),
        tmp_path / "a.parquet",
    ]
    (tmp_path / "z.tsv.gz").write_bytes(gzip.compress(f"query\tpositive\n{tabs}".encode()))
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(f"query,positive\n{quoted}".encode()))
    for file in (*files, tmp_path / "z.tsv.gz", tmp_path / "z.csv.gz"):
        assert [record for _, record in read(str(file))] == ROWS, file


def test_a_place_is_the_line_that_a_row_begins_on(write_text: Write) -> None:
    file = write_text('query,positive\n"two\nlines",p1\n\nq2,p2\n', "a.csv")
    assert read(file) == [
        (f"{file}:2", {"query": "two\nlines", "positive": "p1"}),
        (f"{file}:5", {"query": "q2", "positive": "p2"}),
    ]
    file = write_text("\nquery\tpositive\n\nq1\tp1\n", "a.tsv")
    assert read(file) == [(f"{file}:4", {"query": "q1", "positive": "p1"})]


def test_a_file_without_header_is_read_by_the_names_of_its_columns(write_text: Write) -> None:
    for name, separator in (("a.tsv", "\t"), ("a.csv", ",")):
        file = write_text(f"q1{separator}p1\nq2{separator}p2\n", name)
        rows = read(file, ["query", "positive"])
        assert [record["positive"] for _, record in rows] == ["p1", "p2"]
        assert rows[0][0] == f"{file}:1"
        with pytest.raises(ValueError, match=f"{name} lacks a column of .'p1', 'q1'"):
            read(file)
    file = write_text('{"query": "q", "positive": "p"}\n', "a.jsonl")
    with pytest.raises(ValueError, match="names its fields itself"):
        read(file, ["query", "positive"])


def test_several_files_patterns_and_lists_are_read_in_order(
    tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    for i in (2, 0, 1):
        write_jsonl([{"query": f"q{i}", "positive": "p"}], f"part-{i}.jsonl")
    both = [str(tmp_path / "part-2.jsonl"), str(tmp_path / "part-[01].jsonl")]
    assert [record["query"] for _, record in read(both)] == ["q2", "q0", "q1"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "query,positive\nq,p\nq,p,x\n", r"a.csv:3: 3 fields between commas, expected 2"),
        ("a.csv", 'query,positive\nq,"open\n', r"a.csv:\d: not CSV"),
        ("a.tsv", "query\tpositive\nq\n", r"a.tsv:2: 1 fields between tabs, expected 2"),
        ("a.jsonl", '{"query": 1}\n[1]\n', r"a.jsonl:2: a JSON list, expected one object"),
        ("a.json", "[1]", r"a.json:1: a JSON int, expected an array of objects"),
        ("a.xml", "<x/>", r"a.xml ends in .xml, expected one of .jsonl"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    write_text: Write, name: str, content: str, message: str
) -> None:
    file = write_text(content, name)
    with pytest.raises(ValueError, match=message):
        read(file)


def test_another_encoding_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("query,positive\ncafé,p\n".encode("latin-1"))
    with pytest.raises(ValueError, match="a.csv: not UTF-8 behind line"):
        read(tmp_path / "a.csv")
    (tmp_path / "a.tsv").write_bytes("query\tpositive\ncafé\tp\n".encode("latin-1"))
    with pytest.raises(ValueError, match="a.tsv cannot be read"):
        read(tmp_path / "a.tsv")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for data in ("missing.jsonl", str(tmp_path / "x"), "a/b/c"):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            find_data(data)
    with pytest.raises(FileNotFoundError, match="No file matches"):
        find_data(str(tmp_path / "*.jsonl"))
    with pytest.raises(ValueError, match="is a folder: name its files"):
        find_data(str(tmp_path))
    (tmp_path / "a.jsonl").write_text("{}")
    for names in ([str(tmp_path / "a.jsonl"), "owner/name"], ["owner/name", "owner/other"]):
        with pytest.raises(FileNotFoundError, match="owner/name is no local file, and a list"):
            find_data(names)
    with pytest.raises(FileNotFoundError, match="no training data 'owner/name': it is no local"):
        find_data("owner/name")  # the tests are offline


def test_a_hub_data_set_is_read_by_configuration_and_split(
    monkeypatch: pytest.MonkeyPatch, write_jsonl: Callable[..., Path]
) -> None:
    asked = []

    def load_dataset(*words: Any, **settings: Any) -> Dataset:
        asked.append((words, settings))
        return Dataset.from_list(ROWS)

    monkeypatch.setattr(data_files, "load_dataset", load_dataset)
    rows = read("owner/name", name="triplet", split="dev", revision="abc")
    assert asked == [(("owner/name", "triplet"), {"split": "dev", "revision": "abc"})]
    assert rows[0] == ("owner/name:1", ROWS[0])
    assert [record for _, record in rows] == ROWS
    with pytest.raises(ValueError, match="owner/name names its fields itself"):
        read("owner/name", ["query", "positive"])
    file = write_jsonl(ROWS)
    for setting in ("name", "split", "revision"):
        with pytest.raises(ValueError, match=f"{setting} is only for Hub data sets"):
            find_data(file, **{setting: "x"})
