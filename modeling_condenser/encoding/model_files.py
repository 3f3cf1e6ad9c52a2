"""A model's name in; its folder and its files out, downloaded where they are not here."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

CONFIG_FILE = "config.json"
MODULES_FILE = "modules.json"
MODULES_CONFIG_FILE = "config_sentence_transformers.json"

_NEEDED_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]
_OTHER_FORMATS = ["onnx/*", "openvino/*", "coreml/*", "gguf/*", "checkpoint-*/*"]
_OLD_WEIGHTS = "pytorch_model*.bin"
_WITHOUT_WEIGHTS = ("Pooling", "Normalize")

# What transformers and sentence-transformers read to make an encoder and its tokenizer.
_ENCODER_FILES = (
    CONFIG_FILE,
    "sentence_*_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "adapter_*",
    "model*.safetensors",
    "pytorch_model*.bin",
)
_MODULE_FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "*.bin")


def find_folder(model: str | Path) -> Path:
    """The folder of a model, downloaded where it is a Hub name.

    Only configuration, tokenizer and one set of weights are downloaded.

    Raises:
        FileNotFoundError: there is neither a folder nor a Hub model of that name, or the Hub cannot
            be reached and the model was not downloaded before.
    """
    if Path(model).is_dir():
        return Path(model)
    name = str(model)
    missing = (
        f"There is no encoder {name!r}: expected a folder that exists, or the name of a model on "
        "the Hub, such as owner/name."
    )
    is_path = Path(model).exists() or Path(model).is_absolute() or name.startswith(".")
    if is_path or name.count("/") > 1:
        raise FileNotFoundError(missing)
    try:
        folder = Path(
            snapshot_download(name, allow_patterns=_NEEDED_FILES, ignore_patterns=_OTHER_FORMATS)
        )
        old_weights = _lacking_weights(folder)
        if old_weights:
            snapshot_download(name, allow_patterns=old_weights)
    except (HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError) as error:
        raise FileNotFoundError(f"{missing} The Hub's answer: {error}") from error
    return folder


def _lacking_weights(folder: Path) -> list[str]:
    """Patterns of the older weight files, for the folders of modules without newer ones."""
    return [
        f"{path}/{_OLD_WEIGHTS}" if path else _OLD_WEIGHTS
        for path, kind in module_paths(folder).items()
        if kind not in _WITHOUT_WEIGHTS and not any((folder / path).glob("*.safetensors"))
    ]


def module_paths(folder: Path) -> dict[str, str]:
    """Where a model's modules lie, below its folder, and what they are: path -> class.

    A model that is not of sentence-transformers has one, its encoder, in the folder itself.
    """
    file = folder / MODULES_FILE
    if not file.is_file():
        return {"": "Transformer"}
    modules = json.loads(file.read_text(encoding="utf-8"))
    return {module["path"]: module["type"].rpartition(".")[2] for module in modules}


def read_modules_config(folder: Path) -> dict[str, Any]:
    """What a sentence-transformers model says of itself; old ones say nothing."""
    file = folder / MODULES_CONFIG_FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def encoding_files(folder: Path) -> list[Path]:
    """The files of a model that its vectors depend on, beside its contract.

    Not among them are the card, records of training, and older copies of the weights.
    """
    found = {folder / MODULES_FILE, folder / MODULES_CONFIG_FILE}
    for path in module_paths(folder):
        # A module has a folder of its own; the encoder often lies beside card and records.
        patterns = _MODULE_FILES if path else _ENCODER_FILES
        search = (folder / path).rglob if path else folder.glob
        found.update(file for name in patterns for file in search(name))
    newer = {file.parent for file in found if file.suffix == ".safetensors"}
    return sorted(
        file
        for file in found
        if file.is_file() and not (file.suffix == ".bin" and file.parent in newer)
    )
