"""Shards: how the vectors of a collection lie on disk, and how a damaged one is found.

manifest.json      whose vectors these are: retriever, contract, passages, and how they are cut
shard-00000.npy    (rows, D) float32 vectors of consecutive passages
shard-00000.json   its place and checksum; written after it, so that a shard without one is not done
"""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from modeling_condenser.runs.whole_files import npy_header, whole_file, write_json

VERSION = 1
MANIFEST_FILE = "manifest.json"
_SMALLEST_SHARD, _LARGEST_SHARD, _SHARDS_TO_SHARE = 256, 8192, 16


def default_shard_size(n_passages: int) -> int:
    """Rows of a shard: enough shards to share out, each long enough to sort texts by length.

    It follows from the collection alone, since a text's batch, and so the last bits of its vector,
    depend on its shard.
    """
    return min(_LARGEST_SHARD, max(_SMALLEST_SHARD, -(-n_passages // _SHARDS_TO_SHARE)))


@dataclass(frozen=True)
class Manifest:
    """Whose vectors a folder holds, and how they are cut into shards.

    Attributes:
        retriever: fingerprint of weights, tokenizer and contract.
        contract: of encoding, as plain values.
        passages: fingerprint of ids, titles and texts.
        n_passages: N.
        dimension: D.
        shard_size: rows of every shard but the last.
        computation: what only the last bits of the vectors depend on: kind of device, number of
            threads, tokens in a batch.
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
            ValueError: it is not a manifest, or one of another version.
        """
        file = folder / MANIFEST_FILE
        if not file.is_file():
            raise FileNotFoundError(
                f"{folder} holds no embeddings ({MANIFEST_FILE} is missing): write them with "
                "`condenser encode`, or mend the path."
            )
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            found = content["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is no manifest of embeddings: restore it, or remove the folder and encode "
                "the collection again."
            ) from error
        names = {own.name for own in fields(cls)}
        if found != VERSION or set(content) != names:
            raise ValueError(
                f"{file} is of version {found} with {', '.join(sorted(content))}; expected version "
                f"{VERSION} with {', '.join(sorted(names))}: encode the collection again into "
                "another folder."
            )
        return cls(**content)

    def save(self, folder: Path) -> None:
        """Write it into a folder, whole."""
        write_json(folder / MANIFEST_FILE, asdict(self))

    @property
    def n_shards(self) -> int:
        return -(-self.n_passages // self.shard_size)

    def rows(self, shard: int) -> range:
        """The passages whose vectors a shard holds."""
        first = shard * self.shard_size
        return range(first, min(first + self.shard_size, self.n_passages))

    def shard_bytes(self, shard: int) -> int:
        """How large a shard's file is."""
        shape = (len(self.rows(shard)), self.dimension)
        return len(npy_header(shape, np.dtype(np.float32))) + 4 * shape[0] * shape[1]


def shard_name(shard: int) -> str:
    return f"shard-{shard:05d}.npy"


def record_name(shard: int) -> str:
    return f"shard-{shard:05d}.json"


def write_shard(
    folder: Path,
    manifest: Manifest,
    shard: int,
    vectors: np.ndarray,
    *,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write a shard and then its record.

    Args:
        folder: of the embeddings.
        manifest: of the folder.
        shard: its number.
        vectors: (rows, D) float32.
        facts: put into the record beside place and checksum, such as seconds.

    Raises:
        ValueError: the vectors have another shape or type, or are not finite; names the row.
        OSError: they cannot be written; what was there stays as it was.
    """
    rows = manifest.rows(shard)
    expected = (len(rows), manifest.dimension)
    if vectors.shape != expected or vectors.dtype != np.float32:
        raise ValueError(
            f"shard {shard} has vectors of shape {vectors.shape} and type {vectors.dtype}: "
            f"expected {expected} and float32."
        )
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{np.count_nonzero(~finite)} of {len(rows)} vectors of shard {shard} hold NaN or "
            f"infinity, the first that of the passage in row {rows[int(np.argmin(finite))]}: look "
            "for a diverged checkpoint, or for overflow in half precision."
        )
    vectors = np.ascontiguousarray(vectors)
    header = npy_header(vectors.shape, vectors.dtype)
    checksum = hashlib.sha256(header)
    checksum.update(vectors.data)
    with whole_file(folder / shard_name(shard)) as file:
        file.write(header)
        file.write(vectors.data)
    record = {"first_row": rows.start, "rows": len(rows), "sha256": checksum.hexdigest()}
    write_json(folder / record_name(shard), {**record, **(facts or {})})


def read_record(folder: Path, shard: int) -> dict[str, Any] | None:
    """A shard's record; None where there is none that can be read."""
    try:
        record = json.loads((folder / record_name(shard)).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def find_shard_damage(folder: Path, manifest: Manifest, shard: int) -> str | None:
    """What is wrong with a shard that should be done; None if nothing is."""
    name = shard_name(shard)
    record = read_record(folder, shard)
    if record is None:
        return f"{record_name(shard)} is missing or cannot be read"
    rows = manifest.rows(shard)
    if (record.get("first_row"), record.get("rows")) != (rows.start, len(rows)):
        return f"{record_name(shard)} names other rows"
    try:
        content = (folder / name).read_bytes()
    except FileNotFoundError:
        return f"{name} is missing"
    if len(content) != manifest.shard_bytes(shard):
        return f"{name} has {len(content)} bytes instead of {manifest.shard_bytes(shard)}"
    if hashlib.sha256(content).hexdigest() != record.get("sha256"):
        return f"{name} has been changed"
    if not np.isfinite(np.load(io.BytesIO(content))).all():
        return f"{name} holds NaN or infinity"
    return None
