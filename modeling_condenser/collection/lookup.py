"""Passages by id: a few rows of a large collection, without a table of all its ids."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

_BATCH_ROWS = 100_000


def find_rows(passages: Dataset, ids: Iterable[str]) -> dict[str, int]:
    """The row of each id.

    Args:
        passages: with a column `_id` of unique strings; N rows.
        ids: of passages; memory grows with their number and not with N.

    Raises:
        ValueError: an id that no passage has.
    """
    wanted = pa.array(sorted(set(ids)), type=pa.large_string())
    rows: dict[str, int] = {}
    first = 0
    columns = passages.select_columns(["_id"]).with_format("arrow")
    for table in columns.iter(batch_size=_BATCH_ROWS):
        ids_here = table["_id"].combine_chunks().cast(pa.large_string())
        mask = pc.is_in(ids_here, value_set=wanted).to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(mask).tolist():
            rows[ids_here[place].as_py()] = first + place
        first += len(ids_here)
    if len(rows) < len(wanted):
        missing = next(i for i in wanted.to_pylist() if i not in rows)
        raise ValueError(
            f"{len(wanted) - len(rows)} of {len(wanted)} passage ids are not in the collection, "
            f"such as {missing!r}: take ids and passages from the same release."
        )
    return rows


def find_texts(passages: Dataset, ids: Iterable[str], *, column: str = "text") -> dict[str, str]:
    """The text (or the title) of each id; see `find_rows`."""
    rows = find_rows(passages, ids)
    texts = passages[list(rows.values())][column] if rows else []
    return dict(zip(rows, texts, strict=True))
