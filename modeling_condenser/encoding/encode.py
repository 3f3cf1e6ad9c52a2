"""Encodes a collection into a folder of embeddings; a repeated call encodes what is missing.

This process starts a worker for each further device; of n workers, worker r encodes the shards i
with i % n == r.
"""

import logging
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from datasets import Dataset

from modeling_condenser.collection.collection import fingerprint_passages
from modeling_condenser.files.atomic import replace_folder, write_json
from modeling_condenser.files.models import read_json
from modeling_condenser.files.progress import bar, show_bars
from modeling_condenser.files.run_folder import describe_machine

from .embeddings import MANIFEST_FILE, RECORD_FILE, Embeddings, hash_passages, id_column
from .opening import check_devices
from .retriever import Retriever

logger = logging.getLogger(__name__)

_LEAST_KEPT = 0.01  # of two collections, so that a blank text in both does not make them one


@dataclass(frozen=True)
class _Kept:
    """Vectors of earlier embeddings that are not encoded again.

    `rows`, (N,) int64, has the row there of each passage, or -1 if it is new or changed.
    """

    embeddings: Embeddings
    rows: np.ndarray

    @property
    def n_used(self) -> int:
        return len(np.unique(self.rows[self.rows >= 0]))

    @property
    def is_of_another_collection(self) -> bool:
        """Whether at most 1 % of the passages of either collection are in both."""
        missing = self.embeddings.missing_shards()
        shards = enumerate(self.embeddings.shards)
        n_stored = sum(len(rows) for shard, rows in shards if shard not in missing)
        n_kept = int((self.rows >= 0).sum())
        return self.n_used <= _LEAST_KEPT * n_stored > 0 and n_kept <= _LEAST_KEPT * len(self.rows)


def encode_collection(
    retriever: Retriever,
    passages: Dataset,
    folder: str | Path,
    *,
    shard_size: int | None = None,
    devices: Sequence[str] | None = None,
    replace_all: bool = False,
) -> Embeddings:
    """Encode passages into a folder, continue an interrupted call, or open a finished folder.

    If the folder holds an earlier version of the passages, only new and changed ones are encoded,
    into a folder beside it that replaces it at the end. The result is that of a new folder: bit for
    bit on the same CPU with as many threads, but for float error on a GPU and with int8 weights.

    A script that uses several devices needs `if __name__ == "__main__":`.

    Args:
        retriever: on `local_device(devices)`.
        passages: columns `_id`, `title`, `text`.
        folder: new, empty, or of an earlier call.
        shard_size: passages in a shard of a new folder; by default from 256 to 8,192.
        devices: one worker each, such as `["cuda:0", "cuda:1"]`; by default all GPUs if the
            retriever is on one, and its device otherwise.
        replace_all: replace earlier vectors even if none of them is of these passages.

    Raises:
        ValueError: the folder holds the vectors of another model, or of other passages alone, or an
            argument is wrong.
        FileExistsError: the folder holds something else.
    """
    sixteenth = -(-len(passages) // 16)  # so that workers have shards to share
    size = min(8192, max(256, sixteenth)) if shard_size is None else shard_size
    wanted = _describe(retriever, passages, Path(folder), shard_size=size)
    if (wanted.folder / MANIFEST_FILE).is_file():
        earlier = Embeddings.open(wanted.folder, complete=False)
        if earlier.retriever == wanted.retriever and earlier.passages != wanted.passages:
            return _update(earlier, wanted, retriever, passages, devices, replace_all)
    embeddings = _claim(wanted, passages)
    _encode_missing(retriever, passages, embeddings, devices)
    return embeddings


def _update(
    earlier: Embeddings,
    wanted: Embeddings,
    retriever: Retriever,
    passages: Dataset,
    devices: Sequence[str] | None,
    replace_all: bool,
) -> Embeddings:
    """Replace embeddings by those of other passages, and continue a killed call that did."""
    folder = earlier.folder
    origin = earlier.origin or earlier.passages
    new = replace(wanted, folder=folder.with_name(f".{folder.name}.update"), origin=origin)
    begun = read_json(new.folder / MANIFEST_FILE, {})
    if (begun.get("passages"), begun.get("retriever")) != (new.passages, new.retriever):
        shutil.rmtree(new.folder, ignore_errors=True)
    embeddings = _claim(new, passages)
    kept = _find_kept(earlier, embeddings)
    if kept is not None and kept.is_of_another_collection and not replace_all:
        shutil.rmtree(new.folder)
        raise ValueError(
            f"{folder} holds the vectors of other passages, of which {kept.n_used:,} of "
            f"{earlier.n_passages:,} are in this collection: name another folder, or remove this "
            "one."
        )
    _encode_missing(retriever, passages, embeddings, devices, kept)
    replace_folder(folder, new.folder)
    return Embeddings.open(folder)


def _find_kept(earlier: Embeddings, new: Embeddings) -> _Kept | None:
    """Find the passages whose vectors are in earlier embeddings, finished or not."""
    old_hashes, hashes = earlier.hashes, new.hashes
    if old_hashes is None or hashes is None:
        logger.warning(
            "%s has no hashes of its passages, because an older version wrote it: all passages are"
            " encoded again.",
            earlier.folder,
        )
        return None
    order = np.argsort(old_hashes)
    places = np.searchsorted(old_hashes, hashes, sorter=order)
    rows = order[np.minimum(places, len(order) - 1)]
    is_there = ~np.isin(rows // earlier.shard_size, earlier.missing_shards())
    rows = np.where((old_hashes[rows] == hashes) & is_there, rows, -1)
    kept, n_kept = _Kept(earlier, rows), int((rows >= 0).sum())
    logger.info(
        "%s: %d new or changed passages are encoded, %d kept, %d deleted or changed ones dropped.",
        *(earlier.folder, len(rows) - n_kept, n_kept, earlier.n_passages - kept.n_used),
    )
    return kept


def _encode_missing(
    retriever: Retriever,
    passages: Dataset,
    embeddings: Embeddings,
    devices: Sequence[str] | None,
    kept: _Kept | None = None,
) -> None:
    """Encode the missing shards on all devices, and write the record."""
    missing = embeddings.missing_shards()
    if embeddings.record and not missing:
        return
    if missing:
        n_shards = len(embeddings.shards)
        logger.info("Encoding %d of %d shards: %s", len(missing), n_shards, embeddings.folder)
    used, started = _worker_devices(retriever, devices), time.perf_counter()
    how: dict[str, Any] = {"dtype": retriever.dtype, "token_budget": retriever.token_budget}
    how |= {"truncate_dim": retriever.truncate_dim, **retriever.settings}
    job = (passages, embeddings, len(used))
    with ProcessPoolExecutor(len(used), mp_context=get_context("spawn")) as pool:
        workers = [
            pool.submit(_work, retriever.folder, {**how, "device": used[i]}, *job, i, kept)
            for i in range(1, len(used))
        ]
        try:
            encode_shards(retriever, *job, 0, kept, after_shard=partial(_raise_errors, workers))
            for worker in as_completed(workers):
                worker.result()
        except BaseException:
            for process in pool._processes.values():  # Python 3.14 has terminate_workers()
                process.terminate()
            raise
    n_encoded = sum(len(_new_rows(embeddings.shards[shard], kept)) for shard in missing)
    record = _record(n_encoded, time.perf_counter() - started, used)
    write_json(embeddings.folder / RECORD_FILE, record)


def encode_shards(
    retriever: Retriever,
    passages: Dataset,
    embeddings: Embeddings,
    n_workers: int,
    rank: int,
    kept: _Kept | None = None,
    *,
    after_shard: Callable[[], None] = lambda: None,
) -> None:
    """Encode the missing shards i with i % n_workers == rank; `after_shard` is called after each.

    The bar shows the passages of this worker.
    """
    own = [shard for shard in embeddings.missing_shards() if shard % n_workers == rank]
    new = {shard: _new_rows(embeddings.shards[shard], kept) for shard in own}
    with (
        show_bars(rank == 0),
        bar(None, "encode", unit="passage", total=sum(map(len, new.values()))) as shown,
    ):
        for shard in own:
            rows = embeddings.shards[shard]
            vectors = np.empty((len(rows), embeddings.dimension), dtype=np.float32)
            if kept:
                old = kept.rows[rows.start : rows.stop]
                vectors[old >= 0] = kept.embeddings.vectors(old[old >= 0])
            if len(new[shard]):
                found = retriever.encode_passages(passages.select(new[shard]), shown=shown)
                vectors[np.asarray(new[shard]) - rows.start] = found
            embeddings.write_shard(shard, vectors)
            after_shard()


def _raise_errors(workers: Sequence[Future]) -> None:
    """Raise the error of a worker that failed."""
    for worker in workers:
        if worker.done():
            worker.result()


def _new_rows(rows: range, kept: _Kept | None) -> Sequence[int]:
    """Which rows of a shard are encoded."""
    if kept is None:
        return rows
    return [row for row in rows if kept.rows[row] < 0]


def _work(model: Path, settings: dict[str, Any], *job: Any) -> None:
    """Encode in a new process, on another device."""
    encode_shards(Retriever(model, **settings), *job)


def claim_folder(
    retriever: Retriever, passages: Dataset, folder: str | Path, *, shard_size: int
) -> Embeddings:
    """Write manifest and ids, or check those of an earlier call; see `encode_collection`.

    Raises a ValueError if the folder holds other passages.
    """
    return _claim(_describe(retriever, passages, Path(folder), shard_size=shard_size), passages)


def _describe(
    retriever: Retriever, passages: Dataset, folder: Path, *, shard_size: int
) -> Embeddings:
    if shard_size < 1:
        raise ValueError(f"shard_size is {shard_size}, expected at least 1.")
    return Embeddings(
        folder=folder,
        n_passages=len(passages),
        dimension=retriever.dimension,
        shard_size=shard_size,
        retriever=retriever.fingerprint,
        contract=asdict(retriever.contract),
        passages=fingerprint_passages(passages),
        computation={
            "device": retriever.model.device.type,
            "token_budget": retriever.token_budget,
            "dtype": retriever.dtype,
        },
    )


def _claim(wanted: Embeddings, passages: Dataset) -> Embeddings:
    """Write the manifest and the ids of embeddings, or open the same ones."""
    if not (wanted.folder / MANIFEST_FILE).is_file():
        wanted.create(id_column(passages), hash_passages(passages))
    embeddings = Embeddings.open(wanted.folder, complete=False)
    names = ("retriever", "passages")
    if changed := [n for n in names if getattr(embeddings, n) != getattr(wanted, n)]:
        raise ValueError(
            f"{wanted.folder} holds the vectors of another {' and '.join(changed)}: remove it, or"
            " choose another folder."
        )
    return embeddings


def local_device(devices: Sequence[str] | None) -> str | None:
    """Check the devices, and return that of this process's retriever; None for the default."""
    if not devices:
        return None
    check_devices(devices)
    return devices[0]


def _worker_devices(retriever: Retriever, devices: Sequence[str] | None) -> list[str]:
    """List the device of each worker; this process is the first."""
    own = retriever.model.device
    others = list(devices or [])[1:]
    if devices is None and own.type == "cuda":
        gpus = range(torch.cuda.device_count())
        others = [f"cuda:{gpu}" for gpu in gpus if gpu != (own.index or 0)]
    return [str(own), *others]


def _record(n_encoded: int, seconds: float, devices: list[str]) -> dict[str, Any]:
    """Describe the last call; memory is that of this process, including mapped files."""
    is_gpu = devices[0].startswith("cuda")
    return {
        "n_encoded": n_encoded,
        "seconds": seconds,
        "passages_per_second": n_encoded / seconds if n_encoded else None,
        "n_processes": len(devices),
        "devices": sorted(set(devices)),
        "peak_memory_bytes": _peak_memory_bytes(),
        "peak_accelerator_bytes": torch.cuda.max_memory_allocated(devices[0]) if is_gpu else None,
        "machine": describe_machine(),
    }


def _peak_memory_bytes() -> int:
    """The largest resident memory of this process so far."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource  # which Windows lacks; psutil has no peak elsewhere

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
