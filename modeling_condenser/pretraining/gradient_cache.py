"""A batch in chunks: the gradient of a loss over all of its vectors, in the memory of one chunk.

A contrastive loss needs every vector of the batch at once, but not every activation. So, after Gao,
Zhang, Han & Callan (2021), "Scaling Deep Contrastive Learning Batch Size under Memory Limited
Setup": encode all chunks without a graph; take the loss's gradient at the vectors, the cache; then
encode chunk by chunk with a graph and carry each vector's cached gradient g on by the surrogate
<vector, g>, whose gradient is that of the loss by the chain rule.

Both passes must drop the same units. Each chunk's dropout is decided by a seed of its own, and the
random states outside are left as they were, so they do not depend on the chunks either.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from .collator import PAD_MULTIPLE
from .counter_random import random_keys

_WITH_OWN_STATE = ("cuda", "xpu")  # devices whose random state can be saved and restored


@dataclass(frozen=True)
class Chunk:
    """Some rows of a batch.

    Attributes:
        rows: (C,) int64, which they are.
        inputs: the model's, each (C, T), cut to the longest of these rows.
        seed: of their dropout.
    """

    rows: torch.Tensor
    inputs: dict[str, torch.Tensor]
    seed: int

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Draw this chunk's own random numbers within, the same each time."""
        device = self.rows.device
        devices = [device.index] if device.type in _WITH_OWN_STATE else []
        kind = device.type if devices else "cuda"
        with torch.random.fork_rng(devices=devices, device_type=kind):
            torch.manual_seed(self.seed)
            yield


def split_batch(
    inputs: Mapping[str, torch.Tensor], chunk_size: int | None, *, seed: int
) -> list[Chunk]:
    """Split a batch into chunks, its longest texts first, so that few positions are padding.

    Args:
        inputs: the model's, each (S, T), `attention_mask` among them.
        chunk_size: texts in a chunk; None for all in one, in their order.
        seed: decides the dropout of all chunks.
    """
    mask = inputs["attention_mask"]
    n_rows, width = mask.shape
    positions = torch.arange(1, width + 1, device=mask.device)
    lengths = (mask * positions).amax(dim=1)  # (S,)
    size = chunk_size or n_rows
    rows = torch.arange(n_rows, device=mask.device)
    if size < n_rows:
        rows = lengths.argsort(descending=True, stable=True)
    parts = rows.split(size)
    longest = torch.stack([lengths[part].max() for part in parts]).tolist()
    seeds = random_keys(seed, np.arange(len(parts))).tolist()
    return [
        Chunk(part, _take(inputs, part, _padded(length, width)), chunk_seed)
        for part, length, chunk_seed in zip(parts, longest, seeds, strict=True)
    ]


def _padded(length: int, width: int) -> int:
    """The width for texts of a length: a multiple, so that kernels meet few shapes."""
    return min(-(-length // PAD_MULTIPLE) * PAD_MULTIPLE, width)


def _take(
    inputs: Mapping[str, torch.Tensor], rows: torch.Tensor, width: int
) -> dict[str, torch.Tensor]:
    return {name: value[rows, :width] for name, value in inputs.items()}


def put_back(parts: Sequence[torch.Tensor], chunks: Sequence[Chunk]) -> torch.Tensor:
    """Vectors of chunks in the order of the batch.

    Args:
        parts: (C, H) of each chunk.
        chunks: that they are of.

    Returns:
        (S, H).
    """
    place = torch.cat([chunk.rows for chunk in chunks]).argsort()
    return torch.cat(list(parts))[place]
