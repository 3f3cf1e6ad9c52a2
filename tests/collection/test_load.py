"""Finding the layout of a collection, and downloading collections from the Hub."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from modeling_condenser.collection.load import load_collection, load_passages
from modeling_condenser.hub import fetching

from .conftest import (
    CORPUS,
    EXPECTED_QRELS,
    QRELS,
    QUERIES,
    TABLE_QRELS,
    write_beir,
    write_jsonl,
    write_lines,
    write_mteb,
    write_tables,
)

Fetched = list[tuple[str, str | None]]


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fetched:
    """A Hub whose repositories are folders in `tmp_path/hub`; lists what was downloaded."""
    calls: Fetched = []

    def snapshot_download(
        name: str, *, revision: str | None, allow_patterns: list[str] | None, **_: object
    ) -> str:
        calls.append((name, revision))
        source, snapshot = tmp_path / "hub" / name, tmp_path / "snapshots" / name / "0a1b2c"
        if not source.is_dir():
            raise LocalEntryNotFoundError("Cannot find it.")
        for pattern in allow_patterns or ["**/*"]:
            for file in filter(Path.is_file, source.glob(pattern)):
                target = snapshot / file.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
        return str(snapshot)

    monkeypatch.setattr(fetching, "snapshot_download", snapshot_download)
    return calls


def test_beirs_files_come_before_the_other_layouts(tmp_path: Path) -> None:
    folder = write_beir(write_mteb(tmp_path / "c", corpus={"corpus": CORPUS[:1]}))
    write_lines(folder / "collection.tsv", ["0\tother"])
    assert load_passages(folder).to_list() == CORPUS


def test_a_folder_of_no_known_layout_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# no header\n")
    with pytest.raises(FileNotFoundError, match="holds README.md, expected corpus.jsonl .*DPR"):
        load_collection(tmp_path)


def test_a_folder_comes_before_a_hub_name(
    tmp_path: Path, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_beir(tmp_path / "data" / "c")
    monkeypatch.chdir(tmp_path)
    assert load_collection("data/c").name == "c"
    with pytest.raises(FileNotFoundError, match="no collection data/d: neither a folder"):
        load_collection("data/d")
    with pytest.raises(FileNotFoundError, match="no collection at nowhere: expected a folder"):
        load_collection("nowhere")
    assert fetched == [("data/d", None)]


def test_a_repository_in_beirs_layout_is_downloaded_and_read_as_files(
    tmp_path: Path, fetched: Fetched
) -> None:
    # As tables, these ids would become dates.
    corpus = [{**record, "_id": f"2020-01-0{i + 1}"} for i, record in enumerate(CORPUS)]
    qrels = [QRELS[0], "q1\t2020-01-02\t1"]
    folder = write_beir(tmp_path / "hub" / "owner" / "set", corpus=corpus, qrels=qrels)
    (folder / "large.bin").write_text("not downloaded")
    collection = load_collection("owner/set@v1")
    assert (collection.name, collection.qrels) == ("set", {"q1": {"2020-01-02": 1}})
    assert fetched == [("owner/set", "v1")]
    assert not list((tmp_path / "snapshots").rglob("large.bin"))


def test_judgements_are_downloaded_from_a_second_repository(
    tmp_path: Path, fetched: Fetched
) -> None:
    hub = tmp_path / "hub" / "BeIR"
    write_jsonl(hub / "files" / "corpus.jsonl.gz", CORPUS)
    write_jsonl(hub / "files" / "queries.jsonl.gz", QUERIES)
    write_lines(hub / "files-qrels" / "test.tsv", QRELS)
    write_tables(hub / "tables", {"corpus": {"corpus": CORPUS}, "queries": {"queries": QUERIES}})
    with pytest.raises(ValueError, match="no split 'test'"):
        load_collection("BeIR/tables")
    write_tables(hub / "tables-qrels", {"default": {"test": TABLE_QRELS}})
    for name in ("files", "tables"):
        collection = load_collection(f"BeIR/{name}")
        assert (collection.name, collection.qrels) == (name, EXPECTED_QRELS)
    assert ("BeIR/files-qrels", None) in fetched


def test_a_repository_of_tables_is_downloaded(tmp_path: Path, fetched: Fetched) -> None:
    write_mteb(tmp_path / "hub" / "owner" / "set")
    collection = load_collection("owner/set")
    assert (collection.name, collection.qrels) == ("set", EXPECTED_QRELS)
    assert collection.passages.to_list() == CORPUS == load_passages("owner/set").to_list()
    write_tables(tmp_path / "hub" / "owner" / "pairs", {"pairs": {"train": CORPUS}})
    with pytest.raises(ValueError, match="owner/pairs has no corpus.jsonl, .* tables are pairs;"):
        load_collection("owner/pairs")
