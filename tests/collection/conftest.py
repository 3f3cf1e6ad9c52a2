"""A cache for each test, and writers of small collections."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from datasets import Dataset

Rows = Sequence[Mapping[str, Any]]
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
QRELS = ["query-id\tcorpus-id\tscore", "q1\tp1\t2", "q1\tp2\t0", "q2\tp2\t1"]
EXPECTED_QUERIES = {"q2": "what do dogs chase?", "q1": "what do cats chase?"}
EXPECTED_QRELS = {"q1": {"p1": 2, "p2": 0}, "q2": {"p2": 1}}
_TABLE_QRELS = [
    {"query-id": query_id, "corpus-id": passage_id, "score": float(grade)}
    for query_id, passage_id, grade in (line.split("\t") for line in QRELS[1:])
]


@pytest.fixture(autouse=True)
def passage_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder in which this test alone stores passages."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    return cache


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """Write a text file, compressed if its name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_jsonl(path: Path, records: Rows) -> Path:
    return write_lines(path, [json.dumps(record) for record in records])


def write_beir(
    folder: Path,
    *,
    corpus: Rows = CORPUS,
    queries: Rows = QUERIES,
    qrels: Sequence[str] = QRELS,
    ending: str = "",
) -> Path:
    write_jsonl(folder / f"corpus.jsonl{ending}", corpus)
    write_jsonl(folder / f"queries.jsonl{ending}", queries)
    write_lines(folder / "qrels" / f"test.tsv{ending}", qrels)
    return folder


def write_mteb(folder: Path, **changes: Mapping[str, Rows] | None) -> Path:
    """Write parquet files, and a README.md that declares them: table -> split -> rows."""
    tables = {
        "corpus": {"corpus": CORPUS},
        "queries": {"queries": QUERIES},
        "default": {"test": _TABLE_QRELS, "validation": _TABLE_QRELS[:1]},
    }
    declared = []
    for table, splits in {**tables, **changes}.items():
        for split, rows in (splits or {}).items():
            (folder / table).mkdir(parents=True, exist_ok=True)
            Dataset.from_list(list(rows)).to_parquet(folder / table / f"{split}.parquet")
        files = [{"split": split, "path": f"{table}/{split}.parquet"} for split in splits or ()]
        declared += [{"config_name": table, "data_files": files}] if files else []
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': declared})}---\n")
    return folder
