"""BEIR's layout, as files and as tables, in a folder and on the Hub."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from modeling_condenser.collection import load
from modeling_condenser.collection.load import load_collection, load_passages

from .conftest import (
    CORPUS,
    EXPECTED_QRELS,
    EXPECTED_QUERIES,
    QRELS,
    QUERIES,
    write_beir,
    write_jsonl,
    write_lines,
    write_mteb,
)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_split_holds_all_passages_and_the_judged_queries(tmp_path: Path, ending: str) -> None:
    collection = load_collection(write_beir(tmp_path / "c", ending=ending))
    assert collection.passages.to_list() == CORPUS
    assert list(collection.queries.items()) == list(EXPECTED_QUERIES.items())
    assert collection.qrels == EXPECTED_QRELS
    assert list(collection.qrels) == ["q2", "q1"]
    assert (collection.answers, collection.name) == ({}, "c")
    rows = [{"query-id": "q1", "corpus-id": "p1", "score": 2.0}]
    write_jsonl(tmp_path / "c" / "qrels" / "dev.jsonl", rows)
    assert load_collection(tmp_path / "c", split="dev").qrels == {"q1": {"p1": 2}}


def test_ids_and_texts_are_read_as_they_are(tmp_path: Path) -> None:
    corpus: list[dict[str, Any]] = [
        {"_id": "2020-01-01", "text": "a date as an id"},
        {"_id": "007", "title": None, "text": "zeros in front", "url": "dropped"},
        {"_id": 12, "title": "T", "text": 'a "quoted" word\u2028and\x0b\r separators'},
    ]
    passages = load_passages(write_beir(tmp_path / "c", corpus=corpus))
    assert passages["_id"][:] == ["2020-01-01", "007", "12"]
    assert passages["title"][:] == ["", "", "T"]
    assert passages["text"][:] == [record["text"] for record in corpus]


def test_a_split_without_judgements_holds_the_answered_queries_of_no_other_split(
    tmp_path: Path,
) -> None:
    queries = [{**query, "answers": [f"answer {i}"]} for i, query in enumerate(QUERIES)]
    queries.append({"_id": "q4", "text": "unanswered", "answers": []})
    folder = write_beir(tmp_path / "c", queries=queries)
    judged, answered = load_collection(folder), load_collection(folder, split="dev")
    assert judged.answers == {"q2": ("answer 0",), "q1": ("answer 1",)}
    assert (answered.answers, answered.qrels) == ({"q3": ("answer 2",)}, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": []}, "corpus.jsonl holds no passage"),
        ({"corpus": [{"_id": 1.5, "text": "x"}]}, "corpus.jsonl: an id is 1.5, expected text"),
        ({"corpus": [*CORPUS, *CORPUS[1:]]}, "2 passages repeat the id .* the first is passage 4"),
        ({"qrels": [QRELS[0], "q1\tp9\t1", "q1\tp8\t1"]}, "2 of 2 passage ids .* as 'p8', 'p9'"),
        ({"qrels": [QRELS[0], "q9\tp1\t1"]}, "1 judged queries .* such as 'q9'"),
        ({"qrels": [QRELS[0], "q1\tp1\t0.5"]}, "test.tsv: the grade '0.5' is not a whole"),
        ({"qrels": QRELS[1:]}, "expected the header query-id corpus-id score"),
    ],
)
def test_a_broken_collection_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_collection(write_beir(tmp_path / "c", **changes))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", b'{"_id": "p1", "te', "corpus.jsonl:1: .* is not a JSON object"),
        ("corpus.jsonl.gz", b"not gzip", "corpus.jsonl.gz cannot be read .Not a gzipped"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_passages(tmp_path)


def test_tables_are_read_as_readme_declares_them(tmp_path: Path) -> None:
    folder = write_mteb(tmp_path / "set")
    collection = load_collection(folder)
    assert collection.passages.to_list() == CORPUS == load_passages(folder).to_list()
    assert (collection.queries, collection.qrels) == (EXPECTED_QUERIES, EXPECTED_QRELS)
    # `datasets` calls the split "dev" validation.
    assert load_collection(folder, split="dev").qrels == {"q1": {"p1": 2}}


def test_numbers_as_ids_become_text_and_a_split_may_have_a_corpus_of_its_own(
    tmp_path: Path,
) -> None:
    corpus = [{"id": 7, "text": "seven"}, {"id": 11, "text": "eleven"}]
    folder = write_mteb(
        tmp_path / "set",
        corpus={"train": corpus[:1], "test": corpus},
        queries={"train": [{"id": 3, "text": "which?"}]},
        default={"test": [{"query-id": 3, "corpus-id": 11, "score": 1}]},
    )
    collection = load_collection(folder)
    assert collection.passages["_id"][:] == ["7", "11"]
    assert (collection.queries, collection.qrels) == ({"3": "which?"}, {"3": {"11": 1}})
    with pytest.raises(ValueError, match=r"no split 'dev': it has judgements for test"):
        load_collection(folder, split="dev")
    (folder / "qrels").mkdir()
    write_lines(folder / "qrels" / "dev.tsv", [QRELS[0], "3\t7\t1"])
    with pytest.raises(ValueError, match=r"\(corpus\) has no split 'dev'; its splits are train, t"):
        load_collection(folder, split="dev")


def test_judgements_may_be_in_a_second_folder(tmp_path: Path) -> None:
    folder = write_mteb(tmp_path / "set", default=None)
    with pytest.raises(ValueError, match="no split 'test': it has judgements for no split"):
        load_collection(folder)
    write_lines(tmp_path / "set-qrels" / "test.tsv", QRELS)
    assert load_collection(folder).qrels == EXPECTED_QRELS


def test_beirs_files_come_before_tables_and_other_layouts(tmp_path: Path) -> None:
    folder = write_beir(write_mteb(tmp_path / "c", corpus={"corpus": CORPUS[:1]}))
    write_lines(folder / "collection.tsv", ["0\tother"])
    assert load_passages(folder).to_list() == CORPUS


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose subfolders stand for data sets of a Hub; `tmp_path/snapshots` is its cache."""

    def fetch(name: str, *, repo_type: str, only: Sequence[str] = ("**/*",)) -> Path:
        repository, snapshot = tmp_path / "hub" / name, tmp_path / "snapshots" / name
        if repo_type != "dataset" or not repository.is_dir():
            raise FileNotFoundError(f"Cannot fetch {name}")
        for file in (file for pattern in only for file in repository.glob(pattern)):
            target = snapshot / file.relative_to(repository)
            if file.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
        return snapshot

    monkeypatch.setattr(load, "fetch", fetch)
    return tmp_path / "hub" / "owner"


def test_a_folder_comes_before_a_hub_name(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_beir(tmp_path / "owner" / "set")
    write_mteb(hub / "set")
    (tmp_path / "owner" / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_collection("owner/set").name == "set"
    assert not (tmp_path / "snapshots").exists()
    for source, message in (
        ("owner/d", "no collection owner/d: there is no such folder. Cannot fetch owner/d"),
        ("nowhere", "no collection at nowhere: expected a folder"),
        ("owner/other", "holds nothing, expected corpus.jsonl .*DPR"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            load_collection(source)


def test_a_repository_of_files_is_downloaded_without_other_files(hub: Path, tmp_path: Path) -> None:
    write_beir(hub / "set@v1")
    (hub / "set@v1" / "large.bin").write_text("not downloaded")
    collection = load_collection("owner/set@v1")
    assert (collection.name, collection.qrels) == ("set", EXPECTED_QRELS)
    assert not list((tmp_path / "snapshots").rglob("large.bin"))


def test_a_repository_of_tables_is_downloaded_with_its_second_repository(hub: Path) -> None:
    write_mteb(hub / "whole")
    write_mteb(hub / "part", default=None)
    with pytest.raises(ValueError, match="no split 'test'"):
        load_collection("owner/part")
    write_mteb(hub / "part-qrels", corpus=None, queries=None)
    for name in ("whole", "part"):
        collection = load_collection(f"owner/{name}")
        assert (collection.name, collection.qrels) == (name, EXPECTED_QRELS)
        assert collection.passages.to_list() == CORPUS
    with pytest.raises(ValueError, match="part-qrels has the tables default, expected corpus.json"):
        load_passages("owner/part-qrels")
