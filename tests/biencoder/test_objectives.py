"""Each objective's loss and gradient equal the equation's, written down in NumPy."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import nn

from modeling_condenser.biencoder.objectives import euclidean_distance, make_loss
from modeling_condenser.biencoder.recipe import FinetuningRecipe
from modeling_condenser.biencoder.trainer import LengthCollator
from modeling_condenser.repository.contract import EncodingContract

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


CASES: list[tuple[str, dict[str, Any], int, Callable[..., float], tuple[Any, ...]]] = [
    ("contrastive", {}, 4, contrastive, ("dot", 1.0)),
    (
        "contrastive",
        {"similarity": "cosine", "temperature": 0.05},
        3,
        contrastive,
        ("cosine", 0.05),
    ),
    ("mse_cosine", {}, 2, mse_cosine, ()),
    ("triplet", {"margin": 0.3}, 3, triplet, ("euclidean", 0.3)),
    ("triplet", {"similarity": "cosine"}, 3, triplet, ("cosine", 1.0)),
    ("margin_mse", {}, 3, margin_mse, ("dot",)),
    ("margin_mse", {"similarity": "cosine"}, 5, margin_mse, ("cosine",)),
    ("kl", {}, 4, kl, ("dot", 1.0)),
    ("kl", {"temperature": 2.0, "similarity": "cosine"}, 4, kl, ("cosine", 2.0)),
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
    model: Any = Lookup(vectors)
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
        assert model.table.grad.flatten()[place].item() == pytest.approx(
            (up - down) / (2 * step), abs=1e-6
        )


def test_equal_vectors_have_a_gradient_of_zero_and_not_nan() -> None:
    a = torch.ones(2, 3, requires_grad=True)
    euclidean_distance(a, torch.ones(2, 3)).sum().backward()
    assert a.grad is not None and a.grad.eq(0).all()


# The gradient cache, on a real encoder.


@pytest.fixture(scope="module")
def model(bert_folder: Path) -> SentenceTransformer:
    transformer = Transformer(str(bert_folder))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode="cls")], device="cpu")


def features(
    model: SentenceTransformer, texts: list[str], *, n: int, columns: int, n_words: tuple[int, int]
) -> list[Any]:
    """A batch of n rows of random words, cut at 24 tokens."""
    rng = np.random.default_rng(0)
    words = [word for text in texts for word in text.split()]
    rows = [
        {f"c{c}": " ".join(rng.choice(words, size=rng.integers(*n_words))) for c in range(columns)}
        for _ in range(n)
    ]
    batch = LengthCollator(model.tokenizer, EncodingContract(24, 24))(rows)
    return [
        {name: batch[f"c{c}_{name}"] for name in ("input_ids", "attention_mask")}
        for c in range(columns)
    ]


def gradients(
    made: FinetuningRecipe, model: SentenceTransformer, batch: list[Any]
) -> tuple[float, dict[str, torch.Tensor]]:
    model = copy.deepcopy(model)
    loss = make_loss(made, model)([dict(column) for column in batch], torch.empty(0))
    loss.backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return loss.item(), found


def test_the_gradient_cache_gives_the_gradient_of_the_whole_batch(
    model: SentenceTransformer, texts: list[str]
) -> None:
    settings = {"similarity": "cosine", "temperature": 0.05}
    model = model.eval()  # no dropout
    batch = features(model, texts, n=30, columns=3, n_words=(2, 12))
    loss, whole = gradients(recipe("contrastive", **settings), model, batch)
    cached_loss, cached = gradients(
        recipe("contrastive", **settings, mini_batch_size=7), model, batch
    )
    assert cached_loss == pytest.approx(loss, abs=1e-5)
    assert cached.keys() == whole.keys() and len(whole) > 60
    largest = max(gradient.abs().max().item() for gradient in whole.values())
    for name, gradient in whole.items():
        assert (cached[name] - gradient).abs().max().item() <= 1e-5 * max(largest, 1), name
    assert largest > 0.01  # so that the bound says something


def test_with_dropout_the_cache_repeats_the_first_passs_random_numbers(
    model: SentenceTransformer, texts: list[str]
) -> None:
    """The gradient is that of the vectors which the loss has seen: each text drops units once."""
    model = model.train()
    size, n = 8, 20
    # All of 24 tokens: the cache trims padding, which would move the draws.
    batch = features(model, texts, n=n, columns=2, n_words=(24, 30))
    torch.manual_seed(5)
    loss, cached = gradients(recipe("contrastive", mini_batch_size=size), model, batch)

    plain = copy.deepcopy(model)
    torch.manual_seed(5)
    vectors = [
        torch.cat(
            [
                plain({name: t[start : start + size] for name, t in column.items()})[
                    "sentence_embedding"
                ]
                for start in range(0, n, size)
            ]
        )
        for column in batch
    ]
    scores = vectors[0] @ vectors[1].T
    expected = nn.functional.cross_entropy(scores, torch.arange(n))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in plain.named_parameters():
        if parameter.grad is not None:
            assert torch.allclose(cached[name], parameter.grad, atol=1e-5, rtol=1e-4), name
