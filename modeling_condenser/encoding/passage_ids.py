"""Passage ids on disk: millions of strings, of which a few are read at a time, and their order.

passage_ids.arrow  the ids, in the order of the rows
id_order.npy       (N,) int64, the rank of each id among the sorted ids, which breaks ties
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from modeling_condenser.runs.whole_files import whole_file

IDS_FILE, ID_ORDER_FILE = "passage_ids.arrow", "id_order.npy"
_COLUMN = "_id"
_BATCH = 65_536


class PassageIds(Sequence[str]):
    """The ids of N passages, in an Arrow file that is mapped into memory."""

    def __init__(self, file: Path) -> None:
        with pa.memory_map(str(file)) as source:
            self.column: pa.ChunkedArray = pa.ipc.open_file(source).read_all().column(_COLUMN)
        self._starts = np.cumsum([0, *map(len, self.column.chunks)])  # ends with N

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return self.take(np.arange(len(self))[row])
        return self.take(np.array([row]))[0]

    def __iter__(self) -> Iterator[str]:
        for chunk in self.column.chunks:
            yield from chunk.to_pylist()

    def take(self, rows: np.ndarray) -> list[str]:
        """The ids of (k,) rows, in their order; negative rows count from the end.

        Raises:
            IndexError: a row is outside the collection.
        """
        rows = np.asarray(rows, dtype=np.int64)
        outside = (rows < -len(self)) | (rows >= len(self))
        if outside.any():
            raise IndexError(f"row {rows[outside][0]}: expected less than {len(self)}")
        rows = np.where(rows < 0, rows + len(self), rows)
        ids = np.empty(len(rows), dtype=object)
        # ChunkedArray.take would copy the whole column into one chunk first.
        chunks = np.searchsorted(self._starts, rows, side="right") - 1
        for chunk in np.unique(chunks):
            here = chunks == chunk
            places = pa.array(rows[here] - self._starts[chunk])
            ids[here] = self.column.chunk(int(chunk)).take(places).to_pylist()
        return ids.tolist()


def write_ids(folder: Path, batches: Iterable[pa.Array | pa.ChunkedArray]) -> None:
    """Write ids and their order; takes about 35 bytes of memory per id.

    Args:
        folder: of the embeddings.
        batches: of strings, which are unique over all batches.

    Raises:
        ValueError: an id occurs twice or is null.
    """
    schema = pa.schema([(_COLUMN, pa.large_string())])
    with whole_file(folder / IDS_FILE) as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            if batch.null_count:
                raise ValueError(f"{batch.null_count} passages have no id: give each one an id.")
            column = pa.chunked_array([batch]) if isinstance(batch, pa.Array) else batch
            table = pa.table([column.cast(pa.large_string())], schema=schema)
            writer.write_table(table, max_chunksize=_BATCH)
    order = _order_of(PassageIds(folder / IDS_FILE))
    with whole_file(folder / ID_ORDER_FILE) as file:
        np.save(file, order)


def _order_of(ids: PassageIds) -> np.ndarray:
    """The rank of each id: (N,) int64. Arrow compares UTF-8 bytes, which is Python's order."""
    rows = pc.sort_indices(ids.column).to_numpy()  # (N,) uint64
    last = None
    for start in range(0, len(rows), _BATCH):
        for one in ids.take(rows[start : start + _BATCH].astype(np.int64)):
            if one == last:
                raise ValueError(f"Several passages have the id {one!r}: give each its own id.")
            last = one
    order = np.empty(len(rows), dtype=np.int64)
    order[rows] = np.arange(len(rows))
    return order
