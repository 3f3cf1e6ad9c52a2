"""The embeddings of a collection: a folder of vectors and ids that is mapped into memory.

manifest.json       what was encoded by which retriever, and how the vectors are split
shard-00000.npy     (rows, D) float32 vectors of consecutive passages
passage_ids.arrow   the ids in the order of the rows, and their sorted order in id_order.npy
encoding.json       time, memory and hardware of encoding

Each file is written under a temporary name and then renamed, so a shard that exists is complete.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from modeling_condenser.runs.whole_files import whole_file, write_json

from .passage_ids import ID_ORDER_FILE, IDS_FILE, PassageIds, write_ids

VERSION = 1
MANIFEST_FILE, RECORD_FILE = "manifest.json", "encoding.json"
_SMALLEST_SHARD, _LARGEST_SHARD, _FEWEST_SHARDS = 256, 8192, 16


def default_shard_size(n_passages: int) -> int:
    """Rows of a shard: enough shards to share among workers, each long enough to sort by length."""
    return min(_LARGEST_SHARD, max(_SMALLEST_SHARD, -(-n_passages // _FEWEST_SHARDS)))


@dataclass(frozen=True)
class Manifest:
    """What a folder's vectors are, and how they are split into shards.

    Attributes:
        retriever: fingerprint of weights, tokenizer, contract and dtype.
        contract: of encoding, as plain values.
        passages: fingerprint of ids, titles and texts.
        n_passages: N.
        dimension: D.
        shard_size: rows of every shard but the last.
        computation: device type, tokens in a batch and dtype of the weights.
        version: of this layout.
        dtype: of the vectors.
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

    def __post_init__(self) -> None:
        for name in ("n_passages", "dimension", "shard_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1.")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a folder's manifest.

        Raises:
            FileNotFoundError: there is none.
            ValueError: the file is damaged, or its version is not supported.
        """
        file = folder / MANIFEST_FILE
        if not file.is_file():
            raise FileNotFoundError(
                f"{folder} holds no embeddings ({MANIFEST_FILE} is missing): write them with "
                "`condenser encode`, or correct the path."
            )
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            version = content["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is not a manifest of embeddings: restore it, or remove the folder and "
                "encode the collection again."
            ) from error
        if version != VERSION or set(content) != {own.name for own in fields(cls)}:
            raise ValueError(
                f"{file} has version {version}, expected {VERSION}: encode the collection again "
                "into another folder."
            )
        return cls(**content)

    def save(self, folder: Path) -> None:
        write_json(folder / MANIFEST_FILE, asdict(self))

    @property
    def n_shards(self) -> int:
        return -(-self.n_passages // self.shard_size)

    def rows(self, shard: int) -> range:
        """The passages of a shard."""
        first = shard * self.shard_size
        return range(first, min(first + self.shard_size, self.n_passages))


def shard_name(shard: int) -> str:
    return f"shard-{shard:05d}.npy"


def write_shard(folder: Path, manifest: Manifest, shard: int, vectors: np.ndarray) -> None:
    """Write the vectors of a shard, (rows, D) float32.

    Raises:
        ValueError: shape or type do not match the manifest, or a vector is not finite.
        OSError: the file cannot be written; it is then absent.
    """
    rows = manifest.rows(shard)
    expected = (len(rows), manifest.dimension)
    if vectors.shape != expected or vectors.dtype != np.float32:
        raise ValueError(
            f"The vectors of shard {shard} have shape {vectors.shape} and type {vectors.dtype}; "
            f"expected {expected} and float32."
        )
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{np.count_nonzero(~finite)} of {len(rows)} vectors of shard {shard} hold NaN or "
            f"infinity, the first in row {rows[int(np.argmin(finite))]}: training may have "
            "diverged, or half precision overflowed."
        )
    with whole_file(folder / shard_name(shard)) as file:
        np.save(file, np.ascontiguousarray(vectors))


@dataclass(frozen=True)
class Embeddings:
    """The vectors of N passages in a folder, complete.

    Attributes:
        folder: that holds them.
        manifest: what they are.
    """

    folder: Path
    manifest: Manifest = field(repr=False)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a folder of embeddings.

        Raises:
            FileNotFoundError: there are no embeddings, or some shards are missing.
            ValueError: the manifest or a shard is damaged.
        """
        folder = Path(folder)
        manifest = Manifest.load(folder)
        names = {entry.name for entry in folder.iterdir()}
        missing = [i for i in range(manifest.n_shards) if shard_name(i) not in names]
        if missing or not {IDS_FILE, ID_ORDER_FILE} <= names:
            raise FileNotFoundError(
                f"{folder} is not complete: {manifest.n_shards - len(missing)} of "
                f"{manifest.n_shards} shards are finished. Run the same `condenser encode` again, "
                "which continues with the others."
            )
        embeddings = cls(folder, manifest)
        for shard in range(manifest.n_shards):
            embeddings._check_shard(shard)
        return embeddings

    @property
    def record(self) -> dict[str, Any]:
        """The content of `encoding.json`; empty for vectors written from an array."""
        file = self.folder / RECORD_FILE
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    @property
    def n_passages(self) -> int:
        return self.manifest.n_passages

    @property
    def dimension(self) -> int:
        return self.manifest.dimension

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """The shards in order: first row, and (rows, D) float32 mapped into memory."""
        for shard in range(self.manifest.n_shards):
            yield self.manifest.rows(shard).start, self._map(shard)

    @cached_property
    def passage_ids(self) -> PassageIds:
        """The ids, in the order of the rows."""
        return PassageIds(self.folder / IDS_FILE)

    @cached_property
    def id_order(self) -> np.ndarray:
        """The rank of each id among the sorted ids: (N,) int64, mapped into memory."""
        return np.load(self.folder / ID_ORDER_FILE, mmap_mode="r")

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Copy the vectors of (k,) rows, in their order: (k, D) float32.

        Raises:
            IndexError: a row is outside 0 to N - 1.
        """
        rows = np.asarray(rows, dtype=np.int64)
        outside = (rows < 0) | (rows >= self.n_passages)
        if outside.any():
            raise IndexError(f"row {rows[outside][0]}: expected 0 to {self.n_passages - 1}")
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)  # (k, D)
        shards = rows // self.manifest.shard_size
        for shard in np.unique(shards):
            here = shards == shard
            vectors[here] = self._map(int(shard))[rows[here] % self.manifest.shard_size]
        return vectors

    def _map(self, shard: int) -> np.ndarray:
        return np.load(self.folder / shard_name(shard), mmap_mode="r")

    def _check_shard(self, shard: int) -> None:
        file = self.folder / shard_name(shard)
        expected = (len(self.manifest.rows(shard)), self.dimension)
        try:
            found: object = self._map(shard).shape
        except ValueError as error:
            found = error
        if found != expected:
            raise ValueError(
                f"{file} is damaged: expected vectors of shape {expected}, got {found}. Remove it, "
                "and run the same `condenser encode` again."
            )


def write_embeddings(
    folder: str | Path,
    vectors: np.ndarray,
    passage_ids: Sequence[str],
    *,
    shard_size: int | None = None,
    retriever_fingerprint: str = "",
    contract: Mapping[str, Any] | None = None,
    passages_fingerprint: str = "",
) -> Embeddings:
    """Write a complete folder of embeddings from an array.

    Args:
        folder: new or empty.
        vectors: (N, D) float32, finite.
        passage_ids: N unique ids.
        shard_size: rows of a shard; by default it depends on N.
        retriever_fingerprint: of the encoder, if it is known.
        contract: the encoder's, if it is known.
        passages_fingerprint: of the passages, if they are known.

    Raises:
        FileExistsError: the folder is not empty.
        ValueError: shapes, types or ids do not fit.
    """
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: name a new folder.")
    if vectors.ndim != 2 or len(vectors) != len(passage_ids):
        raise ValueError(
            f"Got vectors of shape {vectors.shape} and {len(passage_ids)} ids; expected (N, D) and "
            "N ids."
        )
    manifest = Manifest(
        retriever=retriever_fingerprint,
        contract=contract or {},
        passages=passages_fingerprint,
        n_passages=len(vectors),
        dimension=vectors.shape[1],
        shard_size=default_shard_size(len(vectors)) if shard_size is None else shard_size,
    )
    folder.mkdir(parents=True, exist_ok=True)
    manifest.save(folder)
    write_ids(folder, [pa.array(passage_ids, type=pa.large_string())])
    for shard in range(manifest.n_shards):
        rows = manifest.rows(shard)
        write_shard(folder, manifest, shard, vectors[rows.start : rows.stop])
    return Embeddings.open(folder)
