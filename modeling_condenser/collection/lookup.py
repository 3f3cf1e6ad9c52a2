"""Finds passages by id with a scan of the id column, so that no table of all ids is held."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

_BATCH_ROWS = 1_000_000  # large, because each batch builds a hash table of the wanted ids


def find_rows(passages: Dataset, ids: Iterable[str]) -> dict[str, int]:
    """Return the row of each id, in the order of the rows.

    Args:
        passages: with a column `_id` of unique strings.
        ids: of passages; memory grows with their number, not with that of the passages.

    Raises:
        ValueError: no passage has one of the ids.
    """
    wanted, rows = _search(passages, ids)
    missing = [wanted[i] for i in np.flatnonzero(rows < 0)[:3].tolist()]
    if missing:
        raise ValueError(
            f"{int((rows < 0).sum())} of {len(wanted)} passage ids are not in the collection, such"
            f" as {', '.join(map(repr, missing))}. Take ids and passages from the same release."
        )
    return {wanted[i]: int(rows[i]) for i in np.argsort(rows).tolist()}


def find_missing(ids: Iterable[str], passages: Dataset) -> list[str]:
    """Return the ids that no passage has, sorted."""
    wanted, rows = _search(passages, ids)
    return [wanted[i] for i in np.flatnonzero(rows < 0).tolist()]


def find_texts(passages: Dataset, ids: Iterable[str], *, column: str = "text") -> dict[str, str]:
    """Return the text (or another column) of each id; see `find_rows`."""
    rows = find_rows(passages, ids)
    texts = passages[list(rows.values())][column] if rows else []
    return dict(zip(rows, texts, strict=True))


def _search(passages: Dataset, ids: Iterable[str]) -> tuple[list[str], np.ndarray]:
    """The distinct ids, sorted, and the row of each, -1 where no passage has it."""
    wanted = sorted(set(ids))
    values = pa.array(wanted, type=pa.large_string())
    rows = np.full(len(wanted), -1, dtype=np.int64)
    first = 0
    columns = passages.select_columns(["_id"]).with_format("arrow")
    for batch in columns.iter(batch_size=_BATCH_ROWS):
        column = batch["_id"].cast(pa.large_string())
        places = pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy()
        found = np.flatnonzero(places >= 0)
        rows[places[found]] = first + found
        first += len(places)
    return wanted, rows
