"""The contrastive loss over a batch of paired texts, and its gradient in the memory of one chunk.

Two texts of a pair are neighbours: rows 2i and 2i + 1. Each text's positive is its partner; all
other texts of the batch, on all devices, are negatives (Gao & Callan 2021, coCondenser, arXiv
2108.05540; Lee, Chang & Toutanova 2019 for the Inverse Cloze Task). S texts in a batch, H numbers
in a vector.

A contrastive loss needs every vector at once, but not every activation. So, after Gao, Zhang, Han &
Callan (2021), "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup": encode all
chunks without a graph; take the loss's gradient at the vectors, the cache; then encode chunk by
chunk with a graph, and carry each vector's cached gradient g on by the surrogate <vector, g>. Both
passes must drop the same units, so each chunk's dropout has a seed of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import functional as F

from .collator import PAD_MULTIPLE
from .counter_random import random_keys
from .packed_batches import block_lengths, is_packed, take_blocks

Similarity = Literal["dot", "cosine"]
_WITH_OWN_STATE = ("cuda", "xpu")  # devices whose random state can be saved and restored


class Contrasted(NamedTuple):
    """() loss in nats, the mean over texts, and () share of texts nearest to their partner."""

    loss: torch.Tensor
    accuracy: torch.Tensor


@dataclass(frozen=True)
class Contrast:
    """How the vectors of a batch are contrasted.

    Attributes:
        similarity: "dot", as published, or "cosine".
        temperature: what similarities are divided by, above 0.
        one_way: False (coCondenser): every text looks for its partner among all other texts.
            True (Inverse Cloze Task): the first of each pair, a query, looks for its context among
            the second ones.
    """

    similarity: Similarity = "dot"
    temperature: float = 1.0
    one_way: bool = False

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(
                f"temperature is {self.temperature}, but similarities are divided by it: set it "
                "above 0 (1.0 for dot, about 0.05 for cosine)."
            )

    def __call__(self, vectors: torch.Tensor) -> Contrasted:
        """Contrast a whole batch of vectors, (S, H), of at least two pairs."""
        vectors = vectors.float()  # a sum of exponentials needs the precision
        if self.similarity == "cosine":
            vectors = F.normalize(vectors, dim=-1)
        if self.one_way:
            scores = vectors[::2] @ vectors[1::2].T  # (S/2, S/2)
            targets = torch.arange(len(scores), device=scores.device)
        else:
            scores = vectors @ vectors.T  # (S, S)
            own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(own, float("-inf"))
            targets = torch.arange(len(scores), device=scores.device) ^ 1  # 1, 0, 3, 2, ...
        loss = F.cross_entropy(scores / self.temperature, targets)
        accuracy = (scores.argmax(dim=-1) == targets).float().mean()
        return Contrasted(loss, accuracy.detach())


@dataclass(frozen=True)
class Chunk:
    """Some rows of a batch, (C,) int64, as inputs of the model, and the seed of their dropout."""

    rows: torch.Tensor
    inputs: dict[str, Any]
    seed: int

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Draw this chunk's own random numbers within, and restore the random state after."""
        device = self.rows.device
        devices = [device.index] if device.type in _WITH_OWN_STATE else []
        kind = device.type if devices else "cuda"
        with torch.random.fork_rng(devices=devices, device_type=kind):
            torch.manual_seed(self.seed)
            yield


def split_batch(
    inputs: Mapping[str, Any], chunk_size: int | None, *, seed: int, pad_token_id: int = 0
) -> list[Chunk]:
    """Split a batch of S texts into chunks, its longest texts first, so that padding is short.

    Args:
        inputs: the model's, padded at the right, each (S, T); or a packed batch.
        chunk_size: texts in a chunk; None for all in one, in their order.
        seed: decides the dropout of all chunks.
        pad_token_id: what the filler of packed chunks is made of.
    """
    packed = is_packed(inputs)
    lengths = block_lengths(inputs) if packed else inputs["attention_mask"].sum(dim=1)  # (S,)
    if chunk_size is None or chunk_size >= len(lengths):
        rows = torch.arange(len(lengths), device=lengths.device)
        return [Chunk(rows, dict(inputs), random_keys(seed, 0).item())]
    chunks = []
    for number, rows in enumerate(lengths.argsort(descending=True, stable=True).split(chunk_size)):
        if packed:
            batch = take_blocks(inputs, rows, pad_token_id=pad_token_id)
        else:  # rounded up, for few shapes
            width = -(-int(lengths[rows[0]]) // PAD_MULTIPLE) * PAD_MULTIPLE
            batch = {name: value[rows, :width] for name, value in inputs.items()}
        chunks.append(Chunk(rows, batch, random_keys(seed, number).item()))
    return chunks


def put_back(parts: Sequence[torch.Tensor], chunks: Sequence[Chunk]) -> torch.Tensor:
    """Vectors of chunks, each (C, H), in the order of the batch, (S, H)."""
    place = torch.cat([chunk.rows for chunk in chunks]).argsort()
    return torch.cat(list(parts))[place]
