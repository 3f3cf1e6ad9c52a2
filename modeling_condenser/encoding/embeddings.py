"""The embeddings of a collection: a folder of vectors and ids, mapped into memory.

manifest.json       the fields of `Embeddings`
shard-00000.npy     (rows, D) float32 vectors of consecutive passages; a shard is always complete
passage_ids.arrow   ids in the order of the rows, each with a hash of its title and text
encoding.json       time, memory and hardware of encoding
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as pf
import pyarrow.parquet as pq
from datasets import Dataset

from modeling_condenser.collection.rows import iterate_rows
from modeling_condenser.files.atomic import atomic_file, atomic_folder, read_json, write_json
from modeling_condenser.files.progress import bar

MANIFEST_FILE, RECORD_FILE, IDS_FILE = "manifest.json", "encoding.json", "passage_ids.arrow"

Dtype = Literal["float32", "bfloat16", "int8"]
"""Type of an encoder's weights; "int8" is the file of `condenser export --onnx int8`."""

_BYTES_A_TABLE = 500_000_000  # a file size that the Hub can show and stream
_ROWS_A_GROUP = 8192  # of a parquet file


def id_column(passages: Dataset) -> pa.Array:
    """Read the column `_id` as one array; an id takes about 16 bytes of memory."""
    column = passages.select_columns(["_id"]).with_format("arrow")[:]["_id"]
    return column.cast(pa.large_string()).combine_chunks()


def hash_passages(passages: Dataset) -> np.ndarray:
    """A hash of title and text of each passage, (N,) int64."""
    digests = bytearray()
    for row in iterate_rows(passages.select_columns(["title", "text"])):
        content = json.dumps([row["title"], row["text"]]).encode()
        digests += hashlib.blake2b(content, digest_size=8).digest()
    return np.frombuffer(digests, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """The vectors of N passages; the manifest contains all fields except `folder`."""

    folder: Path
    n_passages: int
    dimension: int
    shard_size: int  # rows of every shard but the last
    retriever: str = ""  # `Retriever.fingerprint`
    contract: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of the retriever
    passages: str = ""  # fingerprint of ids, titles and texts

    @classmethod
    def open(cls, folder: str | Path, *, complete: bool = True) -> Self:
        """Open a folder of embeddings.

        Raises:
            FileNotFoundError: it holds none, or `complete` is true and shards are missing.
        """
        manifest = read_json(Path(folder) / MANIFEST_FILE, None)
        if manifest is None:
            raise FileNotFoundError(
                f"{folder} holds no embeddings (no {MANIFEST_FILE}): use `condenser encode` first."
            )
        known = {each.name for each in fields(cls)}  # earlier versions wrote more
        values = {name: value for name, value in manifest.items() if name in known}
        embeddings = cls(folder=Path(folder), **values)
        if complete and (missing := embeddings.missing_shards()):
            raise FileNotFoundError(
                f"{folder} is not complete: {len(missing)} of {len(embeddings.shards)} shards are "
                "missing. Run the same `condenser encode` again, which encodes only the missing."
            )
        return embeddings

    def create(self, ids: pa.Array, hashes: np.ndarray | None = None) -> None:
        """Write ids, which must be unique, hashes and manifest into a new or empty folder."""
        n_ids = pc.count_distinct(ids).as_py()
        if n_ids < len(ids):
            raise ValueError(f"{len(ids)} passages have {n_ids} ids: give each passage its own id.")
        if self.folder.is_dir() and any(self.folder.iterdir()):
            raise FileExistsError(f"{self.folder} is not empty: name a new folder.")
        manifest = asdict(self)
        del manifest["folder"]
        columns: dict[str, Any] = {"_id": ids}
        if hashes is not None:
            columns["text_hash"] = hashes
        with atomic_folder(self.folder) as partial:
            pf.write_feather(pa.table(columns), partial / IDS_FILE, compression="uncompressed")
            write_json(partial / MANIFEST_FILE, manifest)

    @property
    def shards(self) -> list[range]:
        """The rows of each shard."""
        n, size = self.n_passages, self.shard_size
        return [range(first, min(first + size, n)) for first in range(0, n, size)]

    def missing_shards(self) -> list[int]:
        return [i for i in range(len(self.shards)) if not self._file(i).is_file()]

    def write_shard(self, shard: int, vectors: np.ndarray) -> None:
        with atomic_file(self._file(shard)) as file:
            np.save(file, np.ascontiguousarray(vectors))

    def _file(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}.npy"

    def _read(self, shard: int, rows: Any = slice(None)) -> np.ndarray:
        """Read rows of a shard, (rows, D) float32; mapped into memory unless truncated."""
        if shard not in self._maps:
            self._maps[shard] = np.load(self._file(shard), mmap_mode="r")
        vectors = self._maps[shard][rows]
        if vectors.shape[1] == self.dimension:
            return vectors
        vectors = np.array(vectors[:, : self.dimension])
        if self.contract.get("similarity") == "cosine":
            faiss.normalize_L2(vectors)
        return vectors

    @cached_property
    def _maps(self) -> dict[int, np.ndarray]:
        """Shards that were read; they stay readable when an update replaces the folder."""
        return {}

    @property
    def record(self) -> dict[str, Any]:
        """Time, memory and hardware of encoding; empty if encoding did not finish."""
        return read_json(self.folder / RECORD_FILE, {})

    @cached_property
    def _passages(self) -> pa.Table:
        return pf.read_table(self.folder / IDS_FILE, memory_map=True)

    @property
    def passage_ids(self) -> pa.ChunkedArray:
        """The ids in the order of the rows, mapped into memory."""
        return self._passages["_id"]

    @property
    def hashes(self) -> np.ndarray:
        """The hashes of the passages, (N,) int64."""
        return self._passages["text_hash"].to_numpy()

    def ids(self, rows: np.ndarray) -> list[str]:
        """Return the ids of (k,) rows."""
        return self.passage_ids.take(pa.array(rows)).to_pylist()

    def blocks(self) -> Iterator[np.ndarray]:
        """Iterate over the shards: (rows, D) float32, mapped into memory."""
        yield from map(self._read, bar(range(len(self.shards)), "vectors", unit="shard"))

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Copy the vectors of (k,) rows: (k, D) float32."""
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)  # (k, D)
        shards, places = np.divmod(rows, self.shard_size)
        for shard in np.unique(shards):
            here = shards == shard
            vectors[here] = self._read(shard, places[here])
        return vectors

    def truncated(self, dimension: int, *, retriever: str) -> Self:
        """Keep the first numbers of each vector, at length 1 if the similarity is cosine.

        `retriever` is the fingerprint of the truncated retriever.
        """
        return replace(self, dimension=dimension, retriever=retriever)


def find_best(
    queries: np.ndarray, blocks: Iterable[np.ndarray], *, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the rows with the greatest inner products for queries, (Q, D) float32.

    Each of the `blocks` holds the next rows, (rows, D) float32.

    Returns:
        Scores (Q, depth) float32 and rows (Q, depth) int64, best first; row -1 for none.
    """
    best = faiss.ResultHeap(len(queries), depth, keep_max=True)
    first = 0
    for block in blocks:
        k = min(depth, len(block))
        scores, rows = faiss.knn(queries, block, k, metric=faiss.METRIC_INNER_PRODUCT)
        best.add_result(scores, first + rows)
        first += len(block)
    best.finalize()
    return best.D, best.I


def check_vectors(vectors: np.ndarray, n_ids: int, *, first: int = 0) -> None:
    """Raise a ValueError unless vectors, from row `first`, are finite (N, D) float32 with N ids."""
    if vectors.ndim != 2 or vectors.dtype != np.float32 or not 0 < len(vectors) == n_ids:
        raise ValueError(
            f"Got {n_ids} ids for vectors of shape {vectors.shape} and type {vectors.dtype}; "
            "expected at least one id, and (ids, dimension) float32."
        )
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {len(vectors)} vectors hold NaN or infinity, the first in row "
            f"{first + bad[0]}: training may have diverged."
        )


def write_table(embeddings: Embeddings, folder: str | Path, *, passages: Dataset) -> list[Path]:
    """Write embeddings as parquet files of about 500 MB, for a vector database or the Hub.

    The columns are `id`, `embedding`, `title` and `text`. The folder must be new or empty, and is
    written completely or not at all.

    Returns:
        The files, `data-00000-of-00003.parquet` and so on, in the order of the passages.
    """
    folder, dimension = Path(folder), embeddings.dimension
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: name a new folder.")
    if not embeddings.passage_ids.equals(pa.chunked_array([id_column(passages)])):
        raise ValueError("Passages and embeddings differ in ids: pass the encoded passages.")
    # Arrow maps vectors, ids and texts into memory.
    shards = [pa.array(block.ravel()) for block in embeddings.blocks()]
    vectors = [pa.FixedSizeListArray.from_arrays(shard, dimension) for shard in shards]
    ids = embeddings.passage_ids.cast(pa.string())
    texts = passages.with_format("arrow")[:]
    columns = {"id": ids, "embedding": pa.chunked_array(vectors)}
    table = pa.table({**columns, "title": texts["title"], "text": texts["text"]})
    size = max(_BYTES_A_TABLE // (4 * dimension), 1)
    firsts = range(0, table.num_rows, size)
    with atomic_folder(folder) as partial:
        for i, first in enumerate(bar(firsts, "table", unit="file")):
            file = partial / f"data-{i:05d}-of-{len(firsts):05d}.parquet"
            part = table.slice(first, size)
            # Vectors rarely repeat, so a dictionary would only cost time.
            pq.write_table(part, file, row_group_size=_ROWS_A_GROUP, use_dictionary=False)
    return sorted(folder.iterdir())
