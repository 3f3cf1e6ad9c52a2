"""A model's folder in; which of its files its vectors depend on out."""

import json
from pathlib import Path
from typing import Any

from modeling_condenser.hub.model_folder import CONFIG_FILE, MODULES_FILE, module_paths

MODULES_CONFIG_FILE = "config_sentence_transformers.json"


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
