"""Rows of labelled data are read from every kind of file, as they stand."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from modeling_condenser.collection import text_files
from modeling_condenser.finetuning import rows as module
from modeling_condenser.finetuning.examples import make_text_example
from modeling_condenser.finetuning.recipe import FinetuningRecipe
from modeling_condenser.finetuning.rows import open_rows
from modeling_condenser.hub.contract import EncodingContract

# Texts that libraries which guess types read as missing, as numbers or as dates.
TEXTS = ["None", "1984", "nan", 'a "quoted" word', "no tab, comma", "1e5", " spaced ", "東京 😀"]
TEXTS += ["2020-01-01", "0012"]
ROWS = [{"query": text, "positive": f"p {text}"} for text in TEXTS]
Write = Callable[..., Path]


def read(data: Any, **settings: Any) -> list[Any]:
    data = [str(file) for file in data] if isinstance(data, list) else str(data)
    return list(open_rows(FinetuningRecipe("e", data=data, format="pairs", **settings))[0])


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
        assert read(file) == ROWS, file


def test_a_file_without_header_is_read_by_the_names_of_its_columns(write_text: Write) -> None:
    file = write_text("q1\tp1\nq2\tp2\n", "a.tsv")
    rows = read(file, columns=["query", "positive"])
    assert rows == [{"query": f"q{i}", "positive": f"p{i}"} for i in (1, 2)]
    with pytest.raises(ValueError, match=r"a.tsv: row 1 has 2 fields, expected 1 .query"):
        read(file, columns=["query"])


def test_lists_and_patterns_are_read_in_order(tmp_path: Path, write_jsonl: Write) -> None:
    for i in (2, 0, 1):
        write_jsonl([{"query": f"q{i}"}], f"part-{i}.jsonl")
    both = [tmp_path / "part-2.jsonl", tmp_path / "part-[01].jsonl"]
    assert [row["query"] for row in read(both)] == ["q2", "q0", "q1"]


@pytest.mark.parametrize(("chunk", "indent"), [(1, None), (64, 2)])
def test_an_array_is_read_item_by_item_wherever_its_chunks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    texts = ['aé"\\\n\t', "東😀", "[]{},:", "", "0"]
    values = [{t: [i, i / 7, None, t, {}], "x": {"y": [t] * i}} for i, t in enumerate(texts * 4)]
    file = tmp_path / "array.json"
    file.write_text(json.dumps(values, indent=indent, ensure_ascii=bool(chunk % 2)), "utf-8")
    monkeypatch.setattr(text_files, "_JSON_CHUNK", chunk)
    assert read(file) == values
    file.write_text('[{"a": 1}, {"a": 2')
    with pytest.raises(ValueError, match=r"array.json is not a JSON array"):
        read(file)


def test_missing_data_is_an_error(write_jsonl: Write, write_text: Write) -> None:
    with pytest.raises(FileNotFoundError, match=r"no local file 'x.jsonl', and the Hub data set"):
        read("x.jsonl")  # the tests are offline
    with pytest.raises(ValueError, match=r"a.xml: expected a file of type .jsonl"):
        read(write_text("<x/>", "a.xml"))


def test_a_hub_data_set_is_read_by_configuration_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*words: Any, **settings: Any) -> Dataset:
        asked.append((words, settings))
        return Dataset.from_list(ROWS)

    monkeypatch.setattr(module, "load_dataset", load_dataset)
    assert read("owner/name", data_name="triplet", split="dev", data_revision="abc") == ROWS
    assert asked == [(("owner/name", "triplet"), {"split": "dev", "revision": "abc"})]


def test_the_sts_benchmarks_own_files_are_read(write_text: Write) -> None:
    lines = (
        "main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane takes off.\tA plane starts.\n"
        'main-news\theadlines\t2013\t0024\t0.8\t"So," she said.\tNone\tCC\thttp://x\n'
    )
    data = str(write_text(lines, "sts-train.csv"))
    recipe = FinetuningRecipe("e", "mse_cosine", data=data, format="stsb")
    contract = EncodingContract(8, 8)
    examples = [make_text_example(recipe, contract, row) for row in open_rows(recipe)[0]]
    assert examples == [
        {"sentence1": "A plane takes off.", "sentence2": "A plane starts.", "label": 1.0},
        {"sentence1": '"So," she said.', "sentence2": "None", "label": 0.16},
    ]
