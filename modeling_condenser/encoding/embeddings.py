"""The embeddings of a collection: a folder of vectors and ids that is mapped into memory.

manifest.json       what was encoded by which retriever, and how the vectors are split
shard-00000.npy     (rows, D) float32 vectors of consecutive passages
passage_ids.arrow   the ids in the order of the rows
encoding.json       time, memory and hardware of encoding

Each file is written under a temporary name and then renamed, so a shard that exists is complete.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset, Features, List, Value
from tqdm.auto import tqdm

from modeling_condenser.runs.run_folder import whole_folder
from modeling_condenser.runs.whole_files import whole_file, write_json

VERSION = 1
MANIFEST_FILE, RECORD_FILE, IDS_FILE = "manifest.json", "encoding.json", "passage_ids.arrow"
_BYTES_A_TABLE = 500_000_000  # a file size that the Hub can show and stream


@dataclass(frozen=True)
class Manifest:
    """What a folder's vectors are, and how they are split into shards.

    Attributes:
        retriever: fingerprint of weights, tokenizer, contract and dtype.
        contract: the fields of its `EncodingContract`.
        passages: fingerprint of ids, titles and texts.
        shard_size: rows of every shard but the last.
        computation: device type, tokens in a batch and dtype of the weights.
    """

    retriever: str
    contract: Mapping[str, Any]
    passages: str
    n_passages: int
    dimension: int
    shard_size: int
    computation: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION
    dtype: str = "float32"

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a folder's manifest."""
        file = folder / MANIFEST_FILE
        if not file.is_file():
            raise FileNotFoundError(
                f"{folder} holds no embeddings ({MANIFEST_FILE} is missing): write them with "
                "`condenser encode`, or correct the path."
            )
        content = json.loads(file.read_text(encoding="utf-8"))
        if (version := content.get("version")) != VERSION:
            raise ValueError(f"{file} has version {version}, expected {VERSION}: encode again.")
        return cls(**content)

    @property
    def n_shards(self) -> int:
        return -(-self.n_passages // self.shard_size)

    def rows(self, shard: int) -> range:
        """The passages of a shard."""
        first = shard * self.shard_size
        return range(first, min(first + self.shard_size, self.n_passages))

    def missing_shards(self, folder: Path) -> list[int]:
        """The shards that are not yet in the folder."""
        names = {entry.name for entry in folder.iterdir()}
        return [shard for shard in range(self.n_shards) if shard_name(shard) not in names]


def default_shard_size(n_passages: int) -> int:
    """At least 16 shards to share among workers, of 256 to 8,192 passages."""
    return min(8192, max(256, -(-n_passages // 16)))


def shard_name(shard: int) -> str:
    return f"shard-{shard:05d}.npy"


def write_shard(folder: Path, shard: int, vectors: np.ndarray) -> None:
    with whole_file(folder / shard_name(shard)) as file:
        np.save(file, np.ascontiguousarray(vectors))


def write_ids(folder: Path, ids: pa.Array) -> None:
    """Write ids, which must be unique."""
    n_ids = pc.count_distinct(ids).as_py()
    if n_ids < len(ids) or ids.null_count:
        raise ValueError(f"{len(ids)} passages have {n_ids} ids: give each passage its own id.")
    batch = pa.record_batch([ids], names=["_id"])
    with whole_file(folder / IDS_FILE) as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def id_column(passages: Dataset) -> pa.Array:
    """The column `_id` in one piece, about 16 bytes of memory per id."""
    column = passages.select_columns(["_id"]).with_format("arrow")[:]["_id"]
    return column.cast(pa.large_string()).combine_chunks()


@dataclass(frozen=True)
class Embeddings:
    """The vectors of N passages, D numbers each, in a folder."""

    folder: Path
    manifest: Manifest = field(repr=False)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a complete folder of embeddings.

        Raises:
            FileNotFoundError: there are none, or some shards are missing.
            ValueError: another version wrote them.
        """
        folder = Path(folder)
        manifest = Manifest.load(folder)
        missing = manifest.missing_shards(folder)
        if missing or not (folder / IDS_FILE).is_file():
            raise FileNotFoundError(
                f"{folder} is not complete: {len(missing)} of {manifest.n_shards} shards are "
                "missing. Run the same `condenser encode` again, which encodes only these."
            )
        return cls(folder, manifest)

    @property
    def record(self) -> dict[str, Any]:
        """The time, memory and hardware of encoding; empty for vectors written from an array."""
        file = self.folder / RECORD_FILE
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    @property
    def n_passages(self) -> int:
        return self.manifest.n_passages

    @property
    def dimension(self) -> int:
        return self.manifest.dimension

    @cached_property
    def passage_ids(self) -> pa.Array:
        """The ids in the order of the rows, mapped into memory."""
        with pa.memory_map(str(self.folder / IDS_FILE)) as source:
            column = pa.ipc.open_file(source).read_all()["_id"]
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def ids(self, rows: np.ndarray) -> list[str]:
        """The ids of (k,) rows, in their order."""
        return self.passage_ids.take(pa.array(rows)).to_pylist()

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """The shards in order: first row, and (rows, D) float32 mapped into memory."""
        for shard in range(self.manifest.n_shards):
            yield self.manifest.rows(shard).start, self._map(shard)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Copy the vectors of (k,) rows, in their order: (k, D) float32."""
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)  # (k, D)
        shards = rows // self.manifest.shard_size
        for shard in np.unique(shards):
            here = shards == shard
            vectors[here] = self._map(int(shard))[rows[here] % self.manifest.shard_size]
        return vectors

    def search(
        self, queries: np.ndarray, *, depth: int, progress: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search exactly by inner product; see `find_best`."""
        shards = tqdm(self.blocks(), "search", self.manifest.n_shards, disable=not progress)
        return find_best(queries, shards, depth=min(depth, self.n_passages))

    def _map(self, shard: int) -> np.ndarray:
        return np.load(self.folder / shard_name(shard), mmap_mode="r")


def find_best(
    queries: np.ndarray, blocks: Iterable[tuple[int, np.ndarray]], *, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the rows with the greatest inner products for each query.

    Args:
        queries: (Q, D) float32.
        blocks: first row, and (rows, D) float32.
        depth: at most the number of rows in all blocks.

    Returns:
        Scores (Q, depth) float32 and rows (Q, depth) int64, best first.
    """
    best = faiss.ResultHeap(len(queries), depth, keep_max=True)
    for first, block in blocks:
        k = min(depth, len(block))
        scores, rows = faiss.knn(queries, block, k, metric=faiss.METRIC_INNER_PRODUCT)
        best.add_result(scores, first + rows)
    best.finalize()
    return best.D, best.I


def write_embeddings(
    folder: str | Path,
    vectors: np.ndarray,
    passage_ids: Sequence[str],
    *,
    shard_size: int | None = None,
    retriever_fingerprint: str = "",
) -> Embeddings:
    """Write a complete folder of embeddings from an array.

    Args:
        folder: new or empty.
        vectors: (N, D) float32, finite.
        passage_ids: N unique ids.
        shard_size: rows of a shard; by default it depends on N.
        retriever_fingerprint: see `Manifest`.
    """
    folder = Path(folder)
    _check_empty(folder)
    check_vectors(vectors, len(passage_ids))
    manifest = Manifest(
        retriever=retriever_fingerprint,
        contract={},
        passages="",
        n_passages=len(vectors),
        dimension=vectors.shape[1],
        shard_size=shard_size or default_shard_size(len(vectors)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_ids(folder, pa.array(passage_ids, type=pa.large_string()))
    for shard in range(manifest.n_shards):
        rows = manifest.rows(shard)
        write_shard(folder, shard, vectors[rows.start : rows.stop])
    write_json(folder / MANIFEST_FILE, asdict(manifest))
    return Embeddings.open(folder)


def _check_empty(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: name a new folder.")


def check_vectors(vectors: np.ndarray, n_ids: int) -> None:
    """Raise a ValueError unless vectors are finite (N, D) float32 with N ids."""
    if vectors.ndim != 2 or vectors.dtype != np.float32 or not 0 < len(vectors) == n_ids:
        raise ValueError(
            f"Got {n_ids} ids for vectors of shape {vectors.shape} and type {vectors.dtype}; "
            "expected at least one id, and (ids, dimension) float32."
        )
    is_finite = np.isfinite(vectors).all(axis=1)
    if not is_finite.all():
        raise ValueError(
            f"{np.count_nonzero(~is_finite)} of {n_ids} vectors hold NaN or infinity, the first in "
            f"row {int(is_finite.argmin())}: training may have diverged."
        )


def write_table(
    embeddings: Embeddings,
    folder: str | Path,
    *,
    passages: Dataset | None = None,
    progress: bool = False,
) -> list[Path]:
    """Write embeddings as parquet files of about 500 MB, for a vector database or the Hub.

    Args:
        embeddings: of N passages.
        folder: new or empty; it is written completely or not at all.
        passages: the encoded passages, to add the columns `title` and `text`.
        progress: show a bar.

    Returns:
        The files, `data-00000-of-00003.parquet` and so on, in the order of the passages, with the
        columns `id` (string) and `embedding` (list of D float32).
    """
    folder, manifest = Path(folder), embeddings.manifest
    _check_empty(folder)
    features = {"id": Value("string"), "embedding": List(Value("float32"), manifest.dimension)}
    if passages is not None:
        features |= {"title": Value("string"), "text": Value("string")}
    schema = Features(features).arrow_schema
    per_file = max(1, _BYTES_A_TABLE // (4 * manifest.dimension * manifest.shard_size))
    firsts = range(0, manifest.n_shards, per_file)
    names = [f"data-{i:05d}-of-{len(firsts):05d}.parquet" for i in range(len(firsts))]
    files = tqdm(zip(firsts, names, strict=True), "table", len(names), disable=not progress)
    with whole_folder(folder) as partial:
        for first, name in files:
            # Vectors rarely repeat, so a dictionary would only cost time.
            with pq.ParquetWriter(partial / name, schema, use_dictionary=False) as writer:
                for shard in range(first, min(first + per_file, manifest.n_shards)):
                    writer.write_table(_as_table(embeddings, passages, shard, schema))
    return [folder / name for name in names]


def _as_table(
    embeddings: Embeddings, passages: Dataset | None, shard: int, schema: pa.Schema
) -> pa.Table:
    rows = embeddings.manifest.rows(shard)
    ids = embeddings.passage_ids[rows.start : rows.stop]
    numbers = pa.array(embeddings.vectors(np.array(rows)).ravel())
    vectors = pa.FixedSizeListArray.from_arrays(numbers, embeddings.dimension)
    columns = {"id": ids.cast(pa.string()), "embedding": vectors}
    if passages is not None:
        texts = passages[rows.start : rows.stop]
        if list(texts["_id"]) != ids.to_pylist():
            raise ValueError(
                f"Passages {rows.start} to {rows.stop - 1} have other ids than the embeddings: "
                "pass the encoded passages, in their order."
            )
        columns |= {"title": texts["title"], "text": texts["text"]}
    return pa.table(columns, schema=schema)
