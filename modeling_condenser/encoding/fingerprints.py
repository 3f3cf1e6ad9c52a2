"""Fingerprints of models, so that stored vectors and runs are only reused for the same model.

A model keeps its fingerprint in another folder, with another card, and when another version of a
library saves it again.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from modeling_condenser.hub.contract import CONTRACT_FILE, EncodingContract
from modeling_condenser.hub.model_folder import MODULES_FILE, module_paths

Dtype = Literal["float32", "bfloat16"]
"""Of an encoder's weights. Vectors of the two agree to about three digits."""

MODULES_CONFIG_FILE = "config_sentence_transformers.json"
_ENCODER_FILES = tuple(
    "config.json sentence_*_config.json tokenizer*.json special_tokens_map.json added_tokens.json "
    "vocab.* merges.txt *.model adapter_* model*.safetensors pytorch_model*.bin".split()
)
_MODULE_FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "*.bin")
# Fields that do not change a vector.
_VERSION_FIELDS = {"__version__", "transformers_version", "_name_or_path", "name_or_path"}


def fingerprint_files(files: Iterable[Path]) -> str:
    """SHA-256 over the contents of files, in their order."""
    return hashlib.sha256(b"".join(map(_digest, files))).hexdigest()


def fingerprint_retriever(
    folder: Path, contract: EncodingContract, *, dtype: Dtype = "float32"
) -> str:
    """SHA-256 over everything that a retriever's vectors depend on."""
    digest = hashlib.sha256(json.dumps(asdict(contract), sort_keys=True).encode())
    if dtype != "float32":  # float32 fingerprints are older than this argument
        digest.update(dtype.encode())
    files = encoding_files(folder)
    if (folder / CONTRACT_FILE).is_file():  # the contract replaces the description of modules
        files = [file for file in files if file.name not in (MODULES_FILE, MODULES_CONFIG_FILE)]
    for file in files:
        digest.update(file.relative_to(folder).as_posix().encode())
        digest.update(_digest_json(file) if file.suffix == ".json" else _digest(file))
    return digest.hexdigest()


def encoding_files(folder: Path) -> list[Path]:
    """The files of a model that its vectors depend on, without cards, records and old weights."""
    found = {folder / MODULES_FILE, folder / MODULES_CONFIG_FILE}
    for path in module_paths(folder):
        # Other modules have a folder of their own; the encoder shares one with cards and records.
        patterns = _MODULE_FILES if path else _ENCODER_FILES
        search = (folder / path).rglob if path else folder.glob
        found.update(file for name in patterns for file in search(name))
    newer = {file.parent for file in found if file.suffix == ".safetensors"}
    return sorted(
        file
        for file in found
        if file.is_file() and not (file.suffix == ".bin" and file.parent in newer)
    )


def read_modules_config(folder: Path) -> dict[str, Any]:
    """A sentence-transformers model's own settings; empty for models saved by old versions."""
    file = folder / MODULES_CONFIG_FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _digest(file: Path) -> bytes:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _digest_json(file: Path) -> bytes:
    content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if key not in _VERSION_FIELDS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
