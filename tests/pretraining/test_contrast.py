"""The contrastive loss, against a brute-force computation in NumPy."""

import math

import numpy as np
import pytest
import torch

from modeling_condenser.pretraining.contrast import Contrast


def brute_force(vectors, *, cosine=False, temperature=1.0, one_way=False) -> tuple[float, float]:
    """Loss and accuracy, text by text, from the definition."""
    if cosine:
        vectors = [v / np.sqrt((v * v).sum()) for v in vectors]
    seekers = range(0, len(vectors), 2) if one_way else range(len(vectors))
    losses, found = [], []
    for i in seekers:
        partner = i + 1 if i % 2 == 0 else i - 1
        others = [j for j in range(len(vectors)) if j != i]
        if one_way:
            others = [j for j in others if j % 2 == 1]
        scores = {j: float(vectors[i] @ vectors[j]) / temperature for j in others}
        losses.append(math.log(sum(math.exp(s) for s in scores.values())) - scores[partner])
        found.append(max(scores, key=scores.get) == partner)
    return float(np.mean(losses)), float(np.mean(found))


@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize(("similarity", "temperature"), [("dot", 1.0), ("cosine", 0.05)])
def test_loss_and_accuracy_equal_brute_force(similarity, temperature, one_way):
    vectors = np.random.default_rng(0).normal(size=(12, 5))
    vectors[1::2] += 0.5 * vectors[::2]  # partners are somewhat alike
    expected = brute_force(
        vectors, cosine=similarity == "cosine", temperature=temperature, one_way=one_way
    )
    found = Contrast(similarity, temperature, one_way=one_way)(torch.tensor(vectors))
    assert found.loss.item() == pytest.approx(expected[0], rel=1e-5)
    assert found.accuracy.item() == pytest.approx(expected[1])
    assert 0 < expected[1] < 1


def test_two_pairs_of_unit_vectors_have_the_loss_worked_out_by_hand():
    east, north = [1.0, 0.0], [0.0, 1.0]
    found = Contrast()(torch.tensor([east, east, north, north]))
    # Each text: its sibling at 1, the two others at 0.
    assert found.loss.item() == pytest.approx(math.log(math.e + 2) - 1, rel=1e-6)
    assert found.accuracy.item() == 1.0


def test_a_pair_that_is_exchanged_whole_changes_nothing():
    vectors = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    exchanged = vectors[[1, 0, 3, 2, 6, 7, 4, 5]]
    torch.testing.assert_close(Contrast()(vectors), Contrast()(exchanged))


def test_vectors_of_low_precision_are_contrasted_in_full():
    vectors = 10 * torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    low = vectors.bfloat16()
    assert Contrast()(low).loss.item() == Contrast()(low.float()).loss.item()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature is .* set it above 0"):
        Contrast("cosine", temperature)
