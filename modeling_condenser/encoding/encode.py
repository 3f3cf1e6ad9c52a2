"""Encode a collection into a folder of embeddings, in shards that survive a killed process.

A shard is written whole and then renamed, so the same call after a kill continues with the missing
shards. Work is split in two ways: under torchrun rank r encodes the shards i with
i % WORLD_SIZE == r; otherwise this process starts one worker for each further device.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset
from torch import distributed, multiprocessing
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException
from tqdm.auto import tqdm

from modeling_condenser.collection.fingerprint import fingerprint_passages
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.runs.whole_files import is_partial, write_json

from .embeddings import (
    MANIFEST_FILE,
    RECORD_FILE,
    Embeddings,
    Manifest,
    default_shard_size,
    shard_name,
    write_shard,
)
from .memory import peak_memory
from .passage_ids import ID_ORDER_FILE, write_ids
from .precision import FLOAT32
from .retriever import Retriever

logger = logging.getLogger(__name__)

_ID_BATCH = 65_536
_RANK_TIMEOUT = timedelta(days=7)  # ranks wait at the end for the slowest one


@dataclass(frozen=True)
class _Job:
    """What the workers of a folder share.

    Attributes:
        folder: for the embeddings; holds the manifest.
        manifest: of the folder.
        passages: columns `_id`, `title`, `text`.
        n_threads: of torch in each process on a CPU; None for torch's own choice.
    """

    folder: Path
    manifest: Manifest
    passages: Dataset
    n_threads: int | None

    def file(self, shard: int) -> Path:
        return self.folder / shard_name(shard)

    def encode(self, retriever: Retriever, shard: int) -> None:
        rows = self.manifest.rows(shard)
        try:
            vectors = retriever.encode_passages(self.passages.select(rows))
        except ValueError as error:
            raise ValueError(f"Shard {shard}, which begins at row {rows.start}: {error}") from error
        write_shard(self.folder, self.manifest, shard, vectors)


def encode_collection(
    retriever: Retriever,
    passages: Dataset,
    folder: str | Path,
    *,
    shard_size: int | None = None,
    n_processes: int | None = None,
    devices: Sequence[str] | None = None,
    n_threads: int | None = None,
    progress: bool = True,
) -> Embeddings:
    """Encode passages into a folder, continue an interrupted call, or open a finished folder.

    Memory does not grow with N, but for about 35 bytes per id while the ids are sorted. Under
    torchrun every rank calls this with the same arguments and a folder on a shared file system.

    With several processes, which are started by `torch.multiprocessing`, a script must guard its
    entry point with `if __name__ == "__main__":`.

    Args:
        retriever: encodes; on `local_device(devices)`.
        passages: columns `_id`, `title`, `text`; N rows.
        folder: new, empty, or of an earlier call.
        shard_size: passages in a shard; by default the folder's, or it depends on N.
        n_processes: that encode; by default one for each device.
        devices: such as `["cuda:0", "cuda:1"]`; by default all GPUs for a retriever on a GPU, and
            the retriever's device otherwise.
        n_threads: of torch in each process on a CPU; by default the processes share the cores.
        progress: whether to show a progress bar.

    Raises:
        ValueError: the folder holds something else, the passages do not fit, or a vector is not
            finite.
        OSError: a file cannot be written.
        ChildProcessError: another process on this machine failed.
    """
    folder = Path(folder)
    _check(passages, shard_size=shard_size, n_processes=n_processes, n_threads=n_threads)
    rank, n_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    used = [_device(retriever)]
    if n_ranks == 1:
        used = _worker_devices(retriever, devices, n_processes)
    job = _plan(retriever, passages, folder, shard_size, n_threads)
    if (folder / RECORD_FILE).is_file() and not _missing(job):
        logger.info("%s is finished.", folder)
        return Embeddings.open(folder)
    with _ranks(n_ranks) as wait_for_ranks, peak_memory() as peak:
        if rank == 0:
            _prepare(job)
        wait_for_ranks()
        all_missing = _missing(job)
        if 0 < len(all_missing) < job.manifest.n_shards:
            logger.info("%d of %d shards are left.", len(all_missing), job.manifest.n_shards)
        wait_for_ranks()  # all ranks have listed the folder before one adds to it
        started = time.perf_counter()
        missing = [shard for shard in all_missing if shard % n_ranks == rank]
        _encode(job, retriever, used, missing, progress=progress and rank == 0)
        wait_for_ranks()
        seconds = time.perf_counter() - started
        if rank == 0:
            n_encoded = sum(len(job.manifest.rows(shard)) for shard in all_missing)
            record = _record(job, n_encoded, seconds, used, peak(), n_processes=n_ranks * len(used))
            write_json(folder / RECORD_FILE, record)
        wait_for_ranks()
    return Embeddings.open(folder)


def local_device(devices: Sequence[str] | None) -> str | None:
    """The device for this process's retriever; under torchrun it depends on LOCAL_RANK.

    Returns:
        One of the devices; without devices, a GPU of its own under torchrun, else None.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if devices:
        return devices[local_rank % len(devices)]
    if "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return f"cuda:{local_rank % torch.cuda.device_count()}"
    return None


def _check(passages: Dataset, **numbers: int | None) -> None:
    missing = {"_id", "title", "text"} - set(passages.column_names)
    if missing or not len(passages):
        raise ValueError(
            f"Got {len(passages)} passages with the columns {', '.join(passages.column_names)}; "
            "expected at least one, with _id, title and text."
        )
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} is {number}, expected at least 1, or none for the default.")


def _device(retriever: Retriever) -> str:
    return str(retriever.model.device)


def _worker_devices(
    retriever: Retriever, devices: Sequence[str] | None, n_processes: int | None
) -> list[str]:
    """The device of each process, this one's first."""
    own = retriever.model.device
    others = list(devices[1:]) if devices else []
    if devices is None and own.type == "cuda":
        gpus = range(torch.cuda.device_count())
        others = [f"cuda:{gpu}" for gpu in gpus if gpu != (own.index or 0)]
    used = [str(own), *others]
    return list(islice(cycle(used), n_processes or len(used)))


def _plan(
    retriever: Retriever,
    passages: Dataset,
    folder: Path,
    shard_size: int | None,
    n_threads: int | None,
) -> _Job:
    """Describe the work, and check that the folder holds nothing else."""
    is_begun = (folder / MANIFEST_FILE).is_file()
    if shard_size is None and is_begun:
        shard_size = Manifest.load(folder).shard_size
    manifest = Manifest(
        retriever=retriever.fingerprint,
        contract=asdict(retriever.contract),
        passages=fingerprint_passages(passages),
        n_passages=len(passages),
        dimension=retriever.dimension,
        shard_size=shard_size or default_shard_size(len(passages)),
        computation={
            "device": _device(retriever).partition(":")[0],
            "token_budget": retriever.token_budget,
            "dtype": retriever.dtype,
        },
    )
    if is_begun:
        _check_same(folder, Manifest.load(folder), manifest)
    elif folder.is_dir() and any(not is_partial(entry) for entry in folder.iterdir()):
        raise ValueError(
            f"{folder} is not empty and holds no embeddings ({MANIFEST_FILE} is missing): choose "
            "another folder."
        )
    return _Job(folder, manifest, passages, n_threads)


def _check_same(folder: Path, there: Manifest, now: Manifest) -> None:
    """Raise unless a folder's vectors are those that would be made now."""

    def identity(manifest: Manifest) -> dict[str, Any]:
        return {
            **{f"contract {name}": value for name, value in manifest.contract.items()},
            "dtype": manifest.computation.get("dtype", FLOAT32),
            "dimension": manifest.dimension,
            "n_passages": manifest.n_passages,
            "shard_size": manifest.shard_size,
            "fingerprint of the passages": manifest.passages[:12],
            "fingerprint of the model": manifest.retriever[:12],
        }

    before, after = identity(there), identity(now)
    differences = [
        f"{name} is {before.get(name)!r} there and {after.get(name)!r} now"
        for name in before | after
        if before.get(name) != after.get(name)
    ]
    if differences:
        raise ValueError(
            f"{folder} holds other embeddings: {'; '.join(differences)}. Choose another folder, or "
            "remove this one to encode again."
        )


def _missing(job: _Job) -> list[int]:
    names = {entry.name for entry in job.folder.iterdir()}
    return [shard for shard in range(job.manifest.n_shards) if shard_name(shard) not in names]


def _prepare(job: _Job) -> None:
    """Write manifest and ids, and remove the temporary files of killed processes."""
    job.folder.mkdir(parents=True, exist_ok=True)
    for entry in job.folder.iterdir():
        if is_partial(entry):
            entry.unlink()
    if not (job.folder / MANIFEST_FILE).is_file():
        job.manifest.save(job.folder)
    if not (job.folder / ID_ORDER_FILE).is_file():
        write_ids(job.folder, _id_batches(job.passages))


def _id_batches(passages: Dataset) -> Iterator[pa.ChunkedArray]:
    ids = passages.select_columns(["_id"]).with_format("arrow")
    for table in ids.iter(batch_size=_ID_BATCH):
        yield table["_id"]


@contextmanager
def _ranks(n_ranks: int) -> Iterator[Callable[[], None]]:
    """Yield a function that waits for all ranks of torchrun; it returns at once without ranks."""
    if n_ranks == 1:
        yield lambda: None
        return
    is_new = not distributed.is_initialized()
    if is_new:
        distributed.init_process_group("gloo", timeout=_RANK_TIMEOUT)
    group: Any = None if is_new else distributed.new_group(backend="gloo", timeout=_RANK_TIMEOUT)
    try:
        yield lambda: distributed.barrier(group)
    finally:
        if is_new:
            distributed.destroy_process_group()


def _encode(
    job: _Job, retriever: Retriever, devices: list[str], missing: list[int], *, progress: bool
) -> None:
    """Encode the missing shards, with a further process for each device but the first."""
    n_workers = max(min(len(devices), len(missing)), 1)
    shares = [missing[worker::n_workers] for worker in range(n_workers)]
    rows = {shard: len(job.manifest.rows(shard)) for shard in missing}
    with (
        tqdm(total=sum(rows.values()), desc="encode", unit="passage", disable=not progress) as bar,
        _workers(job, retriever, devices[1:n_workers], shares[1:]) as are_finished,
        _threads(job, retriever, n_workers),
    ):

        def show() -> None:
            done = sum(n for shard, n in rows.items() if job.file(shard).is_file())
            bar.update(done - bar.n)

        for shard in shares[0]:
            job.encode(retriever, shard)
            are_finished(0)
            show()
        while not are_finished(1):
            show()
        show()


@contextmanager
def _workers(
    job: _Job, retriever: Retriever, devices: list[str], shares: list[list[int]]
) -> Iterator[Callable[[float], bool]]:
    """Start a process for each device; they are stopped if the block raises.

    Yields:
        A function that waits up to some seconds, and returns whether all processes have finished.

    Raises:
        ChildProcessError: a process failed.
    """
    if not devices:
        yield lambda seconds: True
        return
    arguments = (job, retriever.folder, retriever.settings, devices, shares)
    context: Any = multiprocessing.spawn(_work, arguments, len(devices), join=False)
    try:
        yield lambda seconds: context.join(seconds)
    except (ProcessRaisedException, ProcessExitedException) as error:
        raise ChildProcessError(
            f"An encoding process on {devices[error.error_index]} failed: "
            f"{str(error).strip().splitlines()[-1]} Finished shards are kept: run the same command "
            "again to continue."
        ) from error
    finally:
        for process in context.processes:
            process.terminate()


def _work(
    worker: int,
    job: _Job,
    model: Path,
    settings: dict[str, Any],
    devices: list[str],
    shares: list[list[int]],
) -> None:
    """Encode the share of one worker, in its own process."""
    retriever = Retriever(model, device=devices[worker], **settings)
    with _threads(job, retriever, 1 + len(devices)):
        for shard in shares[worker]:
            job.encode(retriever, shard)


@contextmanager
def _threads(job: _Job, retriever: Retriever, n_processes: int) -> Iterator[None]:
    """Give torch its share of the cores while encoding on a CPU."""
    before = torch.get_num_threads()
    if _device(retriever) == "cpu" and (job.n_threads or n_processes > 1):
        torch.set_num_threads(job.n_threads or max(1, before // n_processes))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _record(
    job: _Job, n_encoded: int, seconds: float, devices: list[str], peak: int, *, n_processes: int
) -> dict[str, Any]:
    """What the last call took: the content of `encoding.json`.

    Memory is that of this process, without mapped files; `n_encoded` passages were encoded by this
    call, the others by earlier ones.
    """
    is_gpu = devices[0].startswith("cuda")
    return {
        "n_passages": job.manifest.n_passages,
        "n_shards": job.manifest.n_shards,
        "n_encoded": n_encoded,
        "seconds": seconds,
        "passages_per_second": n_encoded / seconds if n_encoded else None,
        "n_processes": n_processes,
        "devices": sorted(set(devices)),
        "peak_memory_bytes": peak,
        "peak_accelerator_bytes": torch.cuda.max_memory_allocated(devices[0]) if is_gpu else None,
        "computation": dict(job.manifest.computation),
        "machine": describe_machine(),
    }
