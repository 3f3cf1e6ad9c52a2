"""Finding the layout of a collection."""

from pathlib import Path

import pytest

from modeling_condenser.collection.load import load_collection, load_passages

from .conftest import CORPUS, write_beir, write_lines


def test_beir_comes_before_everything_else(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "c")
    write_lines(folder / "collection.tsv", ["0\tother"])
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: corpus\n---\n")
    assert load_passages(folder).to_list() == CORPUS
    assert load_collection(folder).passages.to_list() == CORPUS


def test_a_folder_of_no_known_layout_is_answered_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="it holds nothing, expected corpus.jsonl"):
        load_passages(tmp_path)
    for i in range(10):
        (tmp_path / f"file{i}.txt").touch()
    (tmp_path / "README.md").write_text("# no header\n")
    message = "holds README.md, file0.txt, .*file6.txt, …, expected corpus.jsonl .BEIR.; .*psgs_w10"
    with pytest.raises(FileNotFoundError, match=message):
        load_collection(tmp_path)


def test_what_is_no_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "corpus.jsonl"
    file.touch()
    with pytest.raises(FileNotFoundError, match="corpus.jsonl: it is a file, expected a folder"):
        load_collection(file)
    with pytest.raises(FileNotFoundError, match="absent: it does not exist"):
        load_passages(tmp_path / "absent")
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(FileNotFoundError, match="it is a file, expected a folder"):
        load_collection(f"{tmp_path.name}/corpus.jsonl")
    with pytest.raises(FileNotFoundError, match="no collection at nowhere"):
        load_collection("nowhere")


def test_a_relative_path_that_could_be_a_hub_name_is_a_folder_if_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_beir(tmp_path / "data" / "c")
    monkeypatch.chdir(tmp_path)
    assert load_collection("data/c").name == "c"
    # The test process is off line, as a user may be.
    with pytest.raises(FileNotFoundError, match="no collection data/d: .*could not be fetched"):
        load_collection("data/d")
