"""Models are found by name: folders, the bundled encoder, repositories of the Hub."""

from pathlib import Path

import pytest
from huggingface_hub import HfApi

from modeling_condenser.hub import model_folder
from modeling_condenser.hub.fetching import fetch
from modeling_condenser.hub.model_folder import find_model_folder, resolve_encoder_name

NAME = "owner/encoder"
FILES = {
    "config.json": "{}",
    "model.safetensors": "weights",
    "pytorch_model.bin": "old weights",
    "onnx/model.onnx": "another format",
    "last-checkpoint/model.safetensors": "of a training",
}


def upload(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    HfApi().create_repo(NAME, exist_ok=True)
    return str(HfApi().upload_folder(repo_id=NAME, folder_path=folder).oid)


def fetched(folder: Path) -> set[str]:
    return {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}


def test_a_revision_is_pinned_and_only_patterns_are_fetched(loopback_hub, tmp_path):
    first = upload(tmp_path / "x", {"config.json": "{}", "notes.md": "one"})
    upload(tmp_path / "x", {"notes.md": "two"})
    assert fetched(fetch(f"{NAME}@{first}", only=["*.md"])) == {"notes.md"}
    assert (fetch(NAME) / "notes.md").read_text() == "two"
    assert (fetch(f"{NAME}@{first}") / "notes.md").read_text() == "one"


def test_what_is_not_on_the_hub_is_an_error(loopback_hub, tmp_path):
    upload(tmp_path / "x", {"config.json": "{}"})
    with pytest.raises(
        FileNotFoundError,
        match="Cannot fetch owner/absent from the Hub",
    ):
        fetch("owner/absent")
    with pytest.raises(FileNotFoundError, match="(?s)Revision Not Found"):
        fetch(f"{NAME}@absent")
    with pytest.raises(FileNotFoundError, match="There is no encoder 'owner/absent'"):
        find_model_folder("owner/absent")


def test_a_model_is_downloaded_without_other_formats_and_old_weights(loopback_hub, tmp_path):
    upload(tmp_path / "x", FILES)
    assert fetched(find_model_folder(NAME)) == {"config.json", "model.safetensors"}


def test_old_weights_are_downloaded_if_there_are_no_others(loopback_hub, tmp_path):
    upload(tmp_path / "x", {"config.json": "{}", "pytorch_model.bin": "old weights"})
    assert fetched(find_model_folder(NAME)) == {"config.json", "pytorch_model.bin"}


def test_the_bundled_encoder_is_found_by_its_name(tmp_path, monkeypatch):
    bundled = tmp_path / "bundled"
    monkeypatch.setattr(model_folder, "STARTER_FOLDER", bundled)
    with pytest.raises(FileNotFoundError, match="is not installed"):
        resolve_encoder_name("starter")
    bundled.mkdir()
    (bundled / "config.json").write_text("")
    (tmp_path / "starter").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model_folder("starter") == bundled
    assert find_model_folder("./starter") == Path("./starter")
