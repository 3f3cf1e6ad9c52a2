"""Cut text into blocks once, for all processes and nodes: a folder of memory-mapped files.

A folder is found by a hash of its text, tokenizer and settings. Where it is missing, the first
process that comes cuts the text, while the others wait for a lock on a file. They use no collective
operation of torch, whose time limit a long preparation would exceed.
"""

import logging
import multiprocessing
import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, concatenate_datasets, config
from datasets.fingerprint import Hasher

from modeling_condenser.files.models import warn_of_unknown
from modeling_condenser.files.run_folder import atomic_folder, folder_lock, read_json, write_json

from .corpus import file_states_of
from .data import BlockBuilder, build_blocks, fingerprint_blocks, read_text

logger = logging.getLogger(__name__)

_MANY_DOCUMENTS, _MOST_PROCESSES = 50_000, 8
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

    Rows of `as_rows` in memory are cut in memory. For pairs, one of equal documents is kept, and
    one of equal texts. Warnings, also of text that was cut before, say what is left out, and if the
    tokenizer does not know the text.

    Args:
        folder: holds a folder for each text; by default `default_folder`.
        num_proc: processes that cut; by default one, and up to eight for many documents in files,
            where processes are forked.
    """
    if num_proc is None and rows.cache_files and len(rows) >= _MANY_DOCUMENTS and _can_fork():
        num_proc = min(os.cpu_count() or 1, _MOST_PROCESSES)
    if not rows.cache_files:
        blocks, kept, record = _cut(rows, builder, None, num_proc)
        _warn(record, builder)
        return Prepared(blocks if kept is None else blocks.select(kept), record["counts"])
    text = (rows._fingerprint, file_states_of(rows))
    key = Hasher.hash((*text, builder.fingerprint, builder.for_pairs))
    place = Path(folder or default_folder(), key)
    if not (place / _RECORD).is_file():  # else the folder may be one that cannot be written
        with folder_lock(place):
            if not (place / _RECORD).is_file():
                with atomic_folder(place) as new:
                    _, kept, record = _cut(rows, builder, str(new / _BLOCKS), num_proc)
                    if kept is not None:
                        np.save(new / _KEPT, kept)
                    write_json(new / _RECORD, record)
    parts = [Dataset.from_file(str(file)) for file in sorted(place.glob("*.arrow"))]
    blocks = concatenate_datasets(parts)
    if (place / _KEPT).is_file():
        blocks = blocks.select(np.load(place / _KEPT, mmap_mode="r"))
    record = read_json(place / _RECORD, {})
    _warn(record, builder)
    return Prepared(blocks, record["counts"], place)


def _can_fork() -> bool:
    """Whether new processes are forks, which do not run the script again, and are allowed."""
    default, *_ = multiprocessing.get_all_start_methods()
    method = multiprocessing.get_start_method(allow_none=True) or default
    return method == "fork" and not multiprocessing.current_process().daemon


def _warn(record: dict[str, Any], builder: BlockBuilder) -> None:
    """Log what is left out, and whether the tokenizer does not know the text."""
    warn_of_unknown(builder.tokenizer, **record["tokens"])
    for number, of, what in record["left_out"]:
        logger.warning("%d of %d %s and are left out.", number, of, what)


def _cut(
    rows: Dataset, builder: BlockBuilder, file: str | None, num_proc: int | None
) -> tuple[Dataset, np.ndarray | None, dict[str, Any]]:
    """All blocks, the numbers of those that are kept (None for all), and counts and warnings."""
    left_out: list[tuple[int, int, str]] = []
    if builder.for_pairs and (is_copy := find_copies(rows, "text")).any():
        left_out.append((int(is_copy.sum()), len(rows), "documents are copies"))
        rows = rows.select(np.flatnonzero(~is_copy))
    blocks = build_blocks(rows, builder, file=file, num_proc=num_proc)
    n_unknown = n_tokens = 0
    for chunk in blocks.data.column("input_ids").chunks:
        tokens = chunk.flatten().to_numpy()
        n_unknown += int(np.sum(tokens == builder.tokenizer.unk_token_id))
        n_tokens += len(tokens)
    counts: dict[str, Any] = {"n_documents": len(rows)}
    chosen, kept = blocks, None
    if builder.for_pairs:
        n_left_out = len(rows) - len(blocks.unique("document"))
        counts["n_documents_left_out"] = n_left_out
        if n_left_out:
            left_out.append((n_left_out, len(rows), "documents cannot be cut in two"))
        if (is_copy := find_copies(blocks, "input_ids")).any():
            left_out.append((int(is_copy.sum()), len(blocks), "texts are copies"))
            kept = np.flatnonzero(~is_copy)
            chosen = blocks.select(kept)
    counts |= {"n_blocks": len(chosen), "blocks_sha256": fingerprint_blocks(chosen)}
    tokens = {"n_unknown": n_unknown, "n_tokens": n_tokens, "n_texts": len(blocks)}
    return blocks, kept, {"counts": counts, "tokens": tokens, "left_out": left_out}


def find_copies(rows: Dataset, column: str) -> np.ndarray:
    """Which rows, (N,) bool, repeat an earlier one: in a contrast, a text would be its negative.

    Blanks around a text do not count. Blank texts are no copies, and give no blocks.
    """
    hashes = array("q")
    for batch in rows.select_columns(column).with_format("arrow").iter(batch_size=1000):
        values = batch[column].combine_chunks()
        contents: Iterable[Any] = (read_text(value).strip() for value in values.to_pylist())
        if column != "text":
            ids, starts = values.flatten().to_numpy(), values.value_lengths().to_numpy().cumsum()
            contents = (part.tobytes() for part in np.split(ids, starts[:-1]))
        hashes.extend(hash(each or number) for number, each in enumerate(contents, len(hashes)))
    return pd.Series(hashes).duplicated().to_numpy()
