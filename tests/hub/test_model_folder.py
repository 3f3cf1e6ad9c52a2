"""Models by name: what is downloaded, and what is said where there is no such model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects

from modeling_condenser.hub import fetching, model_folder
from modeling_condenser.hub.model_folder import find_model_folder, resolve_encoder_name

MODULES = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
]


class Hub:
    """Stands in for the Hub: a repository's files, of which a download gets the allowed ones."""

    def __init__(self, files: list[str], folder: Path):
        self.files, self.folder = files, folder
        self.names: list[str] = []

    def snapshot_download(
        self,
        name: str,
        *,
        allow_patterns: list[str],
        ignore_patterns: list[str] | None = None,
        **_: object,
    ) -> str:
        self.names.append(name)
        for file in filter_repo_objects(
            self.files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        ):
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(MODULES) if file == "modules.json" else "{}")
        return str(self.folder)

    def downloaded(self) -> set[str]:
        found = self.folder.rglob("*")
        return {str(file.relative_to(self.folder)) for file in found if file.is_file()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Hub]:
    def make(*files: str) -> Hub:
        made = Hub(list(files), tmp_path / "snapshot")
        monkeypatch.setattr(fetching, "snapshot_download", made.snapshot_download)
        return made

    return make


def test_of_a_hub_model_only_what_is_needed_is_downloaded(hub: Callable[..., Hub]) -> None:
    needed = {
        "config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
        "vocab.txt",
        "spiece.model",
        "chat_template.jinja",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/pytorch_model.bin",  # there is no other
    }
    others = {
        "README.md",
        "pytorch_model.bin",
        "tf_model.h5",
        "flax_model.msgpack",
        "rust_model.ot",
        "onnx/model.onnx",
        "onnx/config.json",
        "openvino/openvino_model.bin",
        "openvino/openvino_model.xml",
        "checkpoint-500/model.safetensors",
        "training_args.bin",
        "modeling_other.py",
    }
    made = hub(*needed, *others)
    assert find_model_folder("owner/model") == made.folder
    assert made.downloaded() == needed
    assert set(made.names) == {"owner/model"}


def test_where_all_weights_are_new_the_hub_is_asked_once(hub: Callable[..., Hub]) -> None:
    made = hub("model.safetensors", "modules.json", "2_Dense/model.safetensors")
    find_model_folder("owner/model")
    assert made.names == ["owner/model"]


def test_older_weights_are_downloaded_where_there_are_no_others(hub: Callable[..., Hub]) -> None:
    files = ["config.json", "vocab.txt", "pytorch_model.bin"]
    made = hub(*files, "onnx/pytorch_model.bin", "training_args.bin", "tf_model.h5")
    assert find_model_folder("model-without-owner") == made.folder
    assert made.downloaded() == set(files)


def test_a_folder_is_itself_and_nothing_is_downloaded(
    hub: Callable[..., Hub], tmp_path: Path
) -> None:
    made = hub("config.json")
    (tmp_path / "encoder").mkdir()
    assert find_model_folder(tmp_path / "encoder") == tmp_path / "encoder"
    assert made.names == []


def test_starter_is_the_bundled_encoder_and_a_path_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = tmp_path / "bundled"
    bundled.mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (bundled / file).write_text("{}")
    (tmp_path / "starter").mkdir()
    monkeypatch.setattr(model_folder, "STARTER_FOLDER", bundled)
    monkeypatch.chdir(tmp_path)
    assert resolve_encoder_name("starter") == str(bundled)
    assert find_model_folder("starter") == bundled
    assert find_model_folder("./starter").resolve() == tmp_path / "starter"
    assert find_model_folder(Path("starter")).resolve() == tmp_path / "starter"
    assert resolve_encoder_name("owner/starter") == "owner/starter"
    (bundled / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"incomplete.*lacks tokenizer.json\. Install"):
        find_model_folder("starter")


@pytest.mark.parametrize("name", ["/no/such/folder", "./encoder", "runs/a/model", "../b"])
def test_what_can_only_be_a_folder_is_not_looked_for_on_the_hub(
    name: str, hub: Callable[..., Hub]
) -> None:
    made = hub("config.json")
    with pytest.raises(FileNotFoundError, match=f"no encoder '{name}': expected a folder"):
        find_model_folder(name)
    assert made.names == []


def test_a_name_that_the_hub_does_not_know_is_an_error_with_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("nothing in the cache")

    monkeypatch.setattr(fetching, "snapshot_download", fail)
    with pytest.raises(FileNotFoundError, match="'owner/nothing'.*it was not fetched before"):
        find_model_folder("owner/nothing")


def test_offline_the_real_library_says_that_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="'owner/nothing'.*Cannot fetch"):
        find_model_folder("owner/nothing")
    with pytest.raises(FileNotFoundError, match="'not a name'.*Cannot fetch"):
        find_model_folder("not a name")
