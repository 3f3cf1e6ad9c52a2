"""Passages of any size as a memory-mapped data set: rows of a file in, columns of strings out.

The rows are read once, checked, and stored as an Arrow file in the cache of `datasets`, so that 8.8
million passages need no more memory than 8.8 thousand, and the next run opens them at once. The
stored file belongs to the files it was read from, by path, size and times.
"""

import array
import errno
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from filelock import FileLock
from tqdm.auto import tqdm

logger = logging.getLogger(__name__)

COLUMNS = ("_id", "title", "text")
Row = tuple[int, str, str, str]
"""Number of its line (or row), id, title, text."""

_SCHEMA = pa.schema([(column, pa.string()) for column in COLUMNS])
_CACHE_FOLDER = "condenser-passages"
_VERSION = "1"  # of the stored files; change it whenever the same rows would be stored otherwise
_BATCH_ROWS, _BATCH_CHARACTERS = 10_000, 16_000_000
_SEARCH_ROWS = 1_000_000


def store_passages(
    rows: Callable[[], Iterator[Row]], *, files: Sequence[Path], where: str
) -> Dataset:
    """Read passages, or open what was stored when the same files were read before.

    Args:
        rows: begins to read the passages; called a second time to say where an id stands twice.
        files: what `rows` reads.
        where: the place that the rows' numbers count in, for errors: a file, or a table's name.

    Returns:
        Columns `_id`, `title`, `text`, all strings, memory-mapped, in the order of the rows.

    Raises:
        ValueError: no row, or an id that stands twice.
        OSError: there is no space left for the stored file.
    """
    stored = _stored_path(files, where)
    if not stored.is_file():
        stored.parent.mkdir(parents=True, exist_ok=True)
        # Of several processes on one machine, one reads and the others wait for it.
        with FileLock(f"{stored}.lock"):
            if not stored.is_file():
                _write(rows, stored, where=where)
    passages = Dataset.from_file(str(stored))
    _warn_of_empty(passages, where=where)
    return passages


def find_missing(ids: Iterable[str], passages: Dataset) -> list[str]:
    """Those of the ids that no passage has, sorted; memory grows with their number only."""
    wanted = pa.array(sorted(set(ids)), type=pa.string())
    found = np.zeros(len(wanted), dtype=bool)
    column = passages.data.column("_id")
    # Many rows at once: each search makes a hash table of the ids first.
    for first in range(0, len(column), _SEARCH_ROWS):
        places = pc.index_in(column.slice(first, _SEARCH_ROWS), value_set=wanted).drop_null()
        found[places.to_numpy()] = True
    return wanted.filter(pa.array(~found)).to_pylist()


def _stored_path(files: Sequence[Path], where: str) -> Path:
    digest = hashlib.sha256(f"{_VERSION}\0{where}".encode())
    for file in files:
        state = file.stat()
        times = (state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
        digest.update(f"\0{file.resolve()}\0{times}".encode())
    return Path(datasets.config.HF_DATASETS_CACHE, _CACHE_FOLDER, f"{digest.hexdigest()}.arrow")


def _write(rows: Callable[[], Iterator[Row]], stored: Path, *, where: str) -> None:
    """Store the rows under a name that only a whole and sound file gets."""
    partial = stored.with_name(f"{stored.name}.partial")  # one writer at a time, by the lock
    hashes = array.array("q")
    try:
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as writer:
            for columns in _batches(rows(), where=where):
                hashes.extend(map(hash, columns[0]))
                writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
        if not hashes:
            raise ValueError(
                f"{where} holds no passage, expected at least one: the file is empty or cut off;"
                " fetch it again"
            )
        _check_unique(rows, hashes, where=where)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(stored)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(
            errno.ENOSPC,
            f"no space left in {stored.parent} for the passages of {where}, which need about as"
            " much as their files unpacked: make room, or set HF_DATASETS_CACHE to another disk",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _batches(rows: Iterator[Row], *, where: str) -> Iterator[list[list[str]]]:
    columns: list[list[str]] = [[], [], []]
    characters = 0
    bar = tqdm(rows, desc=f"reading {Path(where).name}", unit=" passages", delay=2)
    for _, passage_id, title, text in bar:
        columns[0].append(passage_id)
        columns[1].append(title)
        columns[2].append(text)
        characters += len(title) + len(text)
        if len(columns[0]) == _BATCH_ROWS or characters > _BATCH_CHARACTERS:
            yield columns
            columns, characters = [[], [], []], 0
    if columns[0]:
        yield columns


def _check_unique(rows: Callable[[], Iterator[Row]], hashes: array.array, *, where: str) -> None:
    """Check that no id stands twice, with 8 bytes of memory an id."""
    ordered = np.sort(np.frombuffer(hashes, dtype=np.int64))
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if not suspects:
        return
    lines: dict[str, list[int]] = {}
    for number, passage_id, _, _ in rows():
        if hash(passage_id) in suspects:
            lines.setdefault(passage_id, []).append(number)
    repeated = {passage_id: numbers for passage_id, numbers in lines.items() if len(numbers) > 1}
    if repeated:  # two ids of one hash are no fault
        passage_id, numbers = next(iter(repeated.items()))
        raise ValueError(
            f"{where}:{numbers[1]}: id {passage_id!r} stands on line {numbers[0]} too, and"
            f" {len(repeated)} ids stand on several lines; expected unique ids: rename or drop the"
            " others"
        )


def _warn_of_empty(passages: Dataset, *, where: str) -> None:
    """Name passages with neither title nor text; reads only the lengths, not the texts."""
    count, first = 0, None
    for batch in passages.data.to_batches():
        length = pc.add(pc.binary_length(batch["title"]), pc.binary_length(batch["text"]))
        empty = pc.equal(length, 0)
        if pc.any(empty).as_py():
            first = first or batch["_id"].filter(empty)[0].as_py()
            count += pc.sum(empty).as_py()
    if count:
        logger.warning(
            "%s: %d passages have neither title nor text, the first is %r. They are kept, and every"
            " encoder gives them all the same vector.",
            where,
            count,
            first,
        )
