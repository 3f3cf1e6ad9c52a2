"""What a stored result belongs to: files in, a fingerprint of their content out.

A stored index or measure is only read again for the model and the collection that it was made from,
not for others that happen to have the same name.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from modeling_condenser.publishing.provenance import PROVENANCE_FILE

# The rest of a repository (card, provenance, script) does not change its vectors.
_ENCODING_SUFFIXES = (".json", ".model", ".safetensors", ".txt")


def fingerprint_files(files: Iterable[Path]) -> str:
    """Identify the content of files, wherever they lie; the order counts."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def retriever_files(folder: Path) -> list[Path]:
    """The files of a retriever that its vectors depend on."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in _ENCODING_SUFFIXES and file.name != PROVENANCE_FILE
    )
