"""A DataTrove pipeline step that encodes a collection on many machines.

DataTrove's executors (local, Slurm, Ray) call a step once per task on machines that share a file
system, restart failed tasks and skip completed ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from modeling_condenser.collection.load import load_passages

from .embeddings import Embeddings, claim_folder, encode_shards
from .retriever import Retriever


@dataclass(frozen=True, kw_only=True)
class EncodeShards:
    """Encodes in task t of T the shards i with i % T == t, as `encode_collection` does.

    Existing shards are never encoded again, so tasks may be killed at any time, and another run may
    have another T (and another `logging_dir` of the executor).

    Example:
        >>> step = EncodeShards(model="my-encoder", collection="my-collection", folder="vectors")
        >>> _ = step.prepare(shard_size=20)
        >>> for task in range(2):  # what an executor does
        ...     step(rank=task, world_size=2)
        >>> Embeddings.open("vectors").n_passages
        60

    Attributes:
        model, collection: folders or Hub names.
        folder: of the embeddings, on a file system that all machines share.
        settings: further arguments of `Retriever`, such as `dtype`, `device` and `pooling`. Without
            a device, the tasks of a machine share its GPUs.
    """

    model: str
    collection: str
    folder: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def prepare(self, *, shard_size: int | None = None) -> Embeddings:
        """Write manifest and ids, once, before the tasks; see `claim_folder` for errors.

        Also stores the passages in the cache of `datasets`, which the machines should share.
        """
        passages = load_passages(self.collection)
        return claim_folder(self._open(), passages, self.folder, shard_size=shard_size)

    def __call__(
        self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1
    ) -> None:
        """Encode the missing shards of task `rank` of `world_size`; `data` is not used.

        Raises:
            FileNotFoundError: `prepare` was not called.
            ValueError: the folder was prepared for another model or other passages.
        """
        embeddings = Embeddings.open(self.folder, complete=False)
        if all(shard % world_size != rank for shard in embeddings.missing_shards()):
            return
        retriever, passages = self._open(rank), load_passages(self.collection)
        embeddings = claim_folder(retriever, passages, self.folder)
        encode_shards(retriever, passages, embeddings, world_size, rank)

    def _open(self, rank: int = 0) -> Retriever:
        settings, n_gpus = dict(self.settings), torch.cuda.device_count()
        if n_gpus > 1 and settings.get("dtype") != "int8":  # which is for a CPU
            settings.setdefault("device", f"cuda:{rank % n_gpus}")
        return Retriever(self.model, **settings)
