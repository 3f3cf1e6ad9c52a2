"""Files of training data as records: text stays as it is, and errors name file and line."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from modeling_condenser.examples import data_files
from modeling_condenser.examples.data_files import find_data, read_records

# Texts that libraries which guess types read as missing, as numbers or as dates.
TEXTS = ["None", "1984", "nan", 'a "quoted" word', "no tab, comma", "1e5", " spaced ", "東京 😀"]
TEXTS += ["2020-01-01"]
ROWS = [{"query": text, "positive": f"p {text}"} for text in TEXTS]
Write = Callable[..., Path]


def read(data: Any, columns: list[str] | None = None, **hub: str) -> list[tuple[str, Any]]:
    return list(read_records(find_data(data, **hub), columns=columns))


def test_every_kind_of_file_gives_the_same_text(
    tmp_path: Path, write_jsonl: Write, write_text: Write
) -> None:
    cells = [['"' + text.replace('"', '""') + '"' for text in row.values()] for row in ROWS]
    quoted = "\r\n".join(["query,positive", *map(",".join, cells)])
    tabs = "\n".join(["query\tpositive", *("\t".join(row.values()) for row in ROWS)])
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet", row_group_size=3)
    write_jsonl(ROWS, "a.jsonl")
    write_jsonl(ROWS, "gzipped.jsonl.gz")
    write_jsonl(ROWS, "lines.json")
    write_text(json.dumps(ROWS), "array.json")
    write_text(quoted, "a.csv")
    write_text(f"\ufeff{tabs}", "a.tsv")
    (tmp_path / "z.tsv.gz").write_bytes(gzip.compress(tabs.encode()))
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(quoted.encode()))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 9
    for file in files:
        assert [record for _, record in read(file)] == ROWS, file


def test_a_place_names_file_and_line(write_text: Write) -> None:
    file = write_text("query,positive\nq1,p1\n\nq2,p2\n", "a.csv")
    assert [place for place, _ in read(file)] == [f"{file}:2", f"{file}:4"]


@pytest.mark.parametrize(("name", "separator"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_a_file_without_header_is_read_by_the_names_of_its_columns(
    write_text: Write, name: str, separator: str
) -> None:
    file = write_text(f"q1{separator}p1\nq2{separator}p2\n", name)
    rows = read(file, ["query", "positive"])
    assert rows[0] == (f"{file}:1", {"query": "q1", "positive": "p1"})
    assert len(rows) == 2


def test_a_list_of_columns_is_refused_where_the_data_names_them(write_jsonl: Write) -> None:
    with pytest.raises(ValueError, match="names its own fields"):
        read(write_jsonl(ROWS), ["query", "positive"])


def test_lists_and_patterns_are_read_in_order(tmp_path: Path, write_jsonl: Write) -> None:
    for i in (2, 0, 1):
        write_jsonl([{"query": f"q{i}"}], f"part-{i}.jsonl")
    both = [str(tmp_path / "part-2.jsonl"), str(tmp_path / "part-[01].jsonl")]
    assert [record["query"] for _, record in read(both)] == ["q2", "q0", "q1"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "query,positive\nq,p\nq,p,x\n", r"a.csv:3: 3 fields between commas, expected 2"),
        ("a.csv", 'query,positive\nq,"open\n', r"a.csv:\d: not CSV"),
        ("a.tsv", "query\tpositive\nq\n", r"a.tsv:2: 1 fields between tabs, expected 2"),
        ("a.jsonl", '{"query": 1}\n[1]\n', r"a.jsonl:2: a JSON list"),
        ("a.json", "[1]", r"a.json: item 1 is 1, expected an object"),
        ("a.json", '[{"a": 1},\n{"a": 2', r"a.json: item 2 is not JSON .*incomplete"),
        ("a.xml", "<x/>", r"files of type .xml are not supported; supported: .jsonl"),
    ],
)
def test_a_malformed_file_is_refused(
    write_text: Write, name: str, content: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(write_text(content, name))


def random_value(rng: random.Random, depth: int = 0) -> Any:
    text = "".join(rng.choice('aé"\\\n\t 東😀[]{},:0') for _ in range(rng.randrange(12)))
    simple = [None, True, rng.random(), -rng.randrange(10**9), 1e-7, text, "", [], {}]
    if depth == 3 or rng.random() < 0.5:
        return rng.choice(simple)
    values = [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return values if rng.random() < 0.5 else {f'k{i}"{text}': v for i, v in enumerate(values)}


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_read_item_by_item_wherever_its_chunks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    rng = random.Random(chunk)
    values = [{"value": random_value(rng)} for _ in range(60)]
    file = tmp_path / "array.json"
    file.write_text(json.dumps(values, indent=indent, ensure_ascii=bool(chunk % 2)), "utf-8")
    monkeypatch.setattr(data_files, "_JSON_CHUNK", chunk)
    assert [record for _, record in read(file)] == values


def test_missing_data_is_an_error(tmp_path: Path, write_jsonl: Write) -> None:
    for data in ("missing.jsonl", str(tmp_path / "x"), "a/b/c"):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            find_data(data)
    with pytest.raises(FileNotFoundError, match="No file matches"):
        find_data(str(tmp_path / "*.jsonl"))
    with pytest.raises(ValueError, match="is a folder"):
        find_data(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="owner/name is not a local file"):
        find_data([str(write_jsonl(ROWS)), "owner/name"])
    with pytest.raises(FileNotFoundError, match="no local file 'owner/name', and the Hub data set"):
        find_data("owner/name")  # the tests are offline


def test_a_hub_data_set_is_read_by_configuration_and_split(
    monkeypatch: pytest.MonkeyPatch, write_jsonl: Write
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
    with pytest.raises(ValueError, match="split is for Hub data sets"):
        find_data(write_jsonl(ROWS), split="dev")
