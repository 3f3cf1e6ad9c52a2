"""What a stored result belongs to: files in, a fingerprint of their content out.

A stored index or measure is only read again for the model and the collection that it was made from,
not for others that happen to have the same name.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from modeling_condenser.repository.contract import CONTRACT_FILE, EncodingContract

from .model_files import MODULES_CONFIG_FILE, MODULES_FILE, encoding_files
from .precision import FLOAT32, Dtype

# Who saved a file, and where from, does not change a vector.
_VERSION_FIELDS = {"__version__", "transformers_version", "_name_or_path", "name_or_path"}


def fingerprint_files(files: Iterable[Path]) -> str:
    """Identify the content of files, wherever they lie; the order counts."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(_digest(file))
    return digest.hexdigest()


def fingerprint_retriever(
    folder: Path, contract: EncodingContract, *, dtype: Dtype = FLOAT32
) -> str:
    """Identify how a retriever encodes: weights, tokenizer, modules, contract and precision.

    The same model gives the same fingerprint from another path, with another card, or saved by
    another version of the libraries.

    Args:
        folder: of the model.
        contract: as it is used, with what overrides the folder's own.
        dtype: of the weights.
    """
    digest = hashlib.sha256(json.dumps(asdict(contract), sort_keys=True).encode())
    if dtype != FLOAT32:  # whose fingerprints are older than the choice
        digest.update(dtype.encode())
    for file in retriever_files(folder):
        digest.update(file.relative_to(folder).as_posix().encode())
        digest.update(_digest_json(file) if file.suffix == ".json" else _digest(file))
    return digest.hexdigest()


def retriever_files(folder: Path) -> list[Path]:
    """The files of a retriever that its vectors depend on, beside its contract."""
    files = encoding_files(folder)
    if (folder / CONTRACT_FILE).is_file():  # which then says what the modules are
        return [file for file in files if file.name not in (MODULES_FILE, MODULES_CONFIG_FILE)]
    return files


def _digest(file: Path) -> bytes:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _digest_json(file: Path) -> bytes:
    content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if key not in _VERSION_FIELDS}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
