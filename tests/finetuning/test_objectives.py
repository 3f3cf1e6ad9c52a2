"""Each objective's loss and gradient equal those of the equation, written down in plain torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modeling_condenser.finetuning.losses import euclidean_distance, find_false_negatives, make_loss
from modeling_condenser.finetuning.recipe import FinetuningRecipe

B, H = 5, 6  # queries of a batch, numbers of a vector


class Lookup(nn.Module):
    """An encoder whose token n has the n-th vector of a table, so that gradients can be seen."""

    def __init__(self, vectors: Tensor):
        super().__init__()
        self.table = nn.Parameter(vectors)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.table[features["input_ids"][:, 0]]}


# The equations. v: (columns, B, H), the query first; labels as the data gives them.


def similarity(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """Of rows of (..., H) vectors."""
    product = (a * b).sum(-1)
    if kind == "cosine":
        product = product / ((a * a).sum(-1) * (b * b).sum(-1)) ** 0.5
    return product


def contrastive(v: Tensor, labels: Any, kind: str, temperature: float) -> Tensor:
    passages = v[1:].reshape(-1, v.shape[-1])  # all positives, then all negatives
    scores = (similarity(v[0][:, None], passages[None], kind) / temperature).exp()
    return -(scores.diagonal() / scores.sum(1)).log().mean()


def mse_cosine(v: Tensor, labels: Tensor) -> Tensor:
    return ((similarity(v[0], v[1], "cosine") - labels) ** 2).mean()


def triplet(v: Tensor, labels: Any, kind: str, margin: float) -> Tensor:
    distances = ((v[:1] - v[1:]) ** 2).sum(-1) ** 0.5
    if kind == "cosine":
        distances = 1 - similarity(v[:1], v[1:], kind)
    terms = distances[0] - distances[1] + margin
    return (terms * (terms > 0)).mean()


def margin_mse(v: Tensor, labels: Tensor, kind: str, temperature: float) -> Tensor:
    scores = similarity(v[:1], v[1:], kind).T / temperature  # (B, positive and negatives)
    errors = (scores[:, :1] - scores[:, 1:]) - (labels[:, :1] - labels[:, 1:])
    return (errors**2).mean()


def kl(v: Tensor, labels: Tensor, kind: str, temperature: float) -> Tensor:
    scores = similarity(v[:1], v[1:], kind).T
    teacher, student = labels.softmax(-1), (scores / temperature).softmax(-1)
    return temperature**2 * (teacher * (teacher / student).log()).sum(-1).mean()


def make_batch(objective: str, columns: int) -> tuple[Any, ...]:
    """Vectors and labels; a table of the vectors, a model that reads it, and its batch."""
    generator = torch.Generator().manual_seed(columns)
    vectors = torch.randn(columns, B, H, generator=generator, dtype=torch.float64)
    shape = (B,) if objective == "mse_cosine" else (B, columns - 1)
    labels = torch.rand(shape, generator=generator, dtype=torch.float64)
    lookup = Lookup(vectors.reshape(-1, H).clone())
    model: Any = nn.Sequential(lookup)  # as a SentenceTransformer is
    model.get_embedding_dimension = lambda: H
    ids = torch.arange(columns * B).reshape(columns, B, 1)
    batch = [{"input_ids": ids[c], "attention_mask": torch.ones(B, 1)} for c in range(columns)]
    return vectors, labels, lookup, model, batch


COSINE = {"similarity": "cosine"}
CASES: list[tuple[str, dict[str, Any], int, Callable[..., Tensor], tuple[Any, ...]]] = [
    ("contrastive", {}, 4, contrastive, ("dot", 1.0)),
    ("contrastive", {**COSINE, "temperature": 0.1}, 3, contrastive, ("cosine", 0.1)),
    ("contrastive", {"mini_batch_size": 2, "temperature": 2.0}, 3, contrastive, ("dot", 2.0)),
    ("contrastive", {**COSINE, "mini_batch_size": 2}, 3, contrastive, ("cosine", 0.05)),
    ("mse_cosine", {}, 2, mse_cosine, ()),
    ("triplet", {"margin": 0.3}, 3, triplet, ("euclidean", 0.3)),
    ("triplet", COSINE, 3, triplet, ("cosine", 1.0)),
    ("margin_mse", {}, 3, margin_mse, ("dot", 1.0)),
    ("margin_mse", COSINE, 5, margin_mse, ("cosine", 0.05)),
    ("kl", {**COSINE, "temperature": 2.0}, 4, kl, ("cosine", 2.0)),
    ("kl", COSINE, 3, kl, ("cosine", 0.05)),
]


DIMS = [pytest.param(None, id="whole vectors"), pytest.param([2, 4], id="matryoshka_dims")]


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize(("objective", "settings", "columns", "equation", "arguments"), CASES)
def test_a_loss_and_its_gradient_are_the_equations(
    objective, settings, columns, equation, arguments, dims
):
    """With `matryoshka_dims`, the loss is the sum over the first numbers and the whole vectors."""
    if dims and objective != "mse_cosine" and "similarity" not in settings:
        pytest.skip("for the similarity cosine only")
    vectors, labels, lookup, model, batch = make_batch(objective, columns)
    recipe = FinetuningRecipe("e", objective, data="d", matryoshka_dims=dims, **settings)
    given = None if objective == "contrastive" else labels
    loss = make_loss(recipe, model)(batch, given)
    loss.backward()
    vectors.requires_grad_()
    expected = sum(equation(vectors[..., :dim], labels, *arguments) for dim in [H, *(dims or [])])
    expected.backward()
    # The library's mean squared error rounds its labels to float32.
    precision = 1e-6 if objective == "mse_cosine" else 1e-9
    assert loss.item() == pytest.approx(expected.item(), abs=precision)
    assert torch.allclose(lookup.table.grad, vectors.grad.reshape(-1, H), rtol=0, atol=precision)


def test_equal_vectors_have_a_gradient_of_zero_and_not_nan():
    a = torch.ones(2, 3, requires_grad=True)
    euclidean_distance(a, torch.ones(2, 3)).sum().backward()
    assert a.grad is not None and a.grad.eq(0).all()


def test_positives_of_a_query_that_are_drawn_for_others_are_masked():
    """The labels are rows of passages: of the positive and a negative, then of all positives."""
    ids = [[11, 12, 13], [21, 22, 23], [24, 25, 26]]
    batch = []
    for column in ids:
        texts = torch.tensor(column)[:, None]
        batch.append({"input_ids": texts, "attention_mask": torch.ones_like(texts)})
    labels = torch.tensor([[1, 4, 1, 2, 6], [2, 5, 2, 2, 2], [3, 6, 9, 3, 9]])
    actual = find_false_negatives(batch, labels, is_gathered=False).int().tolist()
    # Passages 1, 2, 3 and 4, 5, 6.
    assert actual == [[0, 1, 0, 0, 0, 1], [0] * 6, [0] * 6]


MASKED: list[dict[str, Any]] = [{}, {"mini_batch_size": 2}, {"matryoshka_dims": [2]}]


@pytest.mark.parametrize("settings", MASKED)
def test_copies_of_a_positive_other_positives_and_the_query_are_no_negatives(settings):
    """A text is a token id, as in the columns of queries, positives and negatives."""
    ids = [[11, 12, 11, 13, 14], [21, 21, 22, 23, 24], [23, 25, 13, 26, 21]]
    # Query -> the passages of the batch that are its negatives.
    negatives = {0: [23, 23, 24, 25, 13, 26], 1: [22, 23, 23, 24, 25, 13, 26]}
    negatives[2] = negatives[0]  # of the same query, so that 21 and 22 are positives of both
    negatives |= {3: [21, 21, 22, 24, 25, 26, 21], 4: [21, 21, 22, 23, 23, 25, 13, 26, 21]}
    _, _, lookup, model, _ = make_batch("contrastive", 6)
    batch = []
    for column in ids:
        columns = {"input_ids": [[i, 0, 0] for i in column], "attention_mask": [[1, 0, 0]] * 5}
        batch.append({name: torch.tensor(rows) for name, rows in columns.items()})
    recipe = FinetuningRecipe("e", data="d", temperature=1.0, **COSINE, **settings)
    loss = make_loss(recipe, model)(batch, None)
    loss.backward()
    expected = torch.zeros((), dtype=torch.float64)
    table = lookup.table.detach().clone().requires_grad_()
    for dim in (H, *settings.get("matryoshka_dims", ())):
        for row, (query, positive) in enumerate(zip(*ids[:2], strict=True)):
            passages = table[[positive, *negatives[row]], :dim]
            scores = similarity(table[query, :dim], passages, "cosine")
            expected = expected - scores.log_softmax(0)[0] / 5
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-9)
    assert table.grad is not None
    assert torch.allclose(lookup.table.grad, table.grad, rtol=0, atol=1e-9)
