"""Indices and pages that are built once, in a folder that says what they were made from."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import faiss

from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.runs.run_folder import whole_folder
from modeling_condenser.runs.whole_files import write_json

INDEX_FILE, IDENTITY_FILE = "index.faiss", "index.json"


def build_once(file: Path, identity: Mapping[str, object], build: Callable[[Path], object]) -> None:
    """Build something, unless its folder holds one of the same identity, as `file` in it says.

    Args:
        file: in the folder of what is built, for the identity.
        identity: everything that it depends on.
        build: writes it into the folder that it is given.
    """
    folder = file.parent
    if not folder.exists() or not any(folder.iterdir()):
        with whole_folder(folder) as partial:
            build(partial)
            write_json(partial / file.name, identity)
    stored = json.loads(file.read_text()) if file.is_file() else {}
    if changed := [name for name, value in identity.items() if stored.get(name) != value]:
        raise ValueError(
            f"{folder} holds something else, made with another {', '.join(changed)}: name another"
            " folder, or remove this one to build it again."
        )


def open_index(
    embeddings: Embeddings,
    folder: Path,
    make: Callable[[], Any],
    *,
    is_binary: bool = False,
    **settings: object,
) -> Any:
    """Open the faiss index of a folder, mapped into memory; `make` makes it the first time.

    Its rows are those of the embeddings, and it depends on `settings` too.
    """
    write: Any = faiss.write_index_binary if is_binary else faiss.write_index
    read: Any = faiss.read_index_binary if is_binary else faiss.read_index
    identity = {**settings, "retriever": embeddings.retriever, "passages": embeddings.passages}
    build_once(
        folder / IDENTITY_FILE, identity, lambda partial: write(make(), str(partial / INDEX_FILE))
    )
    return read(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP_IFC)
