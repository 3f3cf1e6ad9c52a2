"""The losses of fine-tuning, by sentence-transformers, with a mask for false negatives.

Where positives repeat, as in frequently asked questions, batches without a text twice would leave
most rows out. So all rows are trained, and the false negatives of a batch are masked.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util import SimilarityFunction
from sentence_transformers.util.distributed import all_gather, get_rank
from torch import nn

from .recipe import FinetuningRecipe

Column = Mapping[str, torch.Tensor]
"""`input_ids` and `attention_mask` of a column of a batch, each (B, T)."""

_BASE = 6364136223846793005  # of a polynomial hash; Knuth's multiplier


def make_loss(recipe: FinetuningRecipe, model: SentenceTransformer) -> nn.Module:
    """Make the loss of a recipe's objective for a model with unnormalised vectors.

    s is the similarity, t the temperature, q a query, p its positive and n a negative:

    contrastive   -log( exp(s(q,p)/t) / sum over d of exp(s(q,d)/t) ), d all positives and negatives
                  of the batch but false ones, see `find_false_negatives` (Condenser eq. 12; DPR's
                  loss for dot and t = 1)
    mse_cosine    (cos(u,v) - score)^2, the score from 0 to 1 (Reimers & Gurevych 2019, section 3)
    triplet       max( dist(q,p) - dist(q,n) + margin, 0 ), dist Euclidean (the same section) or
                  1 - cos (the thesis, eq. 3.1)
    margin_mse    ( (s(q,p) - s(q,n))/t - (teacher(q,p) - teacher(q,n)) )^2 (Hofstätter et al. 2020,
                  with t = 1)
    kl            t^2 KL( softmax(teacher) || softmax(s/t) ) over a query's passages

    A loss is the mean over the batch. `matryoshka_dims` adds the losses of truncated vectors.
    """
    similarity, temperature = recipe.loss_similarity, recipe.loss_temperature
    pairwise = SimilarityFunction.to_similarity_pairwise_fn(similarity)
    contrast = None
    loss: Any
    match recipe.objective:
        case "contrastive":
            contrast = MaskedContrast(
                model,
                SimilarityFunction.to_similarity_fn(similarity),  # type: ignore[arg-type]
                is_gathered=recipe.gather_across_devices,
            )
            options: dict[str, Any] = {
                "scale": 1.0 / temperature,
                "similarity_fct": contrast.score,
                "gather_across_devices": recipe.gather_across_devices,
            }
            if recipe.mini_batch_size is None:
                loss = losses.MultipleNegativesRankingLoss(model, **options)
            else:  # gradient cache, Gao et al. 2021
                options["mini_batch_size"] = recipe.mini_batch_size
                loss = losses.CachedMultipleNegativesRankingLoss(model, **options)
        case "mse_cosine":
            loss = losses.CosineSimilarityLoss(model)
        case "triplet":
            distance: Any = euclidean_distance
            if similarity == "cosine":
                distance = losses.TripletDistanceMetric.COSINE
            loss = losses.TripletLoss(model, distance, recipe.margin)
        case "margin_mse":

            def divided(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                return pairwise(a, b) / temperature

            loss = losses.MarginMSELoss(model, similarity_fct=divided)
        case "kl":
            loss = losses.DistillKLDivLoss(
                model, pairwise, student_temperature=temperature, teacher_temperature=1.0
            )
    if recipe.matryoshka_dims is not None:
        dimension: Any = model.get_embedding_dimension()
        dims = sorted({dimension, *recipe.matryoshka_dims}, reverse=True)
        loss = losses.MatryoshkaLoss(model, loss, dims)
    if contrast is None:
        return loss
    contrast.loss = loss
    return contrast


def euclidean_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the distance of each row of (B, H) vectors: (B,); equal vectors have gradient 0.

    The gradient of `TripletDistanceMetric.EUCLIDEAN` is NaN for equal vectors.
    """
    return torch.linalg.vector_norm(a - b, dim=-1)


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
        """The loss of a batch: columns of queries, positives and negatives; labels as below."""
        features = list(features)
        self._masked = find_false_negatives(features, labels, is_gathered=self.is_gathered)
        return self.loss(features, labels)

    def score(self, queries: torch.Tensor, passages: torch.Tensor) -> torch.Tensor:
        """The similarities of some queries and all passages; false negatives have -inf.

        A loss asks for all queries of the batch in their order, in one call or in several.
        """
        masked = self._masked[: len(queries)]
        self._masked = self._masked.roll(-len(queries), dims=0)
        return self.similarity(queries, passages).masked_fill(masked, float("-inf"))


def find_false_negatives(
    features: Sequence[Column], labels: torch.Tensor | None = None, *, is_gathered: bool
) -> torch.Tensor:
    """Find the passages of a batch that are not negatives of a query.

    These are the other copies of its positive, the positives of equal queries and their copies, and
    the query itself. Texts are equal if the model reads the same tokens, prompts included. With
    labels, they are also its positives that are not drawn.

    Args:
        features: the columns of queries, positives and negatives.
        labels: (B, 1 + N + P) of `DrawnPassages`: the rows of a query's positive and N negatives in
            the batch, and of all its positives.
        is_gathered: whether the passages of all processes are contrasted.

    Returns:
        (B, C) bool, for B queries of this process, and C passages (of all processes if gathered) in
        the order of sentence-transformers: all positives, then each column of negatives.
    """
    columns, first = [_hash_texts(column) for column in features], 0
    n_queries, n_passages = len(columns[0]), len(columns) - 1
    numbers = None if labels is None else labels[:, :n_passages].contiguous()  # for NCCL
    if is_gathered:
        columns, first = [all_gather(column) for column in columns], get_rank() * n_queries
        numbers = None if numbers is None else all_gather(numbers)
    all_queries, positives, passages = columns[0], columns[1], torch.cat(columns[1:])
    queries = all_queries[first : first + n_queries, None]  # (B, 1)
    is_positive = (positives[:, None] == passages).float()  # (Q, C)
    masked = ((queries == all_queries).float() @ is_positive > 0) | (queries == passages)
    if labels is not None and numbers is not None:
        all_rows = numbers.T.flatten()  # (C,)
        masked |= torch.stack([torch.isin(all_rows, own) for own in labels[:, n_passages:]])
    rows = torch.arange(n_queries, device=masked.device)
    masked[rows, first + rows] = False  # the positive itself
    return masked


def _hash_texts(column: Column) -> torch.Tensor:
    """A hash of the tokens of each text, (B,) int64, whatever the padding."""
    ids, mask = column["input_ids"], column["attention_mask"].long()
    powers = torch.full((1 + ids.shape[1],), _BASE, device=ids.device).cumprod(dim=0)  # mod 2^64
    return ((ids + 1) * powers[mask.cumsum(dim=1)] * mask).sum(dim=1)
