"""Export embeddings as parquet files, for a vector database or the Hub.

The files have the columns `id`, `embedding` and, with passages, `title` and `text`;
`datasets.load_dataset("parquet", data_files=...)` opens them.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, List, Value
from tqdm.auto import tqdm

from modeling_condenser.runs.run_folder import whole_folder

from .embeddings import Embeddings

_ROWS_A_GROUP = 4096  # the smallest part that a reader loads
_BYTES_A_FILE = 500_000_000  # a size that the Hub can show and stream


def write_table(
    embeddings: Embeddings,
    folder: str | Path,
    *,
    passages: Dataset | None = None,
    rows_per_file: int | None = None,
    progress: bool = False,
) -> list[Path]:
    """Write embeddings as parquet files, one row group at a time.

    Args:
        embeddings: of N passages, D numbers each.
        folder: new or empty; it is written completely or not at all.
        passages: the encoded passages, to add their titles and texts.
        rows_per_file: rows of every file but the last; by default about 500 MB of vectors.
        progress: whether to show a bar.

    Returns:
        The files, `data-00000-of-00003.parquet` and so on, in the order of the passages. `id` is a
        string, `embedding` a fixed-size list of D float32.

    Raises:
        FileExistsError: the folder is not empty.
        ValueError: the passages are not those of the embeddings.
    """
    folder, n_rows = Path(folder), embeddings.n_passages
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: name a new folder for the table.")
    if rows_per_file is None:
        rows_per_file = max(1, _BYTES_A_FILE // (4 * embeddings.dimension))
    if rows_per_file < 1:
        raise ValueError(f"rows_per_file is {rows_per_file}, expected at least 1.")
    if passages is not None and len(passages) != n_rows:
        raise ValueError(
            f"Got {len(passages)} passages for {n_rows} embeddings: pass the encoded passages."
        )
    schema = _schema(embeddings.dimension, with_texts=passages is not None)
    firsts = range(0, n_rows, rows_per_file)
    names = [f"data-{i:05d}-of-{len(firsts):05d}.parquet" for i in range(len(firsts))]
    bar = tqdm(total=n_rows, desc="table", unit="passage", delay=1, disable=not progress)
    with whole_folder(folder) as partial, bar:
        for first, name in zip(firsts, names, strict=True):
            last = min(first + rows_per_file, n_rows)
            # Vectors rarely repeat, so a dictionary would only cost time.
            with pq.ParquetWriter(partial / name, schema, use_dictionary=False) as writer:
                for start in range(first, last, _ROWS_A_GROUP):
                    rows = range(start, min(start + _ROWS_A_GROUP, last))
                    writer.write_table(_as_table(embeddings, passages, rows, schema))
                    bar.update(len(rows))
    return [folder / name for name in names]


def _schema(dimension: int, *, with_texts: bool) -> pa.Schema:
    features = {"id": Value("string"), "embedding": List(Value("float32"), length=dimension)}
    if with_texts:
        features |= {"title": Value("string"), "text": Value("string")}
    return Features(features).arrow_schema


def _as_table(
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
        if list(texts["_id"]) != ids:
            raise ValueError(
                f"The passages in rows {rows.start} to {rows.stop - 1} have other ids than the "
                "embeddings: pass the encoded passages, in their order."
            )
        columns |= {"title": texts["title"], "text": texts["text"]}
    return pa.table(columns, schema=schema)
