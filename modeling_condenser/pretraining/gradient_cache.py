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
from typing import Any

import numpy as np
import torch

from .collator import PAD_MULTIPLE
from .counter_random import random_keys
from .packed_batches import block_lengths, is_packed, take_blocks

_WITH_OWN_STATE = ("cuda", "xpu")  # devices whose random state can be saved and restored


@dataclass(frozen=True)
class Chunk:
    """Some rows of a batch.

    Attributes:
        rows: (C,) int64, which they are.
        inputs: the model's, each (C, T), cut to the longest of these rows; or a packed batch.
        seed: of their dropout.
    """

    rows: torch.Tensor
    inputs: dict[str, Any]
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
    inputs: Mapping[str, Any], chunk_size: int | None, *, seed: int, pad_token_id: int = 0
) -> list[Chunk]:
    """Split a batch into chunks, its longest texts first, so that few positions are padding.

    Args:
        inputs: the model's, each (S, T), `attention_mask` among them; or a packed batch of S texts.
        chunk_size: texts in a chunk; None for all in one, in their order.
        seed: decides the dropout of all chunks.
        pad_token_id: what the filler of packed chunks is made of.
    """
    lengths = block_lengths(inputs) if is_packed(inputs) else _row_lengths(inputs)  # (S,)
    rows = torch.arange(len(lengths), device=lengths.device)
    if chunk_size is None or chunk_size >= len(lengths):
        parts, batches = [rows], [dict(inputs)]
    else:
        parts = lengths.argsort(descending=True, stable=True).split(chunk_size)
        if is_packed(inputs):
            batches = [take_blocks(inputs, part, pad_token_id=pad_token_id) for part in parts]
        else:
            longest = torch.stack([lengths[part].max() for part in parts]).tolist()
            batches = [
                _take_rows(inputs, part, length)
                for part, length in zip(parts, longest, strict=True)
            ]
    seeds = random_keys(seed, np.arange(len(parts))).tolist()
    return [Chunk(*chunk) for chunk in zip(parts, batches, seeds, strict=True)]


def _row_lengths(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    mask = inputs["attention_mask"]
    return (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(dim=1)


def _take_rows(
    inputs: Mapping[str, torch.Tensor], rows: torch.Tensor, longest: int
) -> dict[str, torch.Tensor]:
    """Rows of a padded batch, cut to a multiple of a width, so that kernels meet few shapes."""
    width = -(-longest // PAD_MULTIPLE) * PAD_MULTIPLE
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
