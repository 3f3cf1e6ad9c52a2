"""What encoding a collection will take, before hours are spent: time, memory and disk.

In: an encoder, and passages of which a seeded sample is encoded. Out: an `EncodingEstimate`. Also
the refusal of a disk that cannot hold the vectors.
"""

import errno
import logging
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from datasets import Dataset

from .memory import PeakMemory, peak_accelerator_bytes
from .passage_ids import IDS_RECORD_FILE
from .shard_workers import PassageEncoder
from .shards import Manifest, default_shard_size, record_name

logger = logging.getLogger(__name__)

_WARM_UP, _TIMED, _COUNTED = 8, (32, 128, 512, 2048), 1024  # passages
_ENOUGH = 1.0  # seconds that the last sample should take, at least
_BYTES_AN_ID = 16  # beside its letters: offset, and place among the sorted ids
_BYTES_AN_UNSEEN_ID, _MEMORY_AN_ID = 32, 35
_SPARE = 64 * 2**20  # bytes for what else is written beside


@dataclass(frozen=True)
class EncodingEstimate:
    """What encoding N passages will take.

    Attributes:
        n_passages: N.
        n_tokens: of all passages, cut at the longest length; None where the encoder has no
            tokenizer.
        seconds: with all processes, once they have started.
        n_processes: that encode.
        memory_bytes: of each process: what this one held while it encoded the sample, vectors and
            texts of a shard, and some 35 bytes an id, which the first process takes to sort them.
        accelerator_bytes: of each process on a GPU, as torch counts; None on a CPU.
        disk_vectors_bytes: of the shards.
        disk_ids_bytes: of ids and their order.
        disk_index_bytes: of a faiss index; 0 for exact search, which reads the shards.
        n_sampled: passages whose encoding was timed.
    """

    n_passages: int
    n_tokens: int | None
    seconds: float
    n_processes: int
    memory_bytes: int
    accelerator_bytes: int | None
    disk_vectors_bytes: int
    disk_ids_bytes: int
    disk_index_bytes: int
    n_sampled: int

    @property
    def disk_bytes(self) -> int:
        """On disk, all together."""
        return self.disk_vectors_bytes + self.disk_ids_bytes + self.disk_index_bytes

    def in_words(self) -> str:
        """One line a quantity."""
        tokens = "" if self.n_tokens is None else f", about {self.n_tokens:,} tokens"
        each = "" if self.n_processes == 1 else f" in each of {self.n_processes} processes"
        gpu = self.accelerator_bytes
        return "\n".join(
            [
                f"to encode: {self.n_passages:,} passages{tokens}",
                f"time:      about {_duration(self.seconds)} "
                f"({self.n_passages / self.seconds:,.0f} passages a second)",
                f"memory:    about {_size(self.memory_bytes)}{each}"
                + (f", and {_size(gpu)} on its GPU" if gpu else ""),
                f"disk:      {_size(self.disk_bytes)} (vectors {_size(self.disk_vectors_bytes)}, "
                f"ids {_size(self.disk_ids_bytes)}, index {_size(self.disk_index_bytes)})",
            ]
        )


def estimate_encoding(
    encoder: PassageEncoder,
    passages: Dataset,
    *,
    n_passages: int | None = None,
    shard_size: int | None = None,
    n_processes: int = 1,
    index: str = "Flat",
    seed: int = 0,
) -> EncodingEstimate:
    """Encode a sample, and draw from it what the whole will take.

    A first sample is not timed, because it chooses kernels and fills caches. The timed ones grow
    until one takes a second, or holds 2,048 passages. Time is drawn from tokens where the encoder
    has a tokenizer, since few texts say little about the mean length: those of 1,024 are counted.

    Args:
        encoder: as it will be used.
        passages: columns `_id`, `title`, `text`.
        n_passages: how many of them are to be encoded; all by default.
        shard_size: passages in a shard; by default some that suit their number.
        n_processes: that encode, each on a device, or a core, of its own.
        index: faiss factory string of the index that will be built; "Flat" is exact search.
        seed: decides which passages are sampled.

    Raises:
        ValueError: there are no passages, or faiss does not know the index.
    """
    if not len(passages):
        raise ValueError("There are 0 passages, expected at least one: load a collection first.")
    n_passages = len(passages) if n_passages is None else n_passages
    shard = min(shard_size or default_shard_size(len(passages)), len(passages))
    generator = np.random.default_rng(seed)
    counted = _draw(passages, _COUNTED, generator)
    with PeakMemory() as memory:
        timed, seconds = _time_sample(encoder, passages, generator)
        peak = memory.so_far
    tokens, timed_tokens = _mean_tokens(encoder, counted), _mean_tokens(encoder, timed)
    longer = tokens / timed_tokens if tokens and timed_tokens else 1.0
    texts, ids = counted.select_columns(["title", "text"])[:], counted["_id"]
    letters = sum(len(text) for column in texts.values() for text in column) / len(counted)
    id_bytes = sum(len(one.encode()) for one in ids) / len(counted) + _BYTES_AN_ID
    return EncodingEstimate(
        n_passages=n_passages,
        n_tokens=None if tokens is None else round(tokens * n_passages),
        seconds=seconds / len(timed) * longer * n_passages / n_processes,
        n_processes=n_processes,
        memory_bytes=round(
            peak
            + shard * (2 * 4 * encoder.dimension + 2 * letters + 8 * (tokens or 0))
            + _MEMORY_AN_ID * len(passages)
        ),
        accelerator_bytes=peak_accelerator_bytes(str(encoder.model.device)),
        disk_vectors_bytes=4 * n_passages * encoder.dimension,
        disk_ids_bytes=round(id_bytes * n_passages),
        disk_index_bytes=index_bytes(index, n_passages, encoder.dimension),
        n_sampled=len(timed),
    )


def _time_sample(
    encoder: PassageEncoder, passages: Dataset, generator: np.random.Generator
) -> tuple[Dataset, float]:
    """A sample, and how long it takes to encode."""
    encoder.encode_passages(_draw(passages, _WARM_UP, generator))
    for size in _TIMED:
        sample = _draw(passages, size, generator)
        started = time.perf_counter()
        encoder.encode_passages(sample)
        seconds = time.perf_counter() - started
        if seconds >= _ENOUGH or len(sample) == len(passages):
            break
    return sample, seconds


def _draw(passages: Dataset, size: int, generator: np.random.Generator) -> Dataset:
    rows = generator.choice(len(passages), min(size, len(passages)), replace=False)
    return passages.select(np.sort(rows))  # rows of a file are read faster in their order


def _mean_tokens(encoder: PassageEncoder, sample: Dataset) -> float | None:
    tokenizer = getattr(encoder.model, "tokenizer", None)
    if tokenizer is None:
        return None
    contract = encoder.contract
    texts = [contract.passage(row["title"], row["text"]) for row in sample]
    encoded = tokenizer(texts, truncation=True, max_length=contract.passage_max_length)
    return sum(map(len, encoded["input_ids"])) / len(sample)


def index_bytes(factory: str, n_passages: int, dimension: int) -> int:
    """About how large a faiss index is, on disk and in memory.

    Args:
        factory: a factory string; "Flat" needs none beside the embeddings.
        n_passages: N.
        dimension: D.

    Raises:
        ValueError: faiss does not know the string.
    """
    if factory == "Flat":
        return 0
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ValueError(f"faiss knows no index {factory!r} for {dimension} numbers.") from error
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        return n_passages * (inverted.code_size + 8) + 4 * dimension * inverted.nlist
    links = re.search(r"HNSW(\d+)", factory)
    # A graph has 2 M links of 4 bytes on its lowest level, and some 20 bytes for the others.
    graph = 8 * int(links[1]) + 20 if links else 0
    inner: Any = faiss.downcast_index(index)
    while isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    inner = faiss.downcast_index(inner.storage) if links else index
    return n_passages * (inner.sa_code_size() + graph)


def refuse_full_disk(folder: Path, manifest: Manifest, shards: Sequence[int] | None = None) -> None:
    """Refuse to begin what the disk cannot hold.

    Args:
        folder: of the embeddings; exists.
        manifest: says how large shards are.
        shards: to be written; by default those that are not done.

    Raises:
        OSError: with what is needed and what is free.
    """
    if shards is None:
        names = {entry.name for entry in folder.iterdir()}
        shards = [s for s in range(manifest.n_shards) if record_name(s) not in names]
    if not shards:
        return
    needed = sum(manifest.shard_bytes(shard) for shard in shards) + _SPARE
    if not (folder / IDS_RECORD_FILE).is_file():
        needed += _BYTES_AN_UNSEEN_ID * manifest.n_passages
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"{len(shards)} shards of {manifest.dimension} numbers a passage need {needed:,} "
            f"bytes on the disk of {folder}, and {free:,} are free: make space, or choose a folder "
            "on another disk.",
        )


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} seconds"


def _size(n_bytes: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.4g} TB"
