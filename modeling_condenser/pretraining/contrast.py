"""Vectors of paired texts in, the contrastive loss over their batch out.

The batch is the unit: each text's positive is its partner, and every other text of the batch, on
all devices, is a negative. Two texts of a pair are neighbours: rows 2i and 2i + 1. S texts in a
batch, H numbers in a vector.

Sources: Gao & Callan (2021), "Unsupervised Corpus Aware Language Model Pre-training for Dense
Passage Retrieval" (coCondenser), arXiv 2108.05540; Lee, Chang & Toutanova (2019), "Latent Retrieval
for Weakly Supervised Open Domain Question Answering" (the Inverse Cloze Task).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch.nn import functional as F

Similarity = Literal["dot", "cosine"]
# Published: the plain dot product. A first trial at small size found cosine at 0.05 strong.
DEFAULT_TEMPERATURE: dict[str, float] = {"dot": 1.0, "cosine": 0.05}


class Contrasted(NamedTuple):
    """What a contrast gives.

    Attributes:
        loss: () nats, the mean over the texts that look for their partner.
        accuracy: () share of these whose partner is the most similar of all.
    """

    loss: torch.Tensor
    accuracy: torch.Tensor


@dataclass(frozen=True)
class Contrast:
    """How the vectors of a batch are contrasted.

    Attributes:
        similarity: "dot", as published, or "cosine".
        temperature: what similarities are divided by.
        one_way: False (coCondenser): every text looks for its partner among all other texts.
            True (Inverse Cloze Task): the first of each pair, a query, looks for its context among
            the second ones.

    Raises:
        ValueError: the temperature is not positive.
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
        """Contrast a whole batch.

        Args:
            vectors: (S, H), partners side by side, S at least 4: two pairs.
        """
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
