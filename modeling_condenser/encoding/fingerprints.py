"""Fingerprints of models, so that stored vectors and runs are only reused for the same model.

A model keeps its fingerprint in another folder, with another card, and when another version of a
library saves it again.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from modeling_condenser.hub.contract import CONTRACT_FILE, EncodingContract
from modeling_condenser.hub.model_folder import MODULES_FILE, module_paths
from modeling_condenser.runs.whole_files import checksum_file

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


def fingerprint_retriever(
    folder: Path,
    contract: EncodingContract,
    *,
    dtype: Dtype = "float32",
    truncate_dim: int | None = None,
) -> str:
    """SHA-256 over everything that a retriever's vectors depend on."""
    digest = hashlib.sha256(json.dumps(asdict(contract), sort_keys=True).encode())
    if dtype != "float32":  # float32 fingerprints are older than this argument
        digest.update(dtype.encode())
    if truncate_dim is not None:
        digest.update(f"truncate_dim={truncate_dim}".encode())
    for file in encoding_files(folder):
        digest.update(file.relative_to(folder).as_posix().encode())
        digest.update(bytes.fromhex(_checksum(file)))
    return digest.hexdigest()


def encoding_files(folder: Path) -> list[Path]:
    """The files of a model that its vectors depend on, without cards, records and old weights."""
    found = set()
    if not (folder / CONTRACT_FILE).is_file():  # which replaces the description of modules
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


def _checksum(file: Path) -> str:
    """SHA-256 of a file's content, of JSON without the versions of libraries."""
    if file.suffix != ".json":
        return checksum_file(file)
    content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if key not in _VERSION_FIELDS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
