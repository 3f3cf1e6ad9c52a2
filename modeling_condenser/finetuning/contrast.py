"""A contrast over a batch, in which copies of a query's positive are not its negatives.

Where positives repeat, as in frequently asked questions, batches without a text twice would leave
most rows out. So all rows are trained, and the false negatives of a batch are masked.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers.util.distributed import all_gather, get_rank
from torch import nn

from modeling_condenser.pretraining.counter_random import random_keys

Column = Mapping[str, torch.Tensor]
"""`input_ids` and `attention_mask` of a column of a batch, each (B, T)."""


class MaskedContrast(nn.Module):
    """A contrastive loss of sentence-transformers that gets its scores from `score`.

    Args:
        model: the trainer puts a model with synchronised gradients in its place, here and in the
            loss.
        similarity: of (B, H) and (C, H) vectors: (B, C).
        is_gathered: whether the passages of all processes are contrasted.
    """

    loss: nn.Module  # set after it was made with `score`

    def __init__(
        self,
        model: nn.Module,
        similarity: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        *,
        is_gathered: bool,
    ):
        super().__init__()
        self.model, self.similarity, self.is_gathered = model, similarity, is_gathered
        self._masked = torch.empty(0)  # of the batch

    def forward(self, features: Sequence[Column], labels: Any) -> torch.Tensor:
        """The loss of a batch: columns of queries, positives and negatives."""
        features = list(features)
        self._masked = find_false_negatives(features, is_gathered=self.is_gathered)
        return self.loss(features, labels)

    def score(self, queries: torch.Tensor, passages: torch.Tensor) -> torch.Tensor:
        """The similarities of some queries and all passages; false negatives have -inf.

        A loss asks for all queries of the batch in their order, in one call or in several.
        """
        masked = self._masked[: len(queries)]
        self._masked = self._masked.roll(-len(queries), dims=0)
        return self.similarity(queries, passages).masked_fill(masked, float("-inf"))


def find_false_negatives(features: Sequence[Column], *, is_gathered: bool) -> torch.Tensor:
    """Find the passages of a batch that are not negatives of a query.

    These are the other copies of its positive, the positives of equal queries and their copies, and
    the query itself. Texts are equal if the model reads the same tokens, prompts included.

    Returns:
        (B, C) bool, for B queries of this process, and C passages (of all processes if gathered) in
        the order of sentence-transformers: all positives, then each column of negatives.
    """
    columns, first = list(map(_identify, features)), 0
    n_queries = len(columns[0])
    if is_gathered:
        columns, first = list(map(all_gather, columns)), get_rank() * n_queries
    queries, positives, passages = columns[0], columns[1], torch.cat(columns[1:])
    own = queries[first : first + n_queries, None]  # (B, 1)
    is_positive = (positives[:, None] == passages).float()  # (Q, C)
    masked = ((own == queries).float() @ is_positive > 0) | (own == passages)
    rows = torch.arange(n_queries, device=masked.device)
    masked[rows, first + rows] = False  # the positive itself
    return masked


def _identify(column: Column) -> torch.Tensor:
    """A hash of the tokens of each text, (B,) int64, whatever the padding."""
    ids, mask = column["input_ids"], column["attention_mask"].long()
    keys = torch.from_numpy(random_keys(0, np.arange(1 + ids.shape[1]))).to(ids.device)
    return ((ids + 1) * keys[mask.cumsum(dim=1)] * mask).sum(dim=1)
