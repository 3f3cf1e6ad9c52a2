"""Models are found by their names, on the Hub and elsewhere."""

from pathlib import Path

import pytest

from modeling_condenser.files import models
from modeling_condenser.files.hub import NETWORK_ERRORS, fetch
from modeling_condenser.files.models import find_model_folder
from tests.publishing.loopback_hub import contents

NAME = "owner/encoder"
FILES = {
    "config.json": "{}",
    "model.safetensors": "weights",
    "pytorch_model.bin": "old weights",
    "2_Dense/pytorch_model.bin": "weights",
    "README.md": "---\nlicense: mit\n---\n",
    "onnx/model.onnx": "another format",
    "last-checkpoint/model.safetensors": "of a training",
}


@pytest.mark.parametrize("kind", NETWORK_ERRORS)
def test_a_failure_of_the_network_is_an_os_error_with_a_sentence(kind, monkeypatch):
    def fail(*_, **__):
        raise kind("The read operation timed out")

    monkeypatch.setattr("modeling_condenser.files.hub.snapshot_download", fail)
    with pytest.raises(OSError, match="Cannot fetch owner/encoder from the Hub; try again: The r"):
        fetch(NAME)


def put(hub, folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return hub.put(folder, NAME)


def test_a_revision_is_pinned_and_only_patterns_are_fetched(loopback_hub, tmp_path):
    first = put(loopback_hub, tmp_path / "x", {"config.json": "{}", "notes.md": "one"})
    put(loopback_hub, tmp_path / "x", {"notes.md": "two"})
    assert contents(fetch(f"{NAME}@{first}", only=["*.md"])).keys() == {"notes.md"}
    assert (fetch(NAME) / "notes.md").read_text() == "two"
    assert (fetch(f"{NAME}@{first}") / "notes.md").read_text() == "one"
    with pytest.raises(FileNotFoundError, match="(?s)folder 'owner/encoder@x'.*Revision Not"):
        fetch(f"{NAME}@x")
    for absent in ("owner/absent", "./absent"):
        with pytest.raises(FileNotFoundError, match=f"There is no folder '{absent}'"):
            find_model_folder(absent)


def test_a_model_is_downloaded_without_other_formats_and_old_weights(loopback_hub, tmp_path):
    put(loopback_hub, tmp_path / "x", FILES)
    needed = {"config.json", "2_Dense/pytorch_model.bin", "README.md"}
    assert contents(find_model_folder(NAME)).keys() == {*needed, "model.safetensors"}
    (tmp_path / "x" / "model.safetensors").unlink()
    put(loopback_hub, tmp_path / "x", {})
    assert contents(find_model_folder(NAME)).keys() == {*needed, "pytorch_model.bin"}


def test_the_bundled_encoder_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_model_folder("starter") == models.STARTER_FOLDER
    (tmp_path / "starter").mkdir()
    assert find_model_folder("starter") == Path("starter")
