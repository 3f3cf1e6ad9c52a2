"""Each objective's loss and gradient equal the equation's, written down in NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modeling_condenser.finetuning.objectives import euclidean_distance, make_loss
from modeling_condenser.finetuning.recipe import FinetuningRecipe

B, H = 5, 6  # queries of a batch, numbers of a vector
DATA = {
    "contrastive": "negatives",
    "mse_cosine": "graded_pairs",
    "triplet": "triples",
    "margin_mse": "scored",
    "kl": "scored",
}


def recipe(objective: str, **settings: Any) -> FinetuningRecipe:
    return FinetuningRecipe("e", objective=objective, data="d", format=DATA[objective], **settings)


class Lookup(nn.Module):
    """An encoder whose token n has the n-th vector of a table, so that gradients can be seen."""

    def __init__(self, vectors: np.ndarray):
        super().__init__()
        self.table = nn.Parameter(torch.tensor(vectors))

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": self.table[features["input_ids"][:, 0]]}


def similarity(a: np.ndarray, b: np.ndarray, kind: str) -> np.ndarray:
    """Of rows of (..., H) vectors."""
    product = (a * b).sum(-1)
    if kind == "cosine":
        product = product / (np.sqrt((a * a).sum(-1)) * np.sqrt((b * b).sum(-1)))
    return product


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


# The equations. v: (columns, B, H), the query first; labels as the data gives them.


def contrastive(v: np.ndarray, labels: Any, kind: str, temperature: float) -> float:
    passages = v[1:].reshape(-1, H)  # all positives, then all negatives
    total = 0.0
    for i in range(B):
        scores = np.array([similarity(v[0, i], d, kind) for d in passages]) / temperature
        total += -np.log(np.exp(scores[i]) / np.exp(scores).sum())
    return total / B


def mse_cosine(v: np.ndarray, labels: np.ndarray) -> float:
    return float(
        np.mean([(similarity(v[0, i], v[1, i], "cosine") - labels[i]) ** 2 for i in range(B)])
    )


def triplet(v: np.ndarray, labels: Any, kind: str, margin: float) -> float:
    def distance(a: np.ndarray, b: np.ndarray) -> float:
        if kind == "euclidean":
            return float(np.sqrt(((a - b) ** 2).sum()))
        return float(1 - similarity(a, b, "cosine"))

    terms = [
        max(distance(v[0, i], v[1, i]) - distance(v[0, i], v[2, i]) + margin, 0) for i in range(B)
    ]
    return sum(terms) / B


def margin_mse(v: np.ndarray, labels: np.ndarray, kind: str) -> float:
    errors = [
        (similarity(v[0, i], v[1, i], kind) - similarity(v[0, i], v[1 + n, i], kind))
        - (labels[i, 0] - labels[i, n])
        for i in range(B)
        for n in range(1, len(v) - 1)
    ]
    return float(np.mean(np.square(errors)))


def kl(v: np.ndarray, labels: np.ndarray, kind: str, temperature: float) -> float:
    total = 0.0
    for i in range(B):
        scores = np.array([similarity(v[0, i], v[c, i], kind) for c in range(1, len(v))])
        teacher, student = softmax(labels[i] / temperature), softmax(scores / temperature)
        total += (teacher * (np.log(teacher) - np.log(student))).sum()
    return temperature**2 * total / B


COSINE = {"similarity": "cosine"}
CASES: list[tuple[str, dict[str, Any], int, Callable[..., float], tuple[Any, ...]]] = [
    ("contrastive", {}, 4, contrastive, ("dot", 1.0)),
    ("contrastive", {**COSINE, "temperature": 0.05}, 3, contrastive, ("cosine", 0.05)),
    ("contrastive", {"mini_batch_size": 2, "temperature": 2.0}, 3, contrastive, ("dot", 2.0)),
    ("mse_cosine", {}, 2, mse_cosine, ()),
    ("triplet", {"margin": 0.3}, 3, triplet, ("euclidean", 0.3)),
    ("triplet", COSINE, 3, triplet, ("cosine", 1.0)),
    ("margin_mse", COSINE, 5, margin_mse, ("cosine",)),
    ("kl", {**COSINE, "temperature": 2.0}, 4, kl, ("cosine", 2.0)),
]


@pytest.mark.parametrize(("objective", "settings", "columns", "equation", "arguments"), CASES)
def test_a_loss_and_its_gradient_are_the_equations(
    objective: str,
    settings: dict[str, Any],
    columns: int,
    equation: Callable[..., float],
    arguments: tuple[Any, ...],
) -> None:
    rng = np.random.default_rng(columns)
    vectors = rng.normal(size=(columns * B, H))
    labels = rng.normal(size=(B, columns - 1)) if objective in ("margin_mse", "kl") else None
    if objective == "mse_cosine":
        labels = rng.uniform(size=B)
    lookup = Lookup(vectors)
    model: Any = nn.Sequential(lookup)  # as a SentenceTransformer is
    ids = torch.arange(columns * B).reshape(columns, B, 1)
    batch = [{"input_ids": ids[c], "attention_mask": torch.ones(B, 1)} for c in range(columns)]
    loss = make_loss(recipe(objective, **settings), model)(
        batch, None if labels is None else torch.tensor(labels)
    )
    loss.backward()

    def expected(flat: np.ndarray) -> float:
        return equation(flat.reshape(columns, B, H), labels, *arguments)

    # The library's mean squared error rounds its labels to float32.
    precision = 1e-6 if objective == "mse_cosine" else 1e-10
    assert loss.item() == pytest.approx(expected(vectors), abs=precision)
    step = 1e-6
    for place in rng.choice(vectors.size, size=40, replace=False):
        nudge = np.zeros(vectors.size)
        nudge[place] = step
        up, down = (expected(vectors.ravel() + sign * nudge) for sign in (1, -1))
        assert lookup.table.grad.flatten()[place].item() == pytest.approx(
            (up - down) / (2 * step), abs=1e-6
        )


def test_equal_vectors_have_a_gradient_of_zero_and_not_nan() -> None:
    a = torch.ones(2, 3, requires_grad=True)
    euclidean_distance(a, torch.ones(2, 3)).sum().backward()
    assert a.grad is not None and a.grad.eq(0).all()
