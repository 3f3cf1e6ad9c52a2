"""Encode a collection into a folder of embeddings; after a kill, only its missing shards.

Rank r of torchrun or `accelerate launch` encodes the shards i with i % WORLD_SIZE == r. Without a
launcher, this process starts a worker for each further device.
"""

import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import multiprocessing
from tqdm.auto import tqdm

from modeling_condenser.collection.collection import fingerprint_passages
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.runs.whole_files import is_partial, write_json

from .embeddings import (
    IDS_FILE,
    MANIFEST_FILE,
    RECORD_FILE,
    Embeddings,
    Manifest,
    default_shard_size,
    id_column,
    write_ids,
    write_shard,
)
from .retriever import Retriever

logger = logging.getLogger(__name__)


def encode_collection(
    retriever: Retriever,
    passages: Dataset,
    folder: str | Path,
    *,
    shard_size: int | None = None,
    devices: Sequence[str] | None = None,
    progress: bool = True,
) -> Embeddings:
    """Encode passages into a folder, continue an interrupted call, or open a finished folder.

    Under torchrun every rank calls this with the same arguments and a shared folder. With several
    devices, a script must guard its entry point with `if __name__ == "__main__":`.

    Args:
        retriever: on `local_device(devices)`.
        passages: columns `_id`, `title`, `text`.
        folder: new, empty, or of an earlier call.
        shard_size: passages in a shard; by default the folder's, or chosen by their number.
        devices: one worker each, such as `["cuda:0", "cuda:1"]`; by default all GPUs for a
            retriever on a GPU, and the retriever's device otherwise.
        progress: show a bar for this process's shards.

    Raises:
        ValueError: the folder holds something else, or the passages do not fit.
    """
    folder = Path(folder)
    rank, n_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    manifest = _describe(retriever, passages, shard_size)
    if rank == 0 and not (folder / MANIFEST_FILE).is_file():
        _begin(folder, manifest, passages)
    _wait_until((folder / MANIFEST_FILE).is_file)
    there = Manifest.load(folder)
    if shard_size is None:
        manifest = replace(manifest, shard_size=there.shard_size)
    _check_same(folder, there, manifest)
    missing = manifest.missing_shards(folder)
    if (folder / RECORD_FILE).is_file() and not missing:
        return Embeddings.open(folder)
    logger.info("Encoding %d of %d shards", len(missing), manifest.n_shards)
    used = _worker_devices(retriever, devices) if n_ranks == 1 else [str(retriever.model.device)]
    started = time.perf_counter()
    own = [shard for shard in missing if shard % n_ranks == rank]
    _encode(retriever, passages, folder, manifest, own, used, progress=progress and rank == 0)
    _wait_until(lambda: not manifest.missing_shards(folder))  # of the other ranks
    if rank == 0:
        for left in filter(is_partial, folder.iterdir()):  # by killed processes
            left.unlink(missing_ok=True)
        n_encoded = sum(len(manifest.rows(shard)) for shard in missing)
        seconds = time.perf_counter() - started
        write_json(folder / RECORD_FILE, _record(manifest, n_encoded, seconds, used * n_ranks))
    return Embeddings.open(folder)


def local_device(devices: Sequence[str] | None) -> str | None:
    """The device for this process's retriever; under torchrun each rank has another one."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if devices:
        return devices[local_rank % len(devices)]
    if "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return f"cuda:{local_rank % torch.cuda.device_count()}"
    return None


def _worker_devices(retriever: Retriever, devices: Sequence[str] | None) -> list[str]:
    """The device of each worker, this process's first."""
    own = retriever.model.device
    others = list(devices[1:]) if devices else []
    if devices is None and own.type == "cuda":
        gpus = range(torch.cuda.device_count())
        others = [f"cuda:{gpu}" for gpu in gpus if gpu != (own.index or 0)]
    return [str(own), *others]


def _describe(retriever: Retriever, passages: Dataset, shard_size: int | None) -> Manifest:
    if not {"_id", "title", "text"} <= set(passages.column_names) or not len(passages):
        raise ValueError(
            f"Got {len(passages)} passages with the columns {', '.join(passages.column_names)}; "
            "expected at least one, with _id, title and text."
        )
    return Manifest(
        retriever=retriever.fingerprint,
        contract=asdict(retriever.contract),
        passages=fingerprint_passages(passages),
        n_passages=len(passages),
        dimension=retriever.dimension,
        shard_size=shard_size or default_shard_size(len(passages)),
        computation={
            "device": retriever.model.device.type,
            "token_budget": retriever.token_budget,
            "dtype": retriever.dtype,
        },
    )


def _begin(folder: Path, manifest: Manifest, passages: Dataset) -> None:
    """Write ids and manifest into a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(not is_partial(entry) and entry.name != IDS_FILE for entry in folder.iterdir()):
        raise ValueError(
            f"{folder} is not empty and holds no embeddings ({MANIFEST_FILE} is missing): choose "
            "another folder."
        )
    write_ids(folder, id_column(passages))
    write_json(folder / MANIFEST_FILE, asdict(manifest))


def _check_same(folder: Path, there: Manifest, now: Manifest) -> None:
    """Raise a ValueError unless a folder's vectors are those that would be made now."""
    before, after = ({**asdict(m), **m.contract, **m.computation} for m in (there, now))
    changed = [
        f"{name} is {_short(before[name])} there and {_short(after[name])} now"
        for name in (*now.contract, "dtype", "shard_size", "passages", "retriever")
        if before.get(name, after[name]) != after[name]
    ]
    if changed:
        raise ValueError(
            f"{folder} holds other embeddings: {'; '.join(changed)}. Choose another folder, or "
            "remove this one to encode again."
        )


def _short(value: Any) -> str:
    """A value for errors; of a fingerprint the beginning."""
    return repr(value[:12] if isinstance(value, str) else value)


def _wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for another rank; the launcher ends all ranks if one fails."""
    while not is_true():
        time.sleep(0.1)


def _encode(
    retriever: Retriever,
    passages: Dataset,
    folder: Path,
    manifest: Manifest,
    shards: list[int],
    devices: list[str],
    *,
    progress: bool = False,
) -> None:
    """Encode shards, with a further process for each device but the first."""
    shares = [shards[worker :: len(devices)] for worker in range(len(devices))]
    job = (passages, folder, manifest)
    arguments = (retriever.folder, retriever.settings, devices[1:], shares[1:], job)
    workers: Any = multiprocessing.spawn(_work, arguments, len(devices) - 1, join=False)
    try:
        for shard in tqdm(shares[0], desc="encode", unit="shard", disable=not progress):
            rows = manifest.rows(shard)
            write_shard(folder, shard, retriever.encode_passages(passages.select(rows)))
        while not workers.join():
            pass
    finally:
        for process in workers.processes:
            process.terminate()


def _work(
    worker: int,
    model: Path,
    settings: dict[str, Any],
    devices: list[str],
    shares: list[list[int]],
    job: tuple[Dataset, Path, Manifest],
) -> None:
    retriever = Retriever(model, device=devices[worker], **settings)
    _encode(retriever, *job, shares[worker], devices[worker : worker + 1])


def _record(
    manifest: Manifest, n_encoded: int, seconds: float, devices: list[str]
) -> dict[str, Any]:
    """What the last call took; memory is that of this process, mapped files included."""
    is_gpu = devices[0].startswith("cuda")
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "n_passages": manifest.n_passages,
        "n_shards": manifest.n_shards,
        "n_encoded": n_encoded,
        "seconds": seconds,
        "passages_per_second": n_encoded / seconds if n_encoded else None,
        "n_processes": len(devices),
        "devices": sorted(set(devices)),
        "peak_memory_bytes": unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "peak_accelerator_bytes": torch.cuda.max_memory_allocated(devices[0]) if is_gpu else None,
        "computation": dict(manifest.computation),
        "machine": describe_machine(),
    }
