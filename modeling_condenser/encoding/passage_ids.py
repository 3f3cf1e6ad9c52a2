"""Passage ids: millions of strings on disk, read a few at a time, and their sorted order.

passage_ids.arrow  the ids, in the order of the rows
id_order.npy       (N,) int64, each id's place among the sorted ids, which breaks ties
passage_ids.json   the checksums of these two
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from modeling_condenser.runs.whole_files import checksum_file, npy_header, whole_file, write_json

IDS_FILE, ID_ORDER_FILE, IDS_RECORD_FILE = "passage_ids.arrow", "id_order.npy", "passage_ids.json"
_ID_COLUMN = "_id"
_ID_BATCH = 65_536


class PassageIds(Sequence[str]):
    """The ids of N passages, in an Arrow file that is mapped into memory."""

    def __init__(self, file: Path) -> None:
        with pa.memory_map(str(file)) as source:
            column = pa.ipc.open_file(source).read_all().column(_ID_COLUMN)
        self._chunks: list[pa.Array] = column.chunks
        self._starts = np.cumsum([0, *map(len, self._chunks)])  # and N at the end

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return self.take(np.arange(len(self))[row])
        return self.take(np.array([row]))[0]

    def __iter__(self) -> Iterator[str]:
        for chunk in self._chunks:
            yield from chunk.to_pylist()

    def take(self, rows: np.ndarray) -> list[str]:
        """The ids of (k,) rows, in their order; negative rows count from the end.

        Raises:
            IndexError: a row outside of the collection.
        """
        rows = np.asarray(rows, dtype=np.int64)
        outside = (rows < -len(self)) | (rows >= len(self))
        if outside.any():
            raise IndexError(f"row {rows[outside][0]}: expected less than {len(self)}")
        rows = np.where(rows < 0, rows + len(self), rows)
        ids = np.empty(len(rows), dtype=object)
        # Not ChunkedArray.take, which copies the whole column into one chunk first.
        chunks = np.searchsorted(self._starts, rows, side="right") - 1
        for chunk in np.unique(chunks):
            here = chunks == chunk
            places = pa.array(rows[here] - self._starts[chunk])
            ids[here] = self._chunks[chunk].take(places).to_pylist()
        return ids.tolist()


def write_ids(folder: Path, batches: Iterable[pa.Array | pa.ChunkedArray]) -> None:
    """Write the ids, their order and the record of both. Takes some 35 bytes of memory an id.

    Args:
        folder: of the embeddings.
        batches: of strings; N ids together, which are unique.

    Raises:
        ValueError: an id stands twice, or is null.
    """
    schema = pa.schema([(_ID_COLUMN, pa.large_string())])
    with whole_file(folder / IDS_FILE) as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            if batch.null_count:
                raise ValueError(f"{batch.null_count} passages have no id: give each its own.")
            column = pa.chunked_array([batch]) if isinstance(batch, pa.Array) else batch
            table = pa.table([column.cast(pa.large_string())], schema=schema)
            writer.write_table(table, max_chunksize=_ID_BATCH)
    order = _order_of_ids(PassageIds(folder / IDS_FILE))
    with whole_file(folder / ID_ORDER_FILE) as file:
        file.write(npy_header(order.shape, order.dtype))
        file.write(order.data)
    write_json(
        folder / IDS_RECORD_FILE,
        {"rows": len(order), **{n: checksum_file(folder / n) for n in (IDS_FILE, ID_ORDER_FILE)}},
    )


def _order_of_ids(ids: PassageIds) -> np.ndarray:
    """Each id's place among the sorted ids: (N,) int64.

    Arrow compares UTF-8 bytes, whose order is that of code points, as Python's.
    """
    column = pa.chunked_array(ids._chunks, type=pa.large_string())
    rows = pc.sort_indices(column).to_numpy()  # (N,) uint64
    last = None
    for start in range(0, len(rows), _ID_BATCH):
        for one in ids.take(rows[start : start + _ID_BATCH].astype(np.int64)):
            if one == last:
                raise ValueError(
                    f"the passage id {one!r} stands more than once: give each passage its own."
                )
            last = one
    order = np.empty(len(rows), dtype=np.int64)
    order[rows] = np.arange(len(rows))
    return order


def find_ids_damage(folder: Path, n_passages: int) -> str | None:
    """What is wrong with the ids of N passages that should be done; None if nothing is."""
    try:
        record = json.loads((folder / IDS_RECORD_FILE).read_text(encoding="utf-8"))
        if record["rows"] != n_passages:
            return f"{IDS_RECORD_FILE} names {record['rows']} ids instead of {n_passages}"
        for name in (IDS_FILE, ID_ORDER_FILE):
            if checksum_file(folder / name) != record[name]:
                return f"{name} has been changed"
    except (OSError, ValueError, KeyError, TypeError):
        return "the ids are missing or cannot be read"
    return None
