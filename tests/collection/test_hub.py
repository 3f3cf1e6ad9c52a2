"""Data sets on the Hub: what is fetched of them, and that it is read as a folder would be."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from modeling_condenser.collection.load import load_collection, load_passages
from modeling_condenser.hub import fetching

from .conftest import CORPUS, QRELS, QUERIES, write_beir, write_jsonl, write_lines
from .test_configured import EXPECTED_QRELS, MTEB_QRELS, write_mteb, write_repository


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """A Hub whose repositories lie in `tmp_path/hub`; lists what was fetched of which."""
    calls: list[tuple[str, list[str]]] = []

    def snapshot_download(
        name: str, *, repo_type: str, allow_patterns: list[str], **_: object
    ) -> str:
        assert repo_type == "dataset"
        calls.append((name, allow_patterns))
        source, snapshot = tmp_path / "hub" / name, tmp_path / "snapshots" / name / "0a1b2c"
        if not source.is_dir():
            raise LocalEntryNotFoundError("Cannot find it.\nSet HF_HUB_OFFLINE=0.")
        for pattern in allow_patterns:
            for file in source.glob(pattern):
                target = snapshot / file.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
        return str(snapshot)

    monkeypatch.setattr(fetching, "snapshot_download", snapshot_download)
    return calls


Fetched = list[tuple[str, list[str]]]
BEIR_FILES = ["README.md", "corpus.jsonl*", "queries.jsonl*", "qrels/*"]


def test_a_repository_that_is_a_beir_folder_is_fetched_and_read_as_files(
    tmp_path: Path, fetched: Fetched
) -> None:
    folder = write_beir(tmp_path / "hub" / "owner" / "set")
    (folder / "large.bin").write_text("not fetched")
    collection = load_collection("owner/set")
    assert (collection.name, collection.qrels) == ("set", EXPECTED_QRELS)
    assert fetched == [("owner/set", BEIR_FILES)]
    assert not list(tmp_path.glob("snapshots/**/large.bin"))


def test_beirs_repositories_have_their_judgements_in_a_second_one(
    tmp_path: Path, fetched: Fetched
) -> None:
    folder = tmp_path / "hub" / "BeIR" / "scifact"
    write_jsonl(folder / "corpus.jsonl.gz", CORPUS)
    write_jsonl(folder / "queries.jsonl.gz", QUERIES)
    write_lines(folder / "scifact.py", ["raise RuntimeError('a loading script is never run')"])
    write_lines(
        tmp_path / "hub" / "BeIR" / "scifact-qrels" / "test.tsv",
        ["query-id\tcorpus-id\tscore", *QRELS],
    )
    collection = load_collection("BeIR/scifact")
    assert (collection.name, collection.qrels) == ("scifact", EXPECTED_QRELS)
    assert [name for name, _ in fetched] == ["BeIR/scifact", "BeIR/scifact-qrels"]
    assert load_passages("BeIR/scifact").to_list() == CORPUS
    with pytest.raises(ValueError, match="has no split 'dev', expected one of test"):
        load_collection("BeIR/scifact", split="dev")


def test_mtebs_json_lines_are_read_as_files_so_that_no_id_is_taken_for_a_date(
    tmp_path: Path, fetched: Fetched
) -> None:
    folder = tmp_path / "hub" / "mteb" / "set"
    corpus = [{**record, "_id": f"2020-01-0{i + 1}"} for i, record in enumerate(CORPUS)]
    write_jsonl(folder / "corpus.jsonl", corpus)
    write_jsonl(folder / "queries.jsonl", QUERIES)
    row = {"query-id": "q1", "corpus-id": "2020-01-02", "score": 1.0}
    write_jsonl(folder / "qrels" / "test.jsonl", [row])
    assert load_collection("mteb/set").qrels == {"q1": {"2020-01-02": 1}}


def test_other_repositories_are_read_by_their_configurations(
    tmp_path: Path, fetched: Fetched
) -> None:
    folder = write_mteb(tmp_path / "hub" / "owner" / "set")
    write_lines(folder / "other" / "large.tsv", ["not fetched"])
    collection = load_collection("owner/set")
    assert (collection.name, collection.qrels) == ("set", EXPECTED_QRELS)
    assert collection.passages.to_list() == CORPUS == load_passages("owner/set").to_list()
    assert fetched[:2] == [
        ("owner/set", BEIR_FILES),
        (
            "owner/set",
            [
                "README.md",
                "corpus/corpus-00000-of-00001.parquet",
                "queries/queries-00000-of-00001.parquet",
                "default/test-00000-of-00001.parquet",
                "default/validation-00000-of-00001.parquet",
            ],
        ),
    ]
    assert not list(tmp_path.glob("snapshots/**/large.tsv"))


def test_beirs_configurations_with_judgements_beside_are_read(
    tmp_path: Path, fetched: Fetched
) -> None:
    write_repository(
        tmp_path / "hub" / "BeIR" / "set",
        {"corpus": {"corpus": CORPUS}, "queries": {"queries": QUERIES}},
    )
    with pytest.raises(ValueError, match="there are no judgements in .*BeIR/set"):
        load_collection("BeIR/set")
    qrels = ["query-id\tcorpus-id\tscore", "q1\t3\t1"]
    write_lines(tmp_path / "hub" / "BeIR" / "set-qrels" / "dev.tsv", qrels)
    assert load_collection("BeIR/set", split="validation").qrels == {"q1": {"3": 1}}
    write_repository(tmp_path / "hub" / "BeIR" / "set-qrels", {"default": {"test": MTEB_QRELS}})
    (tmp_path / "hub" / "BeIR" / "set-qrels" / "dev.tsv").unlink()
    shutil.rmtree(tmp_path / "snapshots")
    assert load_collection("BeIR/set").qrels == EXPECTED_QRELS


def test_a_repository_of_another_layout_is_answered_with_its_configurations(
    tmp_path: Path, fetched: Fetched
) -> None:
    write_repository(tmp_path / "hub" / "owner" / "pairs", {"train": {"train": CORPUS}})
    with pytest.raises(ValueError, match="owner/pairs has no corpus.jsonl, and the configurations"):
        load_collection("owner/pairs")


def test_a_name_that_is_neither_here_nor_on_the_hub_is_said_to_be_so(fetched: Fetched) -> None:
    message = "no collection owner/absent: .*no such folder here, .*Cannot fetch owner/absent: "
    with pytest.raises(FileNotFoundError, match=message):
        load_collection("owner/absent")
    with pytest.raises(FileNotFoundError, match=message):
        load_passages("owner/absent")
