"""Training examples on disk: examples in, a memory-mapped data set out, however many there are.

They are read once, checked, and stored as an Arrow file in the cache of `datasets`; the next run of
the same data opens it at once, and so do the other processes of this run.
"""

import errno
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Dataset
from filelock import FileLock
from tqdm.auto import tqdm

from modeling_condenser.runs.whole_files import write_json

logger = logging.getLogger(__name__)

Example = dict[str, Any]
ROW_NUMBER = "row_number"  # of an example among all of its data, before a subset is taken

_CACHE_FOLDER = "condenser-training"
_VERSION = "1"  # of the stored files; change it whenever the same data would be stored otherwise
_BATCH_ROWS, _BATCH_VALUES = 10_000, 16_000_000  # values: characters, or numbers of lists


@dataclass(frozen=True)
class StoredExamples:
    """Examples, and what was found while reading them.

    Attributes:
        table: the examples, memory-mapped; N rows.
        left_out: what was left out -> how often.
        n_negatives: least and greatest number of negatives of a row; (0, 0) where there are none.
    """

    table: Dataset
    left_out: dict[str, int]
    n_negatives: tuple[int, int]


def store_examples(
    examples: Callable[[Counter[str]], Iterable[Example]],
    schema: pa.Schema,
    *,
    identity: Sequence[str],
    what: str,
) -> StoredExamples:
    """Store examples, or open what was stored when the same data was read before.

    Args:
        examples: begins to read them; counts what it leaves out in the counter that it is given.
        schema: columns and types of an example. A column `ROW_NUMBER` is filled in here; of a list
            column of negatives (`negatives` or `negative_rows`) the lengths are noted.
        identity: what the examples depend on: states of files, settings.
        what: the data, in words, for bar and errors.

    Raises:
        ValueError: no example, or what `examples` raises.
        OSError: there is no space left.
    """
    digest = hashlib.sha256("\0".join([_VERSION, str(schema), *identity]).encode()).hexdigest()
    stored = Path(datasets.config.HF_DATASETS_CACHE, _CACHE_FOLDER, f"{digest}.arrow")
    notes = stored.with_suffix(".json")
    stored.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{stored}.lock"):
        if not stored.is_file():
            _write(examples, schema, stored, notes, what=what)
    noted = json.loads(notes.read_text())
    table = Dataset.from_file(str(stored))
    if noted["left_out"]:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(noted["left_out"].items()))
        logger.warning("%s: left out %s; %d examples remain.", what, counts, len(table))
    return StoredExamples(table, noted["left_out"], tuple(noted["n_negatives"]))


def _write(
    examples: Callable[[Counter[str]], Iterable[Example]],
    schema: pa.Schema,
    stored: Path,
    notes: Path,
    *,
    what: str,
) -> None:
    """Store the examples under a name that only a whole file gets."""
    partial = stored.with_name(f"{stored.name}.partial")  # one writer at a time, by the lock
    left_out: Counter[str] = Counter()
    lengths: set[int] = set()
    n_rows = 0
    try:
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in _batches(examples(left_out), what=what):
                for number, example in enumerate(batch, start=n_rows):
                    example[ROW_NUMBER] = number
                writer.write_batch(_to_arrow(batch, schema, what=what))
                n_rows += len(batch)
                lengths |= {_n_negatives(example) for example in batch}
        if n_rows == 0:
            counts = ", ".join(f"{count} {kind}" for kind, count in left_out.items() if count)
            raise ValueError(
                f"{what} gives no training example{f' (left out: {counts})' if counts else ''}: "
                "expected at least one; is it the right file?"
            )
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        found = {kind: count for kind, count in left_out.items() if count}
        write_json(notes, {"left_out": found, "n_negatives": [min(lengths), max(lengths)]})
        partial.replace(stored)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(
            errno.ENOSPC,
            f"no space left in {stored.parent} for the training examples of {what}, which need "
            "about as much as the data: make room, or set HF_DATASETS_CACHE to another disk",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _batches(examples: Iterable[Example], *, what: str) -> Iterator[list[Example]]:
    batch: list[Example] = []
    n_values = 0
    for example in tqdm(examples, desc=f"reading {Path(what).name}", unit=" examples", delay=2):
        batch.append(example)
        n_values += sum(_size(value) for value in example.values())
        if len(batch) == _BATCH_ROWS or n_values > _BATCH_VALUES:
            yield batch
            batch, n_values = [], 0
    if batch:
        yield batch


def _to_arrow(batch: list[Example], schema: pa.Schema, *, what: str) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_pylist(batch, schema=schema)
    except UnicodeEncodeError as error:  # JSON can spell half of a character (\ud83d)
        raise ValueError(
            f"{what}: the text {error.object[:60]!r} holds half of a surrogate pair, expected "
            "whole characters: mend it"
        ) from error


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return sum(map(_size, value)) if isinstance(value, list) else 1


def _n_negatives(example: Example) -> int:
    return len(example.get("negatives") or example.get("negative_rows") or ())
