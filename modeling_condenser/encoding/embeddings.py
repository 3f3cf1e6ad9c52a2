"""The embeddings of a collection: a folder of vectors and ids; `encode_collection` makes it.

manifest.json       the fields of `Embeddings`
shard-00000.npy     (rows, D) float32 vectors of consecutive passages; a shard is always complete
passage_ids.arrow   ids in the order of the rows, each with a hash of its title and text
encoding.json       time and hardware of encoding

A repeated call encodes what is missing. This process starts a worker for each further device, and
they divide the missing shards. Importing this module does not import torch.
"""

import hashlib
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast, get_args

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.feather as pf
from datasets import Dataset

from modeling_condenser.collection.collection import fingerprint_passages
from modeling_condenser.collection.rows import iterate_rows
from modeling_condenser.files.models import Dtype, Pooling, Similarity
from modeling_condenser.files.run_folder import (
    atomic_file,
    atomic_folder,
    bar,
    describe_machine,
    folder_lock,
    read_json,
    show_bars,
    write_json,
)

if TYPE_CHECKING:
    from .retriever import Retriever

logger = logging.getLogger(__name__)

MANIFEST_FILE, RECORD_FILE, IDS_FILE = "manifest.json", "encoding.json", "passage_ids.arrow"
_CALL = """
import os, pickle, sys, threading

def end_with_parent():
    os.read(0, 1)  # waits until the parent has ended
    os._exit(1)

work, *rest = pickle.load(sys.stdin.buffer)
threading.Thread(target=end_with_parent, daemon=True).start()
work(*rest)
"""
_MOST_SHARDS = 200  # a search keeps each of them open, and a process may often open 1,024 files

# The type or the allowed values of each setting.
ENCODER_SETTINGS: Mapping[str, Any] = {
    "pooling": get_args(Pooling),
    "similarity": get_args(Similarity),
    "dtype": get_args(Dtype),
    **dict.fromkeys(("query_max_length", "passage_max_length", "token_budget"), int),
    "truncate_dim": int,
    **dict.fromkeys(("title_separator", "query_prompt", "passage_prompt"), str),
}


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
    retriever: str = ""  # `Retriever.passage_fingerprint`
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
        embeddings = cls(folder=Path(folder), **manifest)
        if complete and (missing := embeddings.missing_shards()):
            raise FileNotFoundError(
                f"{folder} is not complete: {len(missing)} of {len(embeddings.shards)} shards are "
                "missing. Run the same `condenser encode` again, which encodes only the missing."
            )
        return embeddings

    def create(self, ids: pa.Array, hashes: np.ndarray | None = None) -> None:
        """Write unique ids, hashes and manifest into a new or empty folder."""
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
        """Read rows of a shard, (rows, D) float32, mapped into memory."""
        if shard not in self._maps:
            self._maps[shard] = np.load(self._file(shard), mmap_mode="r")
        return self._maps[shard][rows]

    @cached_property
    def _maps(self) -> dict[int, np.ndarray]:
        """Shards that were read; they stay readable when an update replaces the folder."""
        return {}

    @property
    def record(self) -> dict[str, Any]:
        """Time and hardware of encoding; empty if encoding did not finish."""
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


def encode_collection(
    retriever: "Retriever",
    passages: Dataset,
    folder: str | Path,
    *,
    shard_size: int | None = None,
    devices: Sequence[str] | None = None,
    is_cache: bool = False,
) -> Embeddings:
    """Encode passages into a folder, continue an interrupted call, or open a finished folder.

    If the folder holds an earlier version of the passages, only new and changed ones are encoded,
    into a folder beside it, where a killed call is continued. Another call for the folder waits.

    Args:
        retriever: on `local_device(devices)`.
        passages: columns `_id`, `title`, `text`.
        folder: new, empty, or of an earlier call.
        shard_size: passages in a shard of a new folder; by default from 256 to 8,192; more
            if there would be more than 200 shards.
        devices: one worker each, such as `["cuda:0", "cuda:1"]`; by default all GPUs if the
            retriever is on one, and its device otherwise.
        is_cache: replace vectors of another model or of other passages, instead of an error.

    Raises:
        ValueError: the folder holds the vectors of another model, or of other passages alone.
        FileExistsError: the folder holds something else.
        RuntimeError: another device's process failed.
    """
    if stored := _open_finished(retriever, passages, Path(folder)):
        return stored
    with folder_lock(Path(folder)):
        return _encode(retriever, passages, Path(folder), shard_size, devices, is_cache)


def _open_finished(retriever: "Retriever", passages: Dataset, folder: Path) -> Embeddings | None:
    """Open a folder that needs no change, for which nothing is locked or written."""
    if not (folder / RECORD_FILE).is_file():
        return None
    stored = Embeddings.open(folder, complete=False)
    wanted = retriever.passage_fingerprint, fingerprint_passages(passages)
    is_finished = (stored.retriever, stored.passages) == wanted and not stored.missing_shards()
    return stored if is_finished else None


def claim_folder(
    retriever: "Retriever", passages: Dataset, folder: str | Path, *, shard_size: int | None = None
) -> Embeddings:
    """Write manifest and ids into a new folder, or open a folder of the same model and passages.

    `shard_size` is raised to a 200th of the passages, because a search opens all shards.

    Raises:
        ValueError: the folder holds the vectors of another model or of other passages.
        FileExistsError: the folder holds something else.
    """
    wanted = Embeddings(
        folder=Path(folder),
        n_passages=len(passages),
        dimension=retriever.dimension,
        shard_size=_choose_shard_size(len(passages), shard_size),
        retriever=retriever.passage_fingerprint,
        contract=asdict(retriever.contract),
        passages=fingerprint_passages(passages),
    )
    if not (wanted.folder / MANIFEST_FILE).is_file():
        wanted.create(id_column(passages), hash_passages(passages))
    embeddings = Embeddings.open(folder, complete=False)
    for name in ("retriever", "passages"):
        if getattr(embeddings, name) != getattr(wanted, name):
            raise ValueError(
                f"{folder} holds the vectors of another {name}, or an earlier version wrote it:"
                " remove it, or choose another folder."
            )
    return embeddings


def _choose_shard_size(n_passages: int, wanted: int | None = None) -> int:
    """The passages of a shard: workers have shards to share, and a process can open all of them."""
    sixteenth, least = -(-n_passages // 16), -(-n_passages // _MOST_SHARDS)
    return max(wanted or min(8192, max(256, sixteenth)), least)


def _encode(
    retriever: "Retriever",
    passages: Dataset,
    folder: Path,
    shard_size: int | None,
    devices: Sequence[str] | None,
    is_cache: bool,
) -> Embeddings:
    """Encode, continue or update, under the folder's lock."""
    if (folder / MANIFEST_FILE).is_file():
        earlier = Embeddings.open(folder, complete=False)
        if earlier.retriever == retriever.passage_fingerprint:
            if earlier.passages != fingerprint_passages(passages):
                return _update(retriever, passages, earlier, devices, is_cache)
        elif is_cache:
            logger.warning("%s is of another model or version, and is made again.", folder)
            shutil.rmtree(folder)
    embeddings = claim_folder(retriever, passages, folder, shard_size=shard_size)
    _encode_missing(retriever, passages, embeddings, devices)
    return embeddings


def _update(
    retriever: "Retriever",
    passages: Dataset,
    earlier: Embeddings,
    devices: Sequence[str] | None,
    is_cache: bool,
) -> Embeddings:
    """Replace embeddings by those of other passages, under the folder's lock."""
    folder = earlier.folder.resolve()  # a link stays one
    rows = _find_stored(earlier, hash_passages(passages))
    is_new = rows < 0
    has_vectors = len(earlier.missing_shards()) < len(earlier.shards)
    if is_new.all() and has_vectors and not is_cache:
        raise ValueError(
            f"{folder} holds the vectors of other passages, none of which is in this "
            "collection: name another folder, or remove this one."
        )
    logger.info(
        "%s: %d new or changed passages are encoded, %d kept.",
        *(folder, is_new.sum(), (~is_new).sum()),
    )
    added = passages.select(np.flatnonzero(is_new))
    beside = folder.with_name(f".{folder.name}.fresh")
    fresh = _encode(retriever, added, beside, None, devices, is_cache=True)
    with atomic_folder(folder) as partial:
        new = claim_folder(retriever, passages, partial, shard_size=earlier.shard_size)
        fresh_rows = np.cumsum(is_new) - 1
        for shard, place in enumerate(new.shards):
            part = slice(place.start, place.stop)
            is_fresh = is_new[part]
            vectors = np.empty((len(place), new.dimension), dtype=np.float32)
            vectors[is_fresh] = fresh.vectors(fresh_rows[part][is_fresh])
            vectors[~is_fresh] = earlier.vectors(rows[part][~is_fresh])
            new.write_shard(shard, vectors)
        write_json(partial / RECORD_FILE, fresh.record)
    shutil.rmtree(beside)
    return Embeddings.open(folder)


def _find_stored(embeddings: Embeddings, hashes: np.ndarray) -> np.ndarray:
    """The rows of passages with these hashes, (N,) int64; -1 where there is no vector."""
    stored = embeddings.hashes
    if not len(stored):
        return np.full(len(hashes), -1)
    order = np.argsort(stored)
    places = np.searchsorted(stored, hashes, sorter=order)
    rows = order[np.minimum(places, len(order) - 1)]
    is_encoded = ~np.isin(rows // embeddings.shard_size, embeddings.missing_shards())
    return np.where((stored[rows] == hashes) & is_encoded, rows, -1)


def _encode_missing(
    retriever: "Retriever",
    passages: Dataset,
    embeddings: Embeddings,
    devices: Sequence[str] | None,
) -> None:
    """Encode the missing shards on all devices, and write the record."""
    missing = embeddings.missing_shards()
    if embeddings.record and not missing:
        return
    logger.info("Encoding %d shards: %s", len(missing), embeddings.folder)
    used = _worker_devices(retriever, devices, n_shards=len(missing))
    started = time.perf_counter()
    job = (passages, embeddings)
    workers = dict[str, subprocess.Popen[bytes]]()
    try:
        for rank, device in enumerate(used[1:], start=1):
            arguments = {**retriever.arguments, "device": device}
            worker = _start(_work, retriever.folder, arguments, *job, missing[rank :: len(used)])
            workers[f"{device} ({rank})"] = worker
        _write_shards(retriever, *job, missing[:: len(used)])
        for device, worker in workers.items():
            if worker.wait():
                raise RuntimeError(f"Encoding on {device} failed; its error is above.")
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.wait()
            cast(IO[bytes], worker.stdin).close()
    seconds = time.perf_counter() - started
    n_encoded = sum(len(embeddings.shards[shard]) for shard in missing)
    record = {
        "n_encoded": n_encoded,
        "seconds": seconds,
        "passages_per_second": n_encoded / seconds if n_encoded else None,
        "devices": used,
        "machine": describe_machine(),
    }
    write_json(embeddings.folder / RECORD_FILE, record)


def encode_shards(
    retriever: "Retriever", passages: Dataset, embeddings: Embeddings, n_workers: int, rank: int
) -> None:
    """Encode the missing shards i with i % n_workers == rank; only rank 0 shows progress bars."""
    shards = [shard for shard in embeddings.missing_shards() if shard % n_workers == rank]
    with show_bars(rank == 0):
        _write_shards(retriever, passages, embeddings, shards)


def _write_shards(
    retriever: "Retriever", passages: Dataset, embeddings: Embeddings, shards: Sequence[int]
) -> None:
    for shard in bar(shards, "shards", unit="shard"):
        part = passages.select(embeddings.shards[shard])
        embeddings.write_shard(shard, retriever.encode_passages(part))


def _start(work: Callable[..., None], *arguments: Any) -> subprocess.Popen[bytes]:
    """Call a function in a new process, which ends when this one does.

    Not by multiprocessing, which would run the caller's script again.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CALL],  # without the working folder, which has other files
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        stdin=subprocess.PIPE,
    )
    assert process.stdin
    pickle.dump((work, *arguments), process.stdin)
    process.stdin.flush()
    return process


def _work(model: Path, arguments: dict[str, Any], *job: Any) -> None:
    """Encode in a new process, on another device."""
    from .retriever import Retriever

    with show_bars(False):
        _write_shards(Retriever(model, **arguments), *job)


def split_devices(devices: str | None) -> list[str] | None:
    """The devices of a setting, such as "cuda:0,cuda:1"; None for the default."""
    return [device.strip() for device in devices.split(",")] if devices else None


def local_device(devices: Sequence[str] | None) -> str | None:
    """The device of this process's retriever; None for the default."""
    return devices[0] if devices else None


def _worker_devices(
    retriever: "Retriever", devices: Sequence[str] | None, *, n_shards: int
) -> list[str]:
    """The device of each worker, of which there are no more than shards; this process is first."""
    import torch

    here = retriever.model.device
    others = list(devices or [])[1:]
    if devices is None and here.type == "cuda":
        gpus = range(torch.cuda.device_count())
        others = [f"cuda:{gpu}" for gpu in gpus if gpu != (here.index or 0)]
    return [str(here), *others][: max(n_shards, 1)]
