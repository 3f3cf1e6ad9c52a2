"""Loading BEIR folders, sound and broken."""

import json
from collections.abc import Sequence
from pathlib import Path

import datasets
import pytest

from modeling_condenser.collection.beir import load_collection

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
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)


def write_collection(
    folder: Path,
    *,
    corpus: Sequence[dict[str, object]] = CORPUS,
    queries: Sequence[dict[str, object]] = QUERIES,
    qrels: Sequence[str] = QRELS,
    header: str = "query-id\tcorpus-id\tscore",
) -> Path:
    (folder / "qrels").mkdir(parents=True)
    for name, records in (("corpus", corpus), ("queries", queries)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines)
    (folder / "qrels" / "test.tsv").write_text("\n".join([header, *qrels]) + "\n")
    return folder


def test_a_split_holds_all_passages_and_the_judged_queries(tmp_path: Path) -> None:
    collection = load_collection(write_collection(tmp_path / "c"))
    assert collection.passages.to_list() == CORPUS
    assert collection.queries == {"q2": "what do dogs chase?", "q1": "what do cats chase?"}
    assert collection.qrels == {"q1": {"p1": 2, "p2": 0}, "q2": {"p2": 1}}
    assert list(collection.queries) == list(collection.qrels) == ["q2", "q1"]


def test_further_columns_are_dropped(tmp_path: Path) -> None:
    corpus = [{**record, "metadata": {"url": "x"}} for record in CORPUS]
    collection = load_collection(str(write_collection(tmp_path / "c", corpus=corpus)))
    assert collection.passages.column_names == ["_id", "title", "text"]


def test_an_unknown_split_is_answered_with_those_there_are(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "c")
    (folder / "qrels" / "dev.tsv").write_text("")
    with pytest.raises(ValueError, match="no split 'train', expected one of dev, test"):
        load_collection(folder, split="train")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("corpus.jsonl", "no corpus.jsonl in"),
        ("queries.jsonl", "no queries.jsonl in"),
        ("qrels/test.tsv", "expected qrels/<split>.tsv"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, missing: str, message: str) -> None:
    folder = write_collection(tmp_path / "c")
    (folder / missing).unlink()
    with pytest.raises(FileNotFoundError, match=message):
        load_collection(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no collection at .*absent"):
        load_collection(tmp_path / "absent")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": []}, "corpus.jsonl is empty, expected at least one line"),
        (
            {"corpus": [{"id": "p1", "title": "", "text": "x"}]},
            "'_id' is missing; rename 'id'",
        ),
        (
            {"queries": [{"_id": "q1", "texts": "x"}]},
            "'text' is missing; rename 'texts'",
        ),
        (
            {"corpus": [{"_id": 1, "title": "", "text": "x"}]},
            "column '_id' was read as int64 or has nulls, expected a JSON string",
        ),
        (
            {"corpus": [{"_id": "2020-01-01", "title": "", "text": "x"}]},
            "column '_id' was read as timestamp",
        ),
        (
            {"corpus": [*CORPUS, {"_id": "p4", "title": "", "text": None}]},
            "column 'text' was read as string or has nulls",
        ),
        ({"corpus": [*CORPUS, CORPUS[1]]}, "corpus.jsonl: id 'p2' stands on 2 lines"),
        ({"queries": [*QUERIES, QUERIES[0]]}, "queries.jsonl: id 'q2' stands on 2 lines"),
        (
            {"qrels": [*QRELS, "q1\tp9\t1"]},
            "qrels/test.tsv names 1 ids that .*corpus.jsonl lacks, such as 'p9'",
        ),
        (
            {"qrels": [*QRELS, "q9\tp1\t1"]},
            "qrels/test.tsv names 1 ids that .*queries.jsonl lacks, such as 'q9'",
        ),
        ({"qrels": [*QRELS, "q1\tp1\t1"]}, "test.tsv:5: query 'q1' judges passage 'p1' a second"),
        ({"qrels": ["q1 p1 1"]}, "test.tsv:2: .* separated by tabs: mend the line"),
        ({"qrels": ["q1\tp1\thigh"]}, "test.tsv:2: .*whole number"),
        ({"qrels": []}, "test.tsv judges no query"),
        ({"header": "q1\tp1\t1"}, "test.tsv:1: header .* expected .'query-id'"),
    ],
)
def test_a_broken_collection_is_refused(
    tmp_path: Path, changes: dict[str, Sequence[dict[str, object]]], message: str
) -> None:
    folder = write_collection(tmp_path / "c", **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        load_collection(folder)
