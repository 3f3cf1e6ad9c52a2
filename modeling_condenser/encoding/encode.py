"""Encode a collection from its settings, and write the vectors as a table for a database."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from modeling_condenser.collection.load import load_passages
from modeling_condenser.files.run_folder import atomic_folder, bar, folder_lock
from modeling_condenser.files.settings import convert_settings, parse_settings, split_name

from .embeddings import (
    ENCODER_SETTINGS,
    Embeddings,
    encode_collection,
    local_device,
    split_devices,
)

_TABLE_FILE = re.compile(r"data-\d{5}-of-\d{5}\.parquet")
_BYTES_A_TABLE = 500_000_000  # a file size that the Hub can show and stream
_ROWS_A_GROUP = 8192  # of a parquet file


@dataclass(frozen=True)
class EncodingRecipe:
    """What `encode` encodes, and how.

    Attributes:
        model: folder or Hub name of a retriever, with settings of `Retriever` after commas; a plain
            encoder is NAME,pooling=cls, mean or max. Values with commas need a YAML mapping, such
            as {model: NAME, query_prompt: "find, "}.
        collection: folder or Hub name.
        out: folder for the embeddings.
        devices: one worker each, such as cuda:0,cuda:1; by default all GPUs, or the CPU.
        table: new folder for a parquet table of vectors and texts.
    """

    model: str | dict[str, Any]
    collection: str
    out: str
    devices: str | None = None
    table: str | None = None


def encode(**settings: Any) -> Embeddings:
    """Encode all passages of a collection; `EncodingRecipe` has the settings.

    See `encode_collection` for the errors.
    """
    from .retriever import Retriever

    [recipe] = parse_settings(settings, EncodingRecipe)
    devices = split_devices(recipe.devices)
    if recipe.table:
        _check_table_folder(Path(recipe.table))
    name, values = split_name(recipe.model)
    encoder_settings = convert_settings(name, values, ENCODER_SETTINGS)
    retriever = Retriever(name, device=local_device(devices), **encoder_settings)
    passages = load_passages(recipe.collection)
    embeddings = encode_collection(retriever, passages, recipe.out, devices=devices)
    if recipe.table:
        write_table(embeddings, recipe.table, passages=passages)
    return embeddings


def _check_table_folder(folder: Path) -> None:
    """Raise a FileExistsError if a folder holds other files than an earlier table."""
    names = [path.name for path in folder.glob("*") if not _TABLE_FILE.fullmatch(path.name)]
    if names:
        raise FileExistsError(f"{folder} holds other files ({names[0]}): name a new folder.")


def write_table(embeddings: Embeddings, folder: str | Path, *, passages: Dataset) -> list[Path]:
    """Write embeddings as parquet files of about 500 MB, for a vector database or the Hub.

    The columns are `id`, `embedding`, `title` and `text`. The folder must be new or hold an earlier
    table, and is written completely or not at all.

    Returns:
        The files, `data-00000-of-00003.parquet` and so on, in the order of the passages.
    """
    folder, dimension = Path(folder), embeddings.dimension
    # Arrow maps vectors, ids and texts into memory.
    shards = [pa.array(block.ravel()) for block in embeddings.blocks()]
    vectors = [pa.FixedSizeListArray.from_arrays(shard, dimension) for shard in shards]
    ids = embeddings.passage_ids.cast(pa.string())
    texts = passages.with_format("arrow")[:]
    columns = {"id": ids, "embedding": pa.chunked_array(vectors)}
    table = pa.table({**columns, "title": texts["title"], "text": texts["text"]})
    size = max(_BYTES_A_TABLE // (4 * dimension), 1)
    firsts = range(0, table.num_rows, size)
    with folder_lock(folder), atomic_folder(folder) as partial:
        _check_table_folder(folder)
        for i, first in enumerate(bar(firsts, "table", unit="file")):
            file = partial / f"data-{i:05d}-of-{len(firsts):05d}.parquet"
            part = table.slice(first, size)
            # Vectors rarely repeat, so a dictionary would only cost time.
            pq.write_table(part, file, row_group_size=_ROWS_A_GROUP, use_dictionary=False)
    return sorted(folder.iterdir())
