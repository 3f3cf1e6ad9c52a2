"""Fingerprints: of the content alone, and of all of it."""

import hashlib
import random
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, concatenate_datasets

from modeling_condenser.collection.collection import (
    Collection,
    checksum_qrels,
    fingerprint_judgements,
    fingerprint_passages,
)

from .conftest import write_lines

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


def test_it_is_what_its_definition_says() -> None:
    for n in (0, 1, 8192, 8193, 20_000):
        columns = {key: [record[key] for record in RECORDS[:n]] for key in RECORDS[0]}
        assert fingerprint_passages(Dataset.from_dict(columns)) == naive_fingerprint(RECORDS[:n])


def test_pieces_types_and_selections_do_not_matter() -> None:
    whole = Dataset.from_list(RECORDS)
    expected = fingerprint_passages(whole)
    pieces = [whole.select(range(i, i + 5000)) for i in range(0, 20_000, 5000)]
    table = whole.data.table
    columns = [column.cast(pa.large_string()) for column in table.columns]
    large = Dataset(pa.table(columns, names=table.column_names))
    backwards = whole.select(range(19_999, -1, -1))
    for same in (concatenate_datasets(pieces), large, backwards.select(range(19_999, -1, -1))):
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
