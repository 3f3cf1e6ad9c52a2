"""Cut text into blocks once, for all processes and nodes: a folder of memory-mapped files.

A folder is found by a hash of its text, tokenizer and settings. Where it is missing, the first
process that comes cuts the text, while the others wait for a lock on a file. They use no collective
operation of torch, whose time limit a long preparation would exceed.
"""

import logging
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, concatenate_datasets, config
from datasets.fingerprint import Hasher
from filelock import FileLock, Timeout

from modeling_condenser.files.run_folder import atomic_folder, read_json, write_json

from .corpus import file_states_of
from .data import BlockBuilder, build_blocks, fingerprint_blocks
from .survey import survey, with_two_parts

logger = logging.getLogger(__name__)

_BLOCKS, _RECORD, _LENGTHS, _KEPT = "blocks.arrow", "record.json", "lengths.npy", "kept.npy"


@dataclass(frozen=True)
class Prepared:
    """Text that was cut into blocks, or into texts of which pairs are made.

    Attributes:
        blocks: rows of `BlockBuilder`.
        lengths: tokens of all N rows that were cut, (N,) int64, also of those left out.
        n_unknown: tokens among them that the tokenizer does not know.
        counts: for the run's record: documents and blocks, what was left out, `blocks_sha256`.
        folder: that holds all of this; None if it is in memory.
    """

    blocks: Dataset
    lengths: np.ndarray
    n_unknown: int
    counts: dict[str, Any]
    folder: Path | None = None


def default_folder() -> Path:
    """Where blocks are stored by default: in the cache of `datasets`."""
    return Path(config.HF_DATASETS_CACHE, "condenser")


def prepare(
    rows: Dataset,
    builder: BlockBuilder,
    *,
    for_pairs: bool = False,
    folder: str | Path | None = None,
    num_proc: int | None = None,
) -> Prepared:
    """Cut text into blocks, or open what was cut of this text before.

    Args:
        rows: of `as_rows`; those in memory are cut in memory.
        builder: cuts them.
        for_pairs: keep one of equal documents and texts, and texts of two parts or more.
        folder: holds a folder for each text; several nodes need one that all of them see. By
            default `default_folder`.
        num_proc: processes that cut.

    Raises:
        ValueError: there is no text, or none of which a pair can be made.
    """
    if not rows.cache_files:
        blocks, n_unknown, lengths, kept, counts = _cut(rows, builder, for_pairs, None, num_proc)
        blocks = blocks if kept is None else blocks.select(kept)
        return Prepared(blocks, lengths, n_unknown, counts)
    key = Hasher.hash((rows._fingerprint, file_states_of(rows), builder.fingerprint, for_pairs))
    place = Path(folder or default_folder(), key)
    if (place / _RECORD).is_file():  # also where the folder cannot be written
        return _open(place)
    with one_process(place, "cuts the text"):
        if not (place / _RECORD).is_file():
            with atomic_folder(place) as new:
                file = str(new / _BLOCKS)
                _, n_unknown, lengths, kept, counts = _cut(rows, builder, for_pairs, file, num_proc)
                np.save(new / _LENGTHS, lengths)
                if kept is not None:
                    np.save(new / _KEPT, kept)
                write_json(new / _RECORD, {"n_unknown": n_unknown, "counts": counts})
    return _open(place)


@contextmanager
def one_process(place: Path, what: str) -> Iterator[None]:
    """Let one process after the other run this block, on all machines that see the place."""
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{place}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        logger.warning("Waiting for another process, which %s (%s).", what, place)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _cut(
    rows: Dataset, builder: BlockBuilder, for_pairs: bool, file: str | None, num_proc: int | None
) -> tuple[Dataset, int, np.ndarray, np.ndarray | None, dict[str, Any]]:
    """All blocks, unknown tokens, lengths, the rows that are kept (None for all), and counts."""
    if for_pairs:
        is_copy = find_copies(rows, "text")
        rows = rows.select(np.flatnonzero(~is_copy)) if is_copy.any() else rows
    blocks = build_blocks(rows, builder, file=file, num_proc=num_proc)
    counted = survey(blocks, builder.tokenizer)
    kept: np.ndarray | None = None
    left_out: dict[str, int] = {}
    if for_pairs:
        is_kept, left_out = with_two_parts(blocks, counted, len(rows))
        is_kept[is_kept] = ~find_copies(blocks.select(np.flatnonzero(is_kept)), "input_ids")
        kept = None if is_kept.all() else np.flatnonzero(is_kept)
    chosen = blocks if kept is None else blocks.select(kept)
    counts: dict[str, Any] = {"n_documents": len(rows), "n_blocks": len(chosen), **left_out}
    counts["blocks_sha256"] = fingerprint_blocks(chosen)
    return blocks, counted.n_unknown, counted.lengths, kept, counts


def _open(place: Path) -> Prepared:
    parts = [Dataset.from_file(str(file)) for file in sorted(place.glob("*.arrow"))]
    blocks = concatenate_datasets(parts)
    if (place / _KEPT).is_file():
        blocks = blocks.select(np.load(place / _KEPT, mmap_mode="r"))
    lengths = np.load(place / _LENGTHS, mmap_mode="r")
    return Prepared(blocks, lengths, **read_json(place / _RECORD, {}), folder=place)


def find_copies(rows: Dataset, column: str) -> np.ndarray:
    """Which rows, (N,) bool, repeat an earlier one: in a contrast, a text would be its negative.

    Blanks around a text do not count. Blank texts are no copies, and give no blocks.
    """
    hashes = array("q")
    for batch in rows.select_columns(column).with_format("arrow").iter(batch_size=1000):
        for number, value in enumerate(batch[column].to_pylist(), start=len(hashes)):
            content = (value or "").strip() if column == "text" else tuple(value)
            hashes.append(hash(content or number))
    is_copy = pd.Series(hashes).duplicated().to_numpy()
    if is_copy.any():
        what = "documents" if column == "text" else "passages"
        logger.warning("%d of %d %s are copies and are left out.", is_copy.sum(), len(rows), what)
    return is_copy
