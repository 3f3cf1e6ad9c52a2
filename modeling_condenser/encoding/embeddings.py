"""Embeddings: the vectors and ids of a collection's passages, in a folder.

In: the shards (`shards.py`) and ids (`passage_ids.py`) that `encode.py` wrote, or arrays. Out:
vectors and ids mapped into memory, shard by shard, so that no search needs to hold a collection.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from tqdm.auto import tqdm

from .passage_ids import (
    ID_ORDER_FILE,
    IDS_FILE,
    IDS_RECORD_FILE,
    PassageIds,
    find_ids_damage,
    write_ids,
)
from .record import RECORD_FILE
from .shards import (
    Manifest,
    default_shard_size,
    find_shard_damage,
    record_name,
    shard_name,
    write_shard,
)


@dataclass(frozen=True)
class Embeddings:
    """The vectors of N passages, complete, in a folder.

    Attributes:
        folder: that holds them.
    """

    folder: Path
    _manifest: Manifest = field(repr=False)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a folder of embeddings. Presence and sizes are checked; see `verify` for the rest.

        Raises:
            FileNotFoundError: there are no embeddings, or not all of them.
            ValueError: a file is not what the manifest says.
        """
        folder = Path(folder)
        manifest = Manifest.load(folder)
        names = {entry.name for entry in folder.iterdir()}
        shards = range(manifest.n_shards)
        missing = [i for i in shards if not {shard_name(i), record_name(i)} <= names]
        if missing or not {IDS_FILE, ID_ORDER_FILE, IDS_RECORD_FILE} <= names:
            raise FileNotFoundError(
                f"{folder} is not complete: {manifest.n_shards - len(missing)} of "
                f"{manifest.n_shards} shards are done. Run the same `condenser encode` again, "
                "which goes on where it ended."
            )
        for shard in shards:
            size = (folder / shard_name(shard)).stat().st_size
            if size != manifest.shard_bytes(shard):
                raise ValueError(
                    f"{folder / shard_name(shard)} has {size} bytes, expected "
                    f"{manifest.shard_bytes(shard)}: it is damaged. Run the same `condenser "
                    "encode` again, which encodes it anew."
                )
        return cls(folder, manifest)

    def verify(self, *, progress: bool = False) -> None:
        """Check every file against its checksum, and every vector for NaN and infinity.

        Raises:
            ValueError: names what is damaged.
        """
        found = {IDS_FILE: find_ids_damage(self.folder, self.n_passages)}
        shards = range(self._manifest.n_shards)
        for shard in tqdm(shards, desc="check", unit="shard", delay=1, disable=not progress):
            found[shard_name(shard)] = find_shard_damage(self.folder, self._manifest, shard)
        damaged = {name: damage for name, damage in found.items() if damage}
        if damaged:
            raise ValueError(
                f"{self.folder} is damaged: {'; '.join(damaged.values())}. Run the same "
                "`condenser encode` again, which encodes these anew."
            )

    @property
    def manifest(self) -> dict[str, Any]:
        """Whose vectors these are, as `manifest.json` says it."""
        return asdict(self._manifest)

    @property
    def record(self) -> dict[str, Any]:
        """What encoding took, as `encoding.json` says it; empty for vectors from an array."""
        file = self.folder / RECORD_FILE
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    @property
    def n_passages(self) -> int:
        return self._manifest.n_passages

    @property
    def dimension(self) -> int:
        return self._manifest.dimension

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """The shards in order: first row, and (rows, D) float32 mapped into memory."""
        for shard in range(self._manifest.n_shards):
            yield self._manifest.rows(shard).start, self._map(shard)

    @cached_property
    def passage_ids(self) -> PassageIds:
        """The ids, in the order of the rows."""
        return PassageIds(self.folder / IDS_FILE)

    @cached_property
    def id_order(self) -> np.ndarray:
        """Each id's place among the sorted ids (by code point): (N,) int64, mapped into memory."""
        return np.load(self.folder / ID_ORDER_FILE, mmap_mode="r")

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """The vectors of (k,) rows from 0 to N - 1, in their order: (k, D) float32, a copy.

        Raises:
            IndexError: a row outside of the collection.
        """
        rows = np.asarray(rows, dtype=np.int64)
        outside = (rows < 0) | (rows >= self.n_passages)
        if outside.any():
            raise IndexError(f"row {rows[outside][0]}: expected 0 to {self.n_passages - 1}")
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)  # (k, D)
        shards = rows // self._manifest.shard_size
        for shard in np.unique(shards):
            here = shards == shard
            vectors[here] = self._map(int(shard))[rows[here] % self._manifest.shard_size]
        return vectors

    def _map(self, shard: int) -> np.ndarray:
        return np.load(self.folder / shard_name(shard), mmap_mode="r")


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
        shard_size: rows of a shard; by default some that suit N.
        retriever_fingerprint: of what made the vectors, if it is known.
        contract: by which they were made.
        passages_fingerprint: of what they were made from.

    Raises:
        FileExistsError: the folder holds something.
        ValueError: shapes, types or ids do not fit.
    """
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: name a new folder.")
    if vectors.ndim != 2 or len(vectors) != len(passage_ids):
        raise ValueError(
            f"vectors of shape {vectors.shape} and {len(passage_ids)} ids: expected (N, D) and N."
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
