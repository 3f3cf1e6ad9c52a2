"""The losses of the objectives; sentence-transformers implements all of them.

With s the similarity, t the temperature, q a query, p its positive and n a negative:

contrastive   -log( exp(s(q,p)/t) / sum over d of exp(s(q,d)/t) ), d all positives and negatives of
              the batch (Condenser eq. 12; DPR's loss for dot and t = 1)
mse_cosine    (cos(u,v) - score)^2, the score from 0 to 1 (Reimers & Gurevych 2019, section 3)
triplet       max( dist(q,p) - dist(q,n) + margin, 0 ), dist Euclidean (the same section) or
              1 - cos (the thesis, eq. 3.1)
margin_mse    ( (s(q,p) - s(q,n)) - (teacher(q,p) - teacher(q,n)) )^2 (Hofstätter et al. 2020)
kl            t^2 KL( softmax(teacher/t) || softmax(s/t) ) over a query's passages

Each is the mean over the batch. With `matryoshka_dims`, the loss is the sum over truncated vectors.
"""

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    CosineSimilarityLoss,
    DistillKLDivLoss,
    MarginMSELoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    TripletDistanceMetric,
    TripletLoss,
)
from sentence_transformers.util import SimilarityFunction
from torch import nn

from .recipe import FinetuningRecipe


def make_loss(recipe: FinetuningRecipe, model: SentenceTransformer) -> nn.Module:
    """Make the loss of a recipe's objective; `model` must give unnormalised vectors."""
    loss, dims = _make_loss(recipe, model), matryoshka_dims(recipe, model)
    return MatryoshkaLoss(model, loss, dims) if dims else loss


def matryoshka_dims(recipe: FinetuningRecipe, model: SentenceTransformer) -> list[int]:
    """The dimensions to train at, the whole vector's too; none if the recipe states none."""
    stated = recipe.matryoshka_dims
    if stated is None:
        return []
    whole: Any = model.get_embedding_dimension()
    if not stated or not all(0 < dim < whole for dim in stated):
        raise ValueError(
            f"matryoshka_dims is {stated}, but vectors have {whole} numbers: list dimensions from 1"
            f" to {whole - 1}; the whole vector is always trained."
        )
    return sorted({whole, *stated}, reverse=True)


def _make_loss(recipe: FinetuningRecipe, model: SentenceTransformer) -> nn.Module:
    similarity = recipe.trained_similarity
    pairwise = SimilarityFunction.to_similarity_pairwise_fn(similarity)
    match recipe.objective:
        case "contrastive":
            arguments: dict[str, Any] = {
                "scale": 1.0 / recipe.temperature,
                "similarity_fct": SimilarityFunction.to_similarity_fn(similarity),
                "gather_across_devices": recipe.gather_across_devices,
            }
            size = recipe.mini_batch_size
            if size is None:
                return MultipleNegativesRankingLoss(model, **arguments)
            # Gradient cache, Gao et al. 2021
            return CachedMultipleNegativesRankingLoss(model, mini_batch_size=size, **arguments)
        case "mse_cosine":
            return CosineSimilarityLoss(model)
        case "triplet":
            is_cosine = similarity == "cosine"
            distance = TripletDistanceMetric.COSINE if is_cosine else euclidean_distance
            return TripletLoss(model, distance_metric=distance, triplet_margin=recipe.margin)
        case "margin_mse":
            return MarginMSELoss(model, similarity_fct=pairwise)
        case "kl":
            temperature = recipe.temperature
            return DistillKLDivLoss(model, similarity_fct=pairwise, temperature=temperature)


def euclidean_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of (B, H) vectors, row by row: (B,); the gradient of equal vectors is 0, not NaN."""
    return torch.linalg.vector_norm(a - b, dim=-1)
