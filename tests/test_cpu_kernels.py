"""Dropout of attention weights: rates, formulas and gradients of torch's, from other draws."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from modeling_condenser import packing
from modeling_condenser.cpu_kernels import (
    attention_with_dropout,
    draw_kept,
    rounded_rate,
)
from modeling_condenser.packing import use_packing
from tests.backbones.encoders import BACKBONES
from tests.test_packing import assert_same, losses_and_gradients, make_model, pack

RATE = 0.3


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_units_are_dropped_at_the_rate_independently_and_by_the_generator_of_torch(
    rate: float,
) -> None:
    torch.manual_seed(0)
    n = 2_000_003  # not a multiple of the four that share a number
    kept, again = draw_kept(torch.Size([n]), rate), draw_kept(torch.Size([n]), rate)
    assert set(kept.unique().tolist()) == {0, 1}
    variance = rate * (1 - rate)
    assert abs(1 - kept.double().mean().item() - rounded_rate(rate)) < 4 * (variance / n) ** 0.5
    assert abs(rounded_rate(rate) - rate) <= 2**-17
    centred = kept.double() - (1 - rate)
    for distance in (1, 2, 3, 4, 768):
        correlation = (centred[distance:] * centred[:-distance]).mean().item() / variance
        assert abs(correlation) < 4 * n**-0.5, distance
    assert not torch.equal(again, kept)
    torch.manual_seed(0)
    assert torch.equal(draw_kept(torch.Size([n]), rate), kept)


def make_rows() -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((2, 2, 3, 4), (2, 2, 4, 4), (2, 2, 4, 4))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


MASK = torch.ones(2, 1, 3, 4, dtype=torch.bool)
MASK[0, 0, 1, 1:] = MASK[1, 0, :, 2] = False


def seeded(*rows: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    torch.manual_seed(1)
    return attention_with_dropout(*rows, **{"mask": None, "rate": RATE, **kwargs})


def test_attention_is_the_formula_and_its_gradient_is_its_own() -> None:
    (query, key, value), scale = make_rows(), 0.2
    found = seeded(query, key, value, mask=MASK, scale=scale)
    torch.manual_seed(1)
    scores = (query @ key.transpose(-1, -2) * scale).masked_fill(~MASK, -torch.inf)
    kept = draw_kept(scores.shape, RATE).double() / (1 - rounded_rate(RATE))
    expected = scores.softmax(-1) * kept @ value
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda *rows: seeded(*rows, mask=MASK), make_rows())


def test_attention_almost_without_dropout_is_torchs() -> None:
    rows = make_rows()
    found = attention_with_dropout(*rows, MASK, rate=1e-9)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*rows, attn_mask=MASK))


def test_attention_in_bfloat16_is_near_float32_and_keeps_one_number_a_weight() -> None:
    wide = [row.detach().bfloat16().float().requires_grad_() for row in make_rows()]
    short = [row.detach().bfloat16().requires_grad_() for row in wide]
    kept: list[torch.Tensor] = []
    with (
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t),
    ):
        found = seeded(*short)
        found.sum().backward()
    expected = seeded(*wide)
    expected.sum().backward()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
    for one, other in zip(short, wide, strict=True):
        torch.testing.assert_close(one.grad.float(), other.grad, rtol=2e-2, atol=2e-2)
    n_weights = 2 * 2 * 3 * 4
    of_attention = [t for t in kept if t.dtype == torch.bfloat16 and t.dim() == 4]
    assert sum(t.nbytes for t in of_attention) == sum(t.nbytes for t in short) + 2 * n_weights


def make_dropping_model() -> Any:
    model = make_model("BERT")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = RATE
    use_packing(model, narrow=False)
    return model.train()


def test_packed_batches_drop_weights_only_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []

    def count(*rows: Any, rate: float, **kwargs: Any) -> torch.Tensor:
        rates.append(rate)
        return attention_with_dropout(*rows, rate=rate, **kwargs)

    monkeypatch.setattr(packing, "attention_with_dropout", count)
    model, batch = make_dropping_model(), pack(BACKBONES["BERT"].batch(6, 40))
    assert len({model(**batch).loss.item() for _ in range(3)}) == 3
    assert set(rates) == {RATE}
    rates.clear()
    model.eval()
    assert model(**batch).loss.item() == model(**batch).loss.item()
    assert rates == []


def test_gradient_checkpointing_drops_the_same_again() -> None:
    model, batch = make_dropping_model(), pack(BACKBONES["BERT"].batch(6, 40))
    torch.manual_seed(0)
    expected = losses_and_gradients(model, batch)
    model.gradient_checkpointing_enable()
    torch.manual_seed(0)
    assert_same(losses_and_gradients(model, batch), expected)
