"""Stores passages as a memory-mapped data set, and finds them by id.

Rows are checked once and stored in the cache of `datasets`, so memory does not grow with their
number, and later runs open them at once.
"""

import hashlib
import json
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

logger = logging.getLogger(__name__)

COLUMNS = ("_id", "title", "text")
_BATCH_ROWS = 8192  # of a fingerprint, which depends on it
Row = tuple[Any, Any, Any]
"""Id, title, text; `check_passages` checks that they are strings."""

PassageRows = tuple[Iterable[Row], Sequence[Path]]
"""An iterator of rows, and the files that it reads."""


def store_rows(
    make_rows: Callable[[], Iterable[Mapping[str, Any]]],
    features: Mapping[str, Any],
    *,
    identity: Iterable[str],
    batch_rows: int = 1000,
) -> Dataset:
    """Store rows in the cache of `datasets`, or open rows that were stored with this identity.

    The identity must contain everything that the rows depend on. Memory holds `batch_rows` rows.
    """
    text = "\0".join([str(features), *identity])
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    try:
        return Dataset.from_generator(
            make_rows,
            features=Features(features),
            fingerprint=f"condenser-{digest[:32]}",
            writer_batch_size=batch_rows,
        )
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None


def fingerprint_rows(table: Dataset) -> str:
    """Return the SHA-256 of a table's values, whatever files they come from."""
    digest = hashlib.sha256(b"condenser rows 2")
    for batch in table.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        digest.update(json.dumps(batch.to_pydict()).encode())
    return digest.hexdigest()


def iterate_rows(table: Dataset) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a data set; reading in batches is many times as fast."""
    for batch in table.with_format("arrow").iter(batch_size=1000):
        yield from batch.to_pylist()


def file_states(files: Iterable[Path]) -> list[str]:
    """Identify the content of files by paths, sizes and modification times."""
    stats = [(file.resolve(), file.stat()) for file in files]
    return [f"{file}: {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats]


def store_passages(rows: Iterable[Row], files: Sequence[Path]) -> Dataset:
    """Check and store passages, or open them if these files were read before.

    Returns:
        Columns `_id`, `title`, `text`, all strings, memory-mapped, in the order of the rows.
    """
    what = ", ".join(map(str, files))
    features = {column: Value("string") for column in COLUMNS}
    identity = ["passages 2", *file_states(files)]
    return store_rows(lambda: check_passages(rows, what), features, identity=identity)


def check_passages(rows: Iterable[Row], what: str) -> Iterator[dict[str, str]]:
    """Check rows one by one, and yield them by `COLUMNS`; `what` is for the messages.

    Raises:
        ValueError: an id, title or text is no text, an id has white space, two passages have one
            id, or there are no passages.
    """
    # Hashes of 64 bits: two of 10 million ids share one with a probability of 3e-6.
    hashes, n_blank = array("q"), 0
    for row in rows:
        if not all(isinstance(value, str) for value in row):
            raise ValueError(
                f"{what}: got the id, title and text {row!r:.100}, expected three texts."
            )
        hashes.append(hash(row[0]))
        check_id(row[0], f"{what}: the id of passage {len(hashes)}")
        n_blank += not any(map(str.strip, row[1:]))
        yield dict(zip(COLUMNS, row, strict=True))
    if not hashes:
        raise ValueError(f"{what}: there are no passages, expected at least one.")
    repeated = pd.Series(hashes).duplicated()
    if repeated.any():
        raise ValueError(
            f"{what}: {repeated.sum()} passages repeat the id of another one, the first is "
            f"passage {repeated.argmax() + 1}; ids must be unique."
        )
    if n_blank:
        logger.warning("%s: %d passages have neither a title nor a text", what, n_blank)


def check_id(name: str, what: str) -> None:
    """Raise a ValueError unless an id is one word, as run files need; `what` is for the message."""
    if name.split() != [name]:
        raise ValueError(
            f"{what} is {name!r:.80}, expected no white space, which separates the columns of run "
            "files: replace it, such as by '_', also in the judgements."
        )


def plain_text(text: str) -> str:
    """Return a text in lower case, with single blanks, to compare it with near-copies."""
    return " ".join(text.split()).casefold()


def hash_text(text: str) -> int:
    """Return the hash of a text's `plain_text`, in this process."""
    return hash(plain_text(text))


def find_rows(passages: Dataset, ids: Iterable[str], *, strict: bool = True) -> dict[str, int]:
    """Return the row of each id, in the order of the rows, with one scan of the column `_id`.

    An unknown id is a ValueError, or has no row if not `strict`.
    """
    wanted = sorted(set(ids))
    column = passages.select_columns(["_id"]).with_format("arrow")[:]["_id"]
    is_wanted = pc.is_in(column, value_set=pa.array(wanted, type=column.type))
    in_passages = column.filter(is_wanted).to_pylist()
    rows: dict[str, int] = dict(zip(in_passages, np.flatnonzero(is_wanted).tolist(), strict=True))
    if strict and (missing := [name for name in wanted if name not in rows]):
        raise ValueError(
            f"{len(missing)} of {len(wanted)} passage ids are not in the collection, such as"
            f" {', '.join(map(repr, missing[:3]))}. Take ids and passages from the same release."
        )
    return rows


def find_texts(passages: Dataset, ids: Iterable[str]) -> dict[str, str]:
    """Return the text of each id; see `find_rows`."""
    rows = find_rows(passages, ids)
    texts = [text for _, text in titles_and_texts(passages, list(rows.values()))]
    return dict(zip(rows, texts, strict=True))


def titles_and_texts(passages: Dataset, rows: Sequence[int] | np.ndarray) -> list[tuple[str, str]]:
    """Return the titles and texts of rows, in the given order."""
    # Reading in the order of the file is several times as fast as in any other order.
    unique, inverse = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
    batch = passages[unique]
    pairs = list(zip(batch["title"], batch["text"], strict=True))
    return [pairs[i] for i in inverse]


class PassageIndex:
    """Finds passages by id repeatedly, and shows which passages have the same text.

    Memory holds only 64-bit hashes of ids and texts.

    Attributes:
        content: `hash_text` of the texts (of the titles, where the text is empty), (N,) int64.
    """

    def __init__(self, passages: Dataset):
        self._passages = passages
        ids, content = array("q"), array("q")
        for row in iterate_rows(passages.select_columns(list(COLUMNS))):
            ids.append(hash(row["_id"]))
            content.append(hash_text(row["text"] or f"\0{row['title']}"))
        self.content = np.asarray(content)
        self._ids = pd.Index(np.asarray(ids))

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """Return the rows of ids, (n,) int64; an unknown id is a ValueError."""
        rows = self._ids.get_indexer(np.fromiter(map(hash, ids), np.int64, len(ids)))
        if -1 in rows:
            raise ValueError(
                f"The collection has no passage {ids[rows.argmin()]!r}. Take ids and passages from"
                " the same release."
            )
        return rows

    def read(self, ids: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return passage id -> (title, text)."""
        unique = list(dict.fromkeys(ids))
        return dict(zip(unique, titles_and_texts(self._passages, self.rows(unique)), strict=True))
