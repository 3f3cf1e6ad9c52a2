"""Finds passages by id with a scan of the id column, without a table of all ids in memory."""

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
        ids: of passages; memory grows with their number only.

    Raises:
        ValueError: no passage has one of the ids.
    """
    rows = _search(passages, ids)
    missing = [passage_id for passage_id, row in rows.items() if row < 0]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(rows)} passage ids are not in the collection, such as"
            f" {', '.join(map(repr, missing[:3]))}. Take ids and passages from the same release."
        )
    return dict(sorted(rows.items(), key=lambda item: item[1]))


def find_missing(ids: Iterable[str], passages: Dataset) -> list[str]:
    """Return the ids that no passage has, sorted."""
    return [passage_id for passage_id, row in _search(passages, ids).items() if row < 0]


def find_texts(passages: Dataset, ids: Iterable[str], *, column: str = "text") -> dict[str, str]:
    """Return the text (or another column) of each id; see `find_rows`."""
    rows = find_rows(passages, ids)
    texts = passages[list(rows.values())][column] if rows else []
    return dict(zip(rows, texts, strict=True))


def _search(passages: Dataset, ids: Iterable[str]) -> dict[str, int]:
    """The row of each id, sorted by id; -1 where no passage has it."""
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
    return dict(zip(wanted, rows.tolist(), strict=True))
