"""What encoding took: the records of all shards in, `encoding.json` out.

Every shard's record holds when it was encoded, how long that took, and the memory of its process up
to then. Sessions that were killed are counted by the shards that they finished.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.runs.whole_files import write_json

from .shards import Manifest, read_record

RECORD_FILE = "encoding.json"


def record_encoding(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Write what it took to encode a folder's shards.

    Returns:
        What `encoding.json` holds:
        n_passages, n_shards;
        seconds: during which at least one shard was being encoded, over all sessions;
        process_seconds: the same, summed over the processes that worked side by side;
        passages_per_second: n_passages / seconds;
        n_processes: that worked at the same time, at most;
        devices: their names, such as "cuda:0";
        peak_memory_bytes: resident, of the largest process, without mapped files;
        peak_accelerator_bytes: held by torch on a GPU, of the largest process; None on a CPU;
        computation: as in the manifest;
        machine: versions and hardware of the process that finished.
    """
    shards = [read_record(folder, shard) or {} for shard in range(manifest.n_shards)]
    timed = [shard for shard in shards if "seconds" in shard]
    spans = sorted((s["started"], s["started"] + s["seconds"]) for s in timed)
    seconds = _covered(spans)
    record = {
        "n_passages": manifest.n_passages,
        "n_shards": manifest.n_shards,
        "seconds": seconds,
        "process_seconds": math.fsum(shard["seconds"] for shard in timed),
        "passages_per_second": manifest.n_passages / seconds if seconds else None,
        "n_processes": _most_at_once(spans),
        "devices": sorted({shard["device"] for shard in timed}),
        "peak_memory_bytes": _largest(shard["peak_memory_bytes"] for shard in timed),
        "peak_accelerator_bytes": _largest(shard["peak_accelerator_bytes"] for shard in timed),
        "computation": dict(manifest.computation),
        "machine": describe_machine(),
    }
    write_json(folder / RECORD_FILE, record)
    return record


def _covered(spans: list[tuple[float, float]]) -> float:
    """How long the union of some spans is, which are sorted by their start."""
    total, until = 0.0, -math.inf
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _most_at_once(spans: list[tuple[float, float]]) -> int:
    """How many spans overlap, at most."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _largest(numbers: Iterable[int | None]) -> int | None:
    return max((number for number in numbers if number is not None), default=None)
