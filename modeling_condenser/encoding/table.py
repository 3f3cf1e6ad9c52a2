"""Embeddings as a table, for a vector database or for the Hub.

In: a folder of embeddings, and its passages where the table is to hold texts too. Out: parquet
files with the columns `id`, `embedding` and, with passages, `title` and `text`, which
`datasets.load_dataset("parquet", data_files=...)` and every parquet reader open.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, List, Value
from tqdm.auto import tqdm

from modeling_condenser.runs.run_folder import whole_folder

from .embeddings import Embeddings

_ROWS_A_GROUP = 4096  # what a reader must hold at least
_BYTES_A_FILE = 500_000_000  # the Hub shows and streams files of this size well


def write_table(
    embeddings: Embeddings,
    folder: str | Path,
    *,
    passages: Dataset | None = None,
    rows_per_file: int | None = None,
    progress: bool = False,
) -> list[Path]:
    """Write embeddings as parquet files; a shard at a time is in memory.

    Args:
        embeddings: of N passages, D numbers each.
        folder: new or empty; it is filled whole or not at all.
        passages: those that were encoded, to put their titles and texts into the table.
        rows_per_file: rows of every file but the last; by default some 500 MB of vectors.
        progress: whether to show a bar.

    Returns:
        The files, `data-00000-of-00003.parquet` and so on: `id` string, `embedding` a list of D
        float32, of fixed length; in the order of the passages.

    Raises:
        FileExistsError: the folder holds something.
        ValueError: the passages are others than those of the embeddings.
        OSError: a file cannot be written; the folder is then not there.
    """
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: name a new folder for the table.")
    if rows_per_file is None:
        rows_per_file = max(1, _BYTES_A_FILE // (4 * embeddings.dimension))
    if rows_per_file < 1:
        raise ValueError(f"rows_per_file is {rows_per_file}, expected at least 1.")
    if passages is not None and len(passages) != embeddings.n_passages:
        raise ValueError(
            f"{len(passages)} passages and {embeddings.n_passages} embeddings: expected as many; "
            "pass the passages that were encoded."
        )
    schema = _schema(embeddings.dimension, with_texts=passages is not None)
    n_files = -(-embeddings.n_passages // rows_per_file)
    names = [f"data-{i:05d}-of-{n_files:05d}.parquet" for i in range(n_files)]
    bar = tqdm(
        total=embeddings.n_passages, desc="table", unit="passage", delay=1, disable=not progress
    )
    with whole_folder(folder) as partial, bar:
        for number, name in enumerate(names):
            rows = range(
                number * rows_per_file, min((number + 1) * rows_per_file, embeddings.n_passages)
            )
            # A dictionary of vectors that all differ would only cost time.
            with pq.ParquetWriter(partial / name, schema, use_dictionary=False) as writer:
                for group in _groups(rows):
                    writer.write_table(_rows_as_table(embeddings, passages, group, schema))
                    bar.update(len(group))
    return [folder / name for name in names]


def _schema(dimension: int, *, with_texts: bool) -> pa.Schema:
    features = {"id": Value("string"), "embedding": List(Value("float32"), length=dimension)}
    if with_texts:
        features |= {"title": Value("string"), "text": Value("string")}
    return Features(features).arrow_schema


def _groups(rows: range) -> Iterator[range]:
    for first in range(rows.start, rows.stop, _ROWS_A_GROUP):
        yield range(first, min(first + _ROWS_A_GROUP, rows.stop))


def _rows_as_table(
    embeddings: Embeddings, passages: Dataset | None, rows: range, schema: pa.Schema
) -> pa.Table:
    places = np.arange(rows.start, rows.stop)
    ids = embeddings.passage_ids.take(places)
    vectors = embeddings.vectors(places)  # (k, D)
    columns = {
        "id": ids,
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
    }
    if passages is not None:
        texts = passages[rows.start : rows.stop]
        for row, (own, other) in enumerate(zip(ids, texts["_id"], strict=True), rows.start):
            if own != other:
                raise ValueError(
                    f"row {row} is passage {other!r}, but the embeddings have {own!r} there: pass "
                    "the passages that were encoded, in their order."
                )
        columns |= {"title": texts["title"], "text": texts["text"]}
    return pa.table(columns, schema=schema)
