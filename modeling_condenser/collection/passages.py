"""Stores the passages of a collection as a memory-mapped data set.

The passages are read and checked once, and written as an Arrow file into the cache of `datasets`.
So 8.8 million passages need no more memory than 8.8 thousand, and the next run opens them at once.
The stored file is used again as long as the source files keep their paths, sizes and times.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
from datasets import Dataset
from filelock import FileLock
from tqdm.auto import tqdm

from modeling_condenser.runs.whole_files import whole_file

COLUMNS = ("_id", "title", "text")
Row = tuple[str, str, str]
"""Id, title, text."""

_SCHEMA = pa.schema([(column, pa.string()) for column in COLUMNS])
_VERSION = "2"  # of the stored files; change it when the same source would be stored differently
_BATCH_ROWS = 1000  # of an Arrow batch, as in `datasets`


def store_passages(rows: Iterator[Row], *, files: Sequence[Path], name: str | Path) -> Dataset:
    """Read passages, or open those stored when the same files were read before.

    Args:
        rows: a generator of the passages; it is not started if they are already stored.
        files: that the generator reads.
        name: of the source, for errors.

    Returns:
        Columns `_id`, `title`, `text`, all strings, memory-mapped, in the order of the rows.

    Raises:
        ValueError: there is no passage, or two have the same id.
    """
    stored = _stored_path(files, name)
    if not stored.is_file():
        stored.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{stored}.lock"):  # other processes of the same run wait
            if not stored.is_file():
                _write(rows, stored, name=name)
    return Dataset.from_file(str(stored))


def _stored_path(files: Sequence[Path], name: str | Path) -> Path:
    key = [_VERSION, str(name)]
    for file in files:
        state = file.stat()
        key += [str(file.resolve()), str(state.st_size), str(state.st_mtime_ns)]
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()
    return Path(datasets.config.HF_DATASETS_CACHE, "condenser-passages", f"{digest}.arrow")


def _write(rows: Iterator[Row], stored: Path, *, name: str | Path) -> None:
    bar = tqdm(rows, desc=f"reading {Path(name).name}", unit=" passages", delay=2)
    passages = iter(bar)
    with whole_file(stored) as file:
        with pa.ipc.new_stream(file, _SCHEMA) as writer:
            while batch := list(islice(passages, _BATCH_ROWS)):
                columns = [pa.array(column, pa.string()) for column in zip(*batch, strict=True)]
                writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
        file.flush()
        with pa.memory_map(file.name) as written:
            _check_ids(pa.ipc.open_stream(written).read_all()["_id"], name=name)


def _check_ids(ids: pa.ChunkedArray, *, name: str | Path) -> None:
    """Check that ids are unique, with 16 bytes of memory per id."""
    if not len(ids):
        raise ValueError(f"{name} holds no passage. Download it again.")
    hashes = np.empty(len(ids), dtype=np.int64)
    first = 0
    for chunk in ids.chunks:
        hashes[first : first + len(chunk)] = np.fromiter(map(hash, chunk.to_pylist()), np.int64)
        first += len(chunk)
    ordered = np.sort(hashes)
    shared = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if len(shared):  # of equal ids, or by chance
        counts = Counter(ids.take(pa.array(np.flatnonzero(np.isin(hashes, shared)))).to_pylist())
        repeated = [passage_id for passage_id, count in counts.items() if count > 1]
        if repeated:
            raise ValueError(
                f"{name}: {len(repeated)} ids occur more than once, such as"
                f" {', '.join(map(repr, repeated[:3]))}; ids must be unique. Remove the others."
            )
