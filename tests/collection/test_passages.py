"""Storing passages, finding them by id, and fingerprints of all that a collection holds."""

import hashlib
import random
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from datasets import Dataset, concatenate_datasets

from modeling_condenser.collection import passages
from modeling_condenser.collection.collection import (
    Collection,
    checksum_qrels,
    fingerprint_judgements,
    fingerprint_passages,
)
from modeling_condenser.collection.passages import Row, find_rows, find_texts, store_passages

from .conftest import write_lines


def rows(first: int, last: int) -> Iterator[Row]:
    return ((f"p{i}", f"title {i}" if i % 2 else "", f"text {i}") for i in range(first, last))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("one")
    return path


def test_rows_come_back_in_order_and_memory_mapped(file: Path, passage_cache: Path) -> None:
    stored = store_passages(rows(0, 2500), files=[file], name="corpus")
    assert [tuple(row.values()) for row in stored] == list(rows(0, 2500))
    assert {str(feature.dtype) for feature in stored.features.values()} == {"string"}
    assert Path(stored.cache_files[0]["filename"]).is_relative_to(passage_cache)


def test_the_same_files_are_read_once_and_changed_ones_again(file: Path) -> None:
    def store(n: int) -> int:
        return len(store_passages(rows(0, n), files=[file], name="corpus"))

    assert store(1) == store(2) == 1
    file.write_text("more")
    assert store(2) == 2


def test_ids_are_found_in_any_batch(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passages, "_BATCH_ROWS", 700)
    stored = store_passages(rows(0, 3000), files=[file], name="corpus")
    numbers = random.Random(0).sample(range(3000), 500)
    found = find_rows(stored, [f"p{i}" for i in numbers * 2])
    assert list(found.items()) == [(f"p{i}", i) for i in sorted(numbers)]
    assert find_texts(stored, ["p13", "p2"]) == {"p13": "text 13", "p2": "text 2"}
    assert find_rows(stored, []) == find_texts(stored, []) == {}
    with pytest.raises(ValueError, match="1 of 2 passage ids .* such as 'p3000'"):
        find_rows(stored, ["p3000", "p1"])


RECORDS = [
    {"_id": f"p{i}", "title": "Ä" * (i % 3), "text": f"téxt {i} " * random.Random(i).randrange(4)}
    for i in range(20_000)
]


def naive_fingerprint(records: list[dict[str, str]]) -> str:
    """The definition in the docstring."""
    content = b"condenser passages 1"
    for first in range(0, len(records), 8192):
        for column in ("_id", "title", "text"):
            texts = [record[column].encode() for record in records[first : first + 8192]]
            content += b"".join(struct.pack("<q", len(text)) for text in texts) + b"".join(texts)
    return hashlib.sha256(content + struct.pack("<q", len(records))).hexdigest()


@pytest.mark.parametrize("n", [0, 1, 8192, 8193])
def test_a_fingerprint_is_what_its_definition_says(n: int) -> None:
    columns = {key: [record[key] for record in RECORDS[:n]] for key in RECORDS[0]}
    assert fingerprint_passages(Dataset.from_dict(columns)) == naive_fingerprint(RECORDS[:n])


def test_pieces_types_and_selections_do_not_change_a_fingerprint() -> None:
    whole = Dataset.from_list(RECORDS)
    pieces = [whole.select(range(i, i + 5000)) for i in range(0, 20_000, 5000)]
    table = whole.data.table
    columns = [column.cast(pa.large_string()) for column in table.columns]
    large = Dataset(pa.table(columns, names=table.column_names))
    backwards = whole.select(range(19_999, -1, -1))
    expected = naive_fingerprint(RECORDS)
    for same in (
        whole,
        concatenate_datasets(pieces),
        large,
        backwards.select(range(19_999, -1, -1)),
    ):
        assert fingerprint_passages(same) == expected
    assert fingerprint_passages(backwards) != expected


def test_judgements_are_identified_whatever_their_order() -> None:
    collection = Collection(
        passages=Dataset.from_list(RECORDS[:3]),
        queries={"q1": "one", "q2": "two"},
        qrels={"q1": {"p1": 1, "p2": 0}},
        answers={"q2": ("b", "a")},
    )
    lines = ['["q1","one",[["p1",1],["p2",0]],[]]\n', '["q2","two",[],["a","b"]]\n']
    expected = hashlib.sha256(("condenser judgements 1" + "".join(lines)).encode()).hexdigest()
    assert fingerprint_judgements(collection) == expected
    same = replace(collection, queries={"q2": "two", "q1": "one"}, answers={"q2": ("a", "b")})
    assert fingerprint_judgements(same) == expected


def test_the_checksum_of_qrels_is_that_of_their_sorted_trec_lines(tmp_path: Path) -> None:
    qrels = {"q2": {"pé": -1, "p10": 2}, "q10": {"p1": 0}}
    file = write_lines(tmp_path / "qrels.txt", ["q2 0 p10 2", "q10 0 p1 0", "q2 0 pé -1"])
    output = subprocess.run(
        f"LC_ALL=C sort {file} | sha256sum", shell=True, capture_output=True, text=True, check=True
    )
    assert checksum_qrels(qrels) == output.stdout.split()[0]
