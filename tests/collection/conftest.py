"""What the tests of collections share: a cache of their own, and files in each layout."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import datasets
import pytest

CORPUS = [
    {"_id": "p1", "title": "Cats", "text": "Cats chase mice."},
    {"_id": "p2", "title": "", "text": "Dogs chase cats."},
    {"_id": "3", "title": "Trains", "text": "Trains leave."},
]
QUERIES = [
    {"_id": "q2", "text": "what do dogs chase?"},
    {"_id": "q1", "text": "what do cats chase?"},
    {"_id": "q3", "text": "when do trains leave?"},
]
QRELS = ["q1\tp1\t2", "q1\tp2\t0", "q2\tp2\t1"]


@pytest.fixture(autouse=True)
def passage_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder in which this test alone stores passages."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    return cache


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """A text file, compressed if its name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_jsonl(path: Path, records: Sequence[dict[str, object]]) -> Path:
    return write_lines(path, [json.dumps(record) for record in records])


def write_beir(
    folder: Path,
    *,
    corpus: Sequence[dict[str, object]] = CORPUS,
    queries: Sequence[dict[str, object]] = QUERIES,
    qrels: Sequence[str] = QRELS,
    header: str = "query-id\tcorpus-id\tscore",
) -> Path:
    write_jsonl(folder / "corpus.jsonl", corpus)
    write_jsonl(folder / "queries.jsonl", queries)
    write_lines(folder / "qrels" / "test.tsv", [header, *qrels])
    return folder
