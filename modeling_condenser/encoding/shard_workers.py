"""Workers: processes that claim a missing shard, encode it, write it, and take the next.

The process that was called is the first worker; `start_helper` starts others on the same machine.
A shard is encoded by one worker alone and in one call, so its bits do not depend on how many there
are.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from modeling_condenser.repository.contract import EncodingContract
from modeling_condenser.runs.whole_files import remove_partials

from .claims import Claims
from .memory import PeakMemory, peak_accelerator_bytes
from .precision import FLOAT32
from .shards import (
    Manifest,
    find_shard_damage,
    record_name,
    shard_name,
    write_shard,
)

logger = logging.getLogger(__name__)

_HELPER = "from modeling_condenser.encoding.shard_workers import _run_helper; _run_helper()"
_POLL = 0.2  # seconds between looks at shards that other processes hold


class PassageEncoder(Protocol):
    """What encodes: a `Retriever`, or anything of its kind."""

    model: Any  # with a `device`
    dimension: int

    @property
    def contract(self) -> EncodingContract: ...

    @property
    def fingerprint(self) -> str: ...

    def encode_passages(self, passages: Dataset, *, progress: bool = False) -> np.ndarray: ...


class EncoderOpener(Protocol):
    """What opens an encoder, in this process or in another one: a `System`, say."""

    def open(self, *, device: str | None = None) -> PassageEncoder: ...


@dataclass(frozen=True)
class SameRetriever:
    """Opens a retriever once more, on another device or in another process.

    Attributes:
        folder: its files.
        settings: what was stated.
        token_budget: tokens of a batch.
    """

    folder: Path
    settings: dict[str, Any]
    token_budget: int

    def open(self, *, device: str | None = None) -> PassageEncoder:
        from .retriever import Retriever

        return Retriever(
            self.folder, device=device, token_budget=self.token_budget, **self.settings
        )


@dataclass(frozen=True)
class Work:
    """What all workers of a folder share.

    Attributes:
        folder: for the embeddings; holds the manifest.
        manifest: of the folder.
        passages: N, with columns `_id`, `title`, `text`.
        n_threads: of torch in each worker on a CPU.
    """

    folder: Path
    manifest: Manifest
    passages: Dataset
    n_threads: int


def find_missing(
    work: Work, claims: Claims, shards: Sequence[int], *, progress: bool = False
) -> list[int]:
    """The shards that are to be encoded; records of damaged ones are removed, with a warning."""
    missing = []
    for shard in tqdm(shards, desc="check", unit="shard", delay=1, disable=not progress):
        if not (work.folder / record_name(shard)).is_file():
            missing.append(shard)
            continue
        with claims.of_shard(shard) as is_mine:
            # One that another process holds is being written anew.
            damage = find_shard_damage(work.folder, work.manifest, shard) if is_mine else None
            if damage is not None:
                logger.warning("%s: %s; it is encoded anew.", work.folder, damage)
                (work.folder / record_name(shard)).unlink(missing_ok=True)
        if damage is not None or not is_mine:
            missing.append(shard)
    return missing


def encode_missing(
    work: Work, encoder: PassageEncoder, claims: Claims, shards: Sequence[int], *, patient: bool
) -> Generator[int, None, None]:
    """Encode shards until all are done.

    Args:
        work: what to encode, and where to.
        encoder: on the device of this worker.
        claims: of the folder.
        shards: to encode, in this order.
        patient: whether to wait for shards that other processes hold, and to take them over if
            these die; else they are left to them.

    Yields:
        How many of the shards are not done yet, after each one and while it waits.

    Raises:
        ValueError: a vector is not finite, or has another width than the manifest says.
        OSError: a shard cannot be written.
    """
    waiting = list(shards)
    with PeakMemory() as memory, intra_op_threads(work.n_threads, encoder):
        while waiting:
            held = []
            for place, shard in enumerate(waiting):
                with claims.of_shard(shard) as is_mine:
                    if not is_mine:
                        held.append(shard)
                        continue
                    if (work.folder / record_name(shard)).is_file():  # by another one, meanwhile
                        continue
                    _encode_shard(work, encoder, shard, memory)
                yield len(held) + len(waiting) - place - 1
            if not patient:
                return
            if len(held) == len(waiting):
                time.sleep(_POLL)
            waiting = held
            yield len(waiting)


def _encode_shard(work: Work, encoder: PassageEncoder, shard: int, memory: PeakMemory) -> None:
    remove_partials(work.folder, shard_name(shard))
    remove_partials(work.folder, record_name(shard))
    rows = work.manifest.rows(shard)
    started, clock = time.time(), time.perf_counter()
    try:
        vectors = encoder.encode_passages(work.passages.select(rows))
        seconds = time.perf_counter() - clock
        device = str(encoder.model.device)
        facts = {
            "started": started,
            "seconds": seconds,
            "device": device,
            "process": f"{socket.gethostname()}-{os.getpid()}",
            "peak_memory_bytes": memory.so_far,
            "peak_accelerator_bytes": peak_accelerator_bytes(device),
        }
        write_shard(work.folder, work.manifest, shard, vectors, facts=facts)
    except ValueError as error:
        first = work.passages[rows.start]["_id"]
        raise ValueError(
            f"Shard {shard}, which begins with passage {first!r} in row {rows.start} of the "
            f"collection: {error}"
        ) from error


@contextmanager
def intra_op_threads(n_threads: int, encoder: PassageEncoder) -> Iterator[None]:
    """Let torch use so many threads in each operation on a CPU; elsewhere they change nothing.

    A product of small matrices is split between threads along the sum, which changes its last bits:
    with BERT-base and MKL, 2 threads give other vectors than 1 for 2 texts of 5 tokens.
    """
    torch = sys.modules.get("torch")
    if torch is None or str(encoder.model.device) != "cpu":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_computation(work_threads: int, encoder: PassageEncoder) -> dict[str, Any]:
    """What only the last bits of the vectors depend on, and the dtype of the weights."""
    kind = str(encoder.model.device).partition(":")[0]
    return {
        "device": kind,
        "n_threads": work_threads if kind == "cpu" else None,
        "token_budget": getattr(encoder, "token_budget", None),
        "dtype": getattr(encoder, "dtype", FLOAT32),
    }


def contract_of(encoder: PassageEncoder) -> dict[str, Any]:
    """The contract as plain values."""
    return asdict(encoder.contract)
