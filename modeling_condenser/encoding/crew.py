"""The crew: which processes encode, and on which devices.

In: what the caller stated, the accelerators and cores of this machine, and the rank that torchrun
gave this process. Out: an encoder for this process, and helpers in processes of their own.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast

from .claims import Claims
from .memory import available_bytes, resident_bytes
from .ranks import Ranks
from .shard_workers import EncoderOpener, PassageEncoder, Work, encode_missing

_HELPER = "from modeling_condenser.encoding.crew import _run_helper; _run_helper()"


@dataclass(frozen=True)
class SameRetriever:
    """Opens a retriever once more, on another device or in another process.

    Attributes:
        folder: its files.
        settings: what was stated.
        token_budget: tokens of a batch; None for one that suits the device.
    """

    folder: Path
    settings: dict[str, Any]
    token_budget: int | None

    def open(self, *, device: str | None = None) -> PassageEncoder:
        from .retriever import Retriever

        return Retriever(
            self.folder, device=device, token_budget=self.token_budget, **self.settings
        )


@dataclass(frozen=True)
class Crew:
    """Who encodes.

    Attributes:
        encoder: of this process.
        opener: opens others like it; None where that is not known.
        devices: of all processes, this one's first.
        is_stated: whether there must be so many; else others are started when it pays.
    """

    encoder: PassageEncoder
    opener: EncoderOpener | None
    devices: list[str]
    is_stated: bool

    def call_helpers(self, work: Work, shards: list[int]) -> list["Helper"]:
        """Start the other processes, each at another place of the shards that are to be done."""
        n_workers = min(len(self.devices), len(shards))
        free = available_bytes()
        if not self.is_stated and self.devices[0] == "cpu" and free is not None:
            n_workers = min(n_workers, 1 + free // (2 * resident_bytes()))
        if self.opener is None:
            return []
        starts = [number * len(shards) // n_workers for number in range(1, n_workers)]
        return [
            start_helper(work, self.opener, device=device, shards=shards[start:] + shards[:start])
            for device, start in zip(self.devices[1:], starts, strict=False)
        ]


def assemble_crew(
    retriever: PassageEncoder | EncoderOpener,
    *,
    n_processes: int | None,
    devices: Sequence[str] | None,
    ranks: Ranks,
) -> Crew:
    """Choose devices, and open the encoder of this process; see `encode_collection`.

    Raises:
        ValueError: more processes are stated than there can be.
    """
    if ranks.size > 1 and (n_processes or 1) > 1:
        raise ValueError(
            f"n_processes is {n_processes} in each of {ranks.size} ranks: torchrun has started the "
            "processes already, so leave n_processes out."
        )
    wanted = devices[ranks.local_rank % len(devices)] if devices else None
    if ranks.size > 1 and wanted is None and (n_gpus := _n_gpus()):
        wanted = f"cuda:{ranks.local_rank % n_gpus}"
    encoder, opener = _open(retriever, wanted)
    own = str(encoder.model.device)
    if ranks.size > 1:
        return Crew(encoder, opener, [own], is_stated=True)
    is_stated = bool(n_processes or devices)
    everywhere = [own, *devices[1:]] if devices else _all_devices(own)
    n_workers = max(n_processes or len(everywhere), len(devices or ()))
    if n_workers > 1 and opener is None:
        if is_stated:
            raise ValueError(
                f"{encoder!r} cannot be opened in {n_workers} processes: pass what opens it, such "
                "as parse_system(name), in its place."
            )
        n_workers = 1
    return Crew(encoder, opener, list(islice(cycle(everywhere), n_workers)), is_stated)


def _open(
    retriever: PassageEncoder | EncoderOpener, device: str | None
) -> tuple[PassageEncoder, EncoderOpener | None]:
    """An encoder on the device that is wanted, and what opens others."""
    if not hasattr(retriever, "encode_passages"):
        return retriever.open(device=device), retriever
    encoder = cast(PassageEncoder, retriever)
    again = _opener_of(encoder)
    if device is None or _is_on(encoder, device):
        return encoder, again
    if again is None:
        raise ValueError(
            f"{encoder!r} is on {encoder.model.device} and cannot be opened on {device}: open it "
            "there, or leave the devices out."
        )
    return again.open(device=device), again


def _opener_of(encoder: PassageEncoder) -> EncoderOpener | None:
    from .retriever import ACCELERATOR_TOKEN_BUDGET, CPU_TOKEN_BUDGET, Retriever

    if not isinstance(encoder, Retriever):
        return None
    by_itself = encoder.token_budget in (ACCELERATOR_TOKEN_BUDGET, CPU_TOKEN_BUDGET)
    budget = None if by_itself else encoder.token_budget
    return SameRetriever(encoder.folder, encoder.settings, budget)


def _is_on(encoder: PassageEncoder, device: str) -> bool:
    own = str(encoder.model.device)
    return own == device or f"{device}:0" == own or f"{own}:0" == device


def _all_devices(own: str) -> list[str]:
    """This process's device, and all others of its kind; as often as there are cores, for CPUs."""
    if own.startswith("cuda"):
        gpus = [f"cuda:{i}" for i in range(_n_gpus())]
        return [own, *(gpu for gpu in gpus if gpu not in (own, f"{own}:0"))]
    return [own] * (_n_cores() if own == "cpu" else 1)


def _n_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def stopped_at_the_end() -> Iterator[list["Helper"]]:
    """A list for helpers, which are stopped when the block ends, however it does."""
    helpers: list[Helper] = []
    try:
        yield helpers
    finally:
        for helper in helpers:
            helper.stop()


@dataclass(frozen=True)
class Helper:
    """A worker in a process of its own.

    Attributes:
        process: which ends when its standard input is closed, and so when its parent dies.
        output: file that takes what it prints.
        device: that it encodes on.
    """

    process: subprocess.Popen[bytes]
    output: Path
    device: str

    def check(self) -> None:
        """Raise if it has failed.

        Raises:
            ChildProcessError: with the last line of what it printed.
        """
        status = self.process.poll()
        if status:
            lines = self.output.read_text(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"status {status}"
            if status < 0:
                reason = f"killed by signal {-status}. Was the machine short of memory?"
            raise ChildProcessError(
                f"The encoding process {self.process.pid} on {self.device} has failed: {reason} "
                "What is written stays valid: run the same command again to go on."
            )

    def stop(self) -> None:
        """End it, if it still runs, and remove its files."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for file in (self.output, self.output.with_suffix("")):
            file.unlink(missing_ok=True)


def start_helper(
    work: Work, opener: EncoderOpener, *, device: str, shards: Sequence[int]
) -> Helper:
    """Start a worker in a new process.

    It is a new interpreter, not a copy of this one, since a copy cannot use a GPU.

    Args:
        work: what to encode.
        opener: opens the encoder there.
        device: to encode on.
        shards: to encode, in this order, but for those that others hold.
    """
    descriptor, name = tempfile.mkstemp(prefix="condenser-encode-")
    with os.fdopen(descriptor, "wb") as file:
        pickle.dump((work, opener, device, list(shards)), file)
    output = Path(f"{name}.log")
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _HELPER, name],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "TQDM_DISABLE": "1",
            },
        )
    return Helper(process, output, device)


def _run_helper() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    file = Path(sys.argv[1])
    content = file.read_bytes()
    file.unlink()
    work, opener, device, shards = pickle.loads(content)
    encoder = opener.open(device=device)
    if encoder.fingerprint != work.manifest.retriever:
        raise ValueError("the model's files have changed since the run began: run it again.")
    with Claims(work.folder) as claims:
        for _ in encode_missing(work, encoder, claims, shards, patient=False):
            pass


def _end_with_parent() -> None:
    # Not sys.stdin, whose lock, held by a waiting thread, aborts an interpreter that ends.
    os.read(0, 1)
    os._exit(1)
