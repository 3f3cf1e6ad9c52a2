"""Encodes a collection into a folder of embeddings; a repeated call encodes what is missing.

This process starts a worker for each further device; of n workers, worker r encodes the shards i
with i % n == r.
"""

import logging
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from datasets import Dataset

from modeling_condenser.collection.collection import fingerprint_passages
from modeling_condenser.collection.load import load_passages
from modeling_condenser.files.atomic import atomic_folder, write_json
from modeling_condenser.files.progress import bar, show_bars
from modeling_condenser.files.run_folder import describe_machine
from modeling_condenser.files.settings import parse_settings

from .embeddings import (
    MANIFEST_FILE,
    RECORD_FILE,
    Embeddings,
    hash_passages,
    id_column,
    write_table,
)
from .recipe import ENCODER_SETTINGS, EncodingRecipe, convert_settings, split_name
from .retriever import Retriever

logger = logging.getLogger(__name__)


def encode(**settings: Any) -> Embeddings:
    """Encode all passages of a collection; `EncodingRecipe` has the settings.

    See `encode_collection` for the errors.
    """
    [recipe] = parse_settings(settings, EncodingRecipe)
    devices = recipe.devices.split(",") if recipe.devices else None
    name, values = split_name(recipe.model)
    encoder = {"dtype": recipe.dtype, **convert_settings(name, values, ENCODER_SETTINGS)}
    retriever = Retriever(name, device=local_device(devices), **encoder)
    passages = load_passages(recipe.collection)
    embeddings = encode_collection(
        retriever, passages, recipe.out, shard_size=recipe.shard_size, devices=devices
    )
    if recipe.table:
        write_table(embeddings, recipe.table, passages=passages)
    return embeddings


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
    into a folder beside it that replaces it at the end. A script that uses several devices needs
    `if __name__ == "__main__":`.

    Args:
        retriever: on `local_device(devices)`.
        passages: columns `_id`, `title`, `text`.
        folder: new, empty, or of an earlier call.
        shard_size: passages in a shard of a new folder; by default from 256 to 8,192.
        devices: one worker each, such as `["cuda:0", "cuda:1"]`; by default all GPUs if the
            retriever is on one, and its device otherwise.
        replace_all: replace earlier vectors even if none of them is of these passages.

    Raises:
        ValueError: the folder holds the vectors of another model, or of other passages alone.
        FileExistsError: the folder holds something else.
    """
    if (Path(folder) / MANIFEST_FILE).is_file():
        earlier = Embeddings.open(folder, complete=False)
        is_changed = earlier.passages != fingerprint_passages(passages)
        if is_changed and earlier.retriever == retriever.fingerprint:
            return _update(retriever, passages, earlier, devices, replace_all)
    embeddings = claim_folder(retriever, passages, folder, shard_size=shard_size)
    _encode_missing(retriever, passages, embeddings, devices)
    return embeddings


def claim_folder(
    retriever: Retriever, passages: Dataset, folder: str | Path, *, shard_size: int | None = None
) -> Embeddings:
    """Write manifest and ids into a new folder, or open a folder of the same model and passages.

    Raises:
        ValueError: the folder holds the vectors of another model or of other passages.
        FileExistsError: the folder holds something else.
    """
    sixteenth = -(-len(passages) // 16)  # so that workers have shards to share
    wanted = Embeddings(
        folder=Path(folder),
        n_passages=len(passages),
        dimension=retriever.dimension,
        shard_size=shard_size or min(8192, max(256, sixteenth)),
        retriever=retriever.fingerprint,
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


def _update(
    retriever: Retriever,
    passages: Dataset,
    earlier: Embeddings,
    devices: Sequence[str] | None,
    replace_all: bool,
) -> Embeddings:
    """Replace embeddings by those of other passages; a killed call changes nothing."""
    rows = _find_stored(earlier, hash_passages(passages))
    is_new = rows < 0
    has_vectors = len(earlier.missing_shards()) < len(earlier.shards)
    if is_new.all() and has_vectors and not replace_all:
        raise ValueError(
            f"{earlier.folder} holds the vectors of other passages, none of which is in this "
            "collection: name another folder, or remove this one."
        )
    logger.info(
        "%s: %d new or changed passages are encoded, %d kept.",
        *(earlier.folder, is_new.sum(), (~is_new).sum()),
    )
    with atomic_folder(earlier.folder) as partial:
        new = claim_folder(retriever, passages, partial, shard_size=earlier.shard_size)
        added = passages.select(np.flatnonzero(is_new))
        fresh = encode_collection(retriever, added, partial / "fresh", devices=devices)
        fresh_rows = np.cumsum(is_new) - 1
        for shard, place in enumerate(new.shards):
            part = slice(place.start, place.stop)
            is_fresh = is_new[part]
            vectors = np.empty((len(place), new.dimension), dtype=np.float32)
            vectors[is_fresh] = fresh.vectors(fresh_rows[part][is_fresh])
            vectors[~is_fresh] = earlier.vectors(rows[part][~is_fresh])
            new.write_shard(shard, vectors)
        write_json(partial / RECORD_FILE, fresh.record)
        shutil.rmtree(fresh.folder)
    return Embeddings.open(earlier.folder)


def _find_stored(embeddings: Embeddings, hashes: np.ndarray) -> np.ndarray:
    """The rows of passages with these hashes, (N,) int64; -1 where there is no vector."""
    stored = embeddings.hashes
    order = np.argsort(stored)
    places = np.searchsorted(stored, hashes, sorter=order)
    rows = order[np.minimum(places, len(order) - 1)]
    is_encoded = ~np.isin(rows // embeddings.shard_size, embeddings.missing_shards())
    return np.where((stored[rows] == hashes) & is_encoded, rows, -1)


def _encode_missing(
    retriever: Retriever,
    passages: Dataset,
    embeddings: Embeddings,
    devices: Sequence[str] | None,
) -> None:
    """Encode the missing shards on all devices, and write the record."""
    missing = embeddings.missing_shards()
    if embeddings.record and not missing:
        return
    logger.info("Encoding %d shards: %s", len(missing), embeddings.folder)
    used, started = _worker_devices(retriever, devices), time.perf_counter()
    job = (passages, embeddings, len(used))
    with ProcessPoolExecutor(len(used), mp_context=get_context("spawn")) as pool:
        workers = [
            pool.submit(
                _work, retriever.folder, {**retriever.arguments, "device": device}, *job, rank
            )
            for rank, device in enumerate(used)
            if rank > 0
        ]
        try:
            encode_shards(retriever, *job, 0)
            for worker in workers:
                worker.result()
        except BaseException:
            for process in pool._processes.values():  # Python 3.14 has terminate_workers()
                process.terminate()
            raise
    n_encoded = sum(len(embeddings.shards[shard]) for shard in missing)
    record = _describe_work(n_encoded, time.perf_counter() - started, used)
    write_json(embeddings.folder / RECORD_FILE, record)


def encode_shards(
    retriever: Retriever, passages: Dataset, embeddings: Embeddings, n_workers: int, rank: int
) -> None:
    """Encode the missing shards i with i % n_workers == rank; only rank 0 has a progress bar."""
    shards = [shard for shard in embeddings.missing_shards() if shard % n_workers == rank]
    total = sum(len(embeddings.shards[shard]) for shard in shards)
    with show_bars(rank == 0), bar(None, "encode", unit="passage", total=total) as progress:
        for shard in shards:
            part = passages.select(embeddings.shards[shard])
            embeddings.write_shard(shard, retriever.encode_passages(part, progress=progress))


def _work(model: Path, arguments: dict[str, Any], *job: Any) -> None:
    """Encode in a new process, on another device."""
    encode_shards(Retriever(model, **arguments), *job)


def local_device(devices: Sequence[str] | None) -> str | None:
    """The device of this process's retriever; None for the default."""
    return devices[0] if devices else None


def _worker_devices(retriever: Retriever, devices: Sequence[str] | None) -> list[str]:
    """The device of each worker; this process is the first."""
    here = retriever.model.device
    others = list(devices or [])[1:]
    if devices is None and here.type == "cuda":
        gpus = range(torch.cuda.device_count())
        others = [f"cuda:{gpu}" for gpu in gpus if gpu != (here.index or 0)]
    return [str(here), *others]


def _describe_work(n_encoded: int, seconds: float, devices: list[str]) -> dict[str, Any]:
    """The record of a call; memory is the peak of this process, including mapped files."""
    is_gpu = devices[0].startswith("cuda")
    return {
        "n_encoded": n_encoded,
        "seconds": seconds,
        "passages_per_second": n_encoded / seconds if n_encoded else None,
        "devices": devices,
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
