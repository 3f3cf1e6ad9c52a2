"""Encodes a collection into a folder of embeddings; a repeated call encodes the missing shards.

This process starts a worker for each further device; of n workers, worker r encodes the shards i
with i % n == r.
"""

import logging
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import torch
from datasets import Dataset

from modeling_condenser.collection.collection import fingerprint_passages
from modeling_condenser.runs.progress import bar, show_bars
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.runs.whole_files import write_json

from .embeddings import MANIFEST_FILE, RECORD_FILE, Embeddings, id_column
from .opening import check_devices
from .retriever import Retriever

logger = logging.getLogger(__name__)


def encode_collection(
    retriever: Retriever,
    passages: Dataset,
    folder: str | Path,
    *,
    shard_size: int | None = None,
    devices: Sequence[str] | None = None,
) -> Embeddings:
    """Encode passages into a folder, continue an interrupted call, or open a finished folder.

    A script that uses several devices needs `if __name__ == "__main__":`.

    Args:
        retriever: on `local_device(devices)`.
        passages: columns `_id`, `title`, `text`.
        folder: new, empty, or of an earlier call.
        shard_size: passages in a shard of a new folder; by default from 256 to 8,192.
        devices: one worker each, such as `["cuda:0", "cuda:1"]`; by default all GPUs if the
            retriever is on one, and its device otherwise.

    Raises:
        ValueError: the folder holds other embeddings, or an argument is wrong.
        FileExistsError: the folder holds something else.
    """
    sixteenth = -(-len(passages) // 16)  # so that workers have shards to share
    size = min(8192, max(256, sixteenth)) if shard_size is None else shard_size
    embeddings = claim_folder(retriever, passages, folder, shard_size=size)
    missing = embeddings.missing_shards()
    if embeddings.record and not missing:
        return embeddings
    logger.info("Encoding %d of %d shards: %s", len(missing), len(embeddings.shards), folder)
    used, started = _worker_devices(retriever, devices), time.perf_counter()
    how: dict[str, Any] = {"dtype": retriever.dtype, "token_budget": retriever.token_budget}
    how |= {"truncate_dim": retriever.truncate_dim, **retriever.settings}
    job = (passages, embeddings, len(used))
    with ProcessPoolExecutor(len(used), mp_context=get_context("spawn")) as pool:
        workers = [
            pool.submit(_work, retriever.folder, {**how, "device": used[i]}, *job, i)
            for i in range(1, len(used))
        ]
        encode_shards(retriever, *job, 0)
        for worker in workers:
            worker.result()
    n_encoded = sum(len(embeddings.shards[shard]) for shard in missing)
    record = _record(n_encoded, time.perf_counter() - started, used)
    write_json(embeddings.folder / RECORD_FILE, record)
    return embeddings


def encode_shards(
    retriever: Retriever, passages: Dataset, embeddings: Embeddings, n_workers: int, rank: int
) -> None:
    """Encode the missing shards i with i % n_workers == rank."""
    own = [shard for shard in embeddings.missing_shards() if shard % n_workers == rank]
    with show_bars(rank == 0):
        shards = bar(own, "encode", unit="shard")
    with show_bars(False):  # of texts within a shard
        for shard in shards:
            some = passages.select(embeddings.shards[shard])
            embeddings.write_shard(shard, retriever.encode_passages(some))


def _work(model: Path, settings: dict[str, Any], *job: Any) -> None:
    """Encode in a new process, on another device."""
    encode_shards(Retriever(model, **settings), *job)


def claim_folder(
    retriever: Retriever,
    passages: Dataset,
    folder: str | Path,
    *,
    shard_size: int,
) -> Embeddings:
    """Write manifest and ids, or check those of an earlier call; see `encode_collection`."""
    if shard_size < 1:
        raise ValueError(f"shard_size is {shard_size}, expected at least 1.")
    wanted = Embeddings(
        folder=Path(folder),
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
    if not (wanted.folder / MANIFEST_FILE).is_file():
        wanted.create(id_column(passages))
    embeddings = Embeddings.open(folder, complete=False)
    names = ("retriever", "passages")
    if changed := [n for n in names if getattr(embeddings, n) != getattr(wanted, n)]:
        raise ValueError(
            f"{folder} holds other embeddings, with a different {', '.join(changed)}: remove it, or"
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
