"""Stores the passages of a collection as a memory-mapped data set.

Passages are read and checked once and written as an Arrow file into the cache of `datasets`, so
that memory does not grow with their number and later runs open them at once. The stored file is
used as long as the source files keep their paths, sizes and modification times.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets import Dataset
from filelock import FileLock
from tqdm.auto import tqdm

from modeling_condenser.runs.whole_files import whole_file

COLUMNS = ("_id", "title", "text")
Row = tuple[Any, Any, Any]
"""Id, title, text; checked to be strings when they are stored."""

_SCHEMA = pa.schema([(column, pa.string()) for column in COLUMNS])
_VERSION = "2"  # of the stored files; change it when the same source would be stored differently
_BATCH_ROWS = 1000


def store_passages(rows: Iterator[Row], *, files: Sequence[Path], name: str | Path) -> Dataset:
    """Read passages, or open those that were stored when the same files were read before.

    Args:
        rows: generates the passages; not started if they are already stored.
        files: that the passages are read from.
        name: of the source, for errors.

    Returns:
        Columns `_id`, `title`, `text`, all strings, memory-mapped, in the order of the rows.

    Raises:
        ValueError: there is no passage, or two have the same id.
    """
    key = [_VERSION, str(name)]
    for file in files:
        state = file.stat()
        key += [str(file.resolve()), str(state.st_size), str(state.st_mtime_ns)]
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()
    stored = Path(datasets.config.HF_DATASETS_CACHE, "condenser-passages", f"{digest}.arrow")
    if not stored.is_file():
        stored.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{stored}.lock"):  # other processes of the same run wait
            if not stored.is_file():
                _write(rows, stored, name=name)
    return Dataset.from_file(str(stored))


def _write(rows: Iterator[Row], stored: Path, *, name: str | Path) -> None:
    passages = iter(tqdm(rows, desc=f"reading {Path(name).name}", unit=" passages", delay=2))
    with whole_file(stored) as file:
        with pa.ipc.new_stream(file, _SCHEMA) as writer:
            while batch := list(islice(passages, _BATCH_ROWS)):
                writer.write_batch(_to_arrow(batch, name))
        file.flush()
        with pa.memory_map(file.name) as written:
            _check_ids(pa.ipc.open_stream(written).read_all()["_id"], name=name)


def _to_arrow(rows: Sequence[Row], name: str | Path) -> pa.RecordBatch:
    for row in rows:
        if not all(isinstance(value, str) for value in row):
            raise ValueError(f"{name}: {row!r:.100} is no passage, expected id, title and text.")
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return pa.record_batch(columns, schema=_SCHEMA)


def _check_ids(ids: pa.ChunkedArray, *, name: str | Path) -> None:
    """Check that ids are unique, with 16 bytes of memory per id."""
    if not len(ids):
        raise ValueError(f"{name} holds no passage. Download it again.")
    every = (passage_id for chunk in ids.chunks for passage_id in chunk.to_pylist())
    hashes = np.fromiter(map(hash, every), np.int64, count=len(ids))
    hashes.sort()
    if (hashes[1:] == hashes[:-1]).any():  # equal ids, or by chance equal hashes
        counts = Counter(ids.to_pylist())
        repeated = [passage_id for passage_id, count in counts.items() if count > 1]
        if repeated:
            raise ValueError(
                f"{name}: {len(repeated)} ids occur more than once, such as"
                f" {', '.join(map(repr, repeated[:3]))}; ids must be unique."
            )
