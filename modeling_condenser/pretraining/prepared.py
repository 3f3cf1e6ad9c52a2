"""Cut text into blocks once, for all processes and nodes: a folder of memory-mapped files.

A folder is found by a hash of its text, tokenizer and settings. Where it is missing, the first
process that comes cuts the text, while the others wait for a lock on a file. They use no collective
operation of torch, whose time limit a long preparation would exceed.
"""

import logging
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, concatenate_datasets, config
from datasets.fingerprint import Hasher
from filelock import FileLock

from modeling_condenser.files.models import warn_of_unknown
from modeling_condenser.files.run_folder import atomic_folder, read_json, write_json

from .corpus import file_states_of
from .data import BlockBuilder, build_blocks, fingerprint_blocks, read_text

logger = logging.getLogger(__name__)

_BLOCKS, _RECORD, _KEPT = "blocks.arrow", "record.json", "kept.npy"


@dataclass(frozen=True)
class Prepared:
    """Text that was cut into blocks, or into texts of which pairs are made.

    Attributes:
        blocks: rows of `BlockBuilder`.
        counts: for the run's record: documents and blocks, what was left out, `blocks_sha256`.
        folder: that holds all of this; None if it is in memory.
    """

    blocks: Dataset
    counts: dict[str, Any]
    folder: Path | None = None


def default_folder() -> Path:
    """Where blocks are stored by default: in the cache of `datasets`."""
    return Path(config.HF_DATASETS_CACHE, "condenser")


def prepare(
    rows: Dataset,
    builder: BlockBuilder,
    *,
    folder: str | Path | None = None,
    num_proc: int | None = None,
) -> Prepared:
    """Cut text into blocks, or open what was cut of this text before.

    For pairs, one of equal documents is kept, and one of equal texts. When text is cut, a warning
    says if the tokenizer does not know it.

    Args:
        rows: of `as_rows`; those in memory are cut in memory.
        builder: cuts them.
        folder: holds a folder for each text; several nodes need one that all of them see. By
            default `default_folder`.
        num_proc: processes that cut.

    Raises:
        ValueError: there is no text, or none of which a pair can be made.
    """
    if not rows.cache_files:
        blocks, kept, counts = _cut(rows, builder, None, num_proc)
        return Prepared(blocks if kept is None else blocks.select(kept), counts)
    text = (rows._fingerprint, file_states_of(rows))
    key = Hasher.hash((*text, builder.fingerprint, builder.for_pairs))
    place = Path(folder or default_folder(), key)
    if not (place / _RECORD).is_file():  # else the folder may be one that cannot be written
        with lock(place):
            if not (place / _RECORD).is_file():
                with atomic_folder(place) as new:
                    _, kept, counts = _cut(rows, builder, str(new / _BLOCKS), num_proc)
                    if kept is not None:
                        np.save(new / _KEPT, kept)
                    write_json(new / _RECORD, {"counts": counts})
    parts = [Dataset.from_file(str(file)) for file in sorted(place.glob("*.arrow"))]
    blocks = concatenate_datasets(parts)
    if (place / _KEPT).is_file():
        blocks = blocks.select(np.load(place / _KEPT, mmap_mode="r"))
    return Prepared(blocks, read_json(place / _RECORD, {})["counts"], place)


def lock(place: Path) -> FileLock:
    """A lock for one process at a time, on all machines that see the place."""
    place.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(f"{place}.lock")


def _cut(
    rows: Dataset, builder: BlockBuilder, file: str | None, num_proc: int | None
) -> tuple[Dataset, np.ndarray | None, dict[str, Any]]:
    """All blocks, the numbers of those that are kept (None for all), and counts."""
    if builder.for_pairs and (is_copy := find_copies(rows, "text")).any():
        rows = rows.select(np.flatnonzero(~is_copy))
    blocks = build_blocks(rows, builder, file=file, num_proc=num_proc)
    n_unknown = n_tokens = 0
    for chunk in blocks.data.column("input_ids").chunks:
        tokens = chunk.flatten().to_numpy()
        n_unknown += int(np.sum(tokens == builder.tokenizer.unk_token_id))
        n_tokens += len(tokens)
    warn_of_unknown(builder.tokenizer, n_unknown=n_unknown, n_tokens=n_tokens, n_texts=len(blocks))
    counts: dict[str, Any] = {"n_documents": len(rows)}
    chosen, kept = blocks, None
    if builder.for_pairs:
        n_left_out = len(rows) - len(blocks.unique("document"))
        counts["n_documents_left_out"] = n_left_out
        if n_left_out:
            logger.warning(
                "%d of %d documents cannot be cut in two and are left out.", n_left_out, len(rows)
            )
        if (is_copy := find_copies(blocks, "input_ids")).any():
            kept = np.flatnonzero(~is_copy)
            chosen = blocks.select(kept)
    counts |= {"n_blocks": len(chosen), "blocks_sha256": fingerprint_blocks(chosen)}
    return blocks, kept, counts


def find_copies(rows: Dataset, column: str) -> np.ndarray:
    """Which rows, (N,) bool, repeat an earlier one: in a contrast, a text would be its negative.

    Blanks around a text do not count. Blank texts are no copies, and give no blocks.
    """
    hashes = array("q")
    for batch in rows.select_columns(column).with_format("arrow").iter(batch_size=1000):
        for number, value in enumerate(batch[column].to_pylist(), start=len(hashes)):
            content = read_text(value).strip() if column == "text" else tuple(value)
            hashes.append(hash(content or number))
    is_copy = pd.Series(hashes).duplicated().to_numpy()
    if is_copy.any():
        what = "documents" if column == "text" else "texts"
        logger.warning("%d of %d %s are copies and are left out.", is_copy.sum(), len(rows), what)
    return is_copy
