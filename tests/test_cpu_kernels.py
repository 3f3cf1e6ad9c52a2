"""Attention on a CPU: rates of dropout, formulas and gradients of torch's, from other draws."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from modeling_condenser import packing
from modeling_condenser.cpu_kernels import cpu_attention, draw_kept, rounded_rate
from tests.backbones.encoders import BACKBONES
from tests.models import assert_same, losses_and_gradients, make_model

RATE = 0.3


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_units_are_dropped_at_the_rate_independently_and_by_the_generator_of_torch(rate):
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
    return cpu_attention(*rows, **{"mask": None, "rate": RATE, **kwargs})


def test_attention_is_the_formula_and_its_gradient_is_its_own():
    (query, key, value), scale = make_rows(), 0.2
    found = seeded(query, key, value, mask=MASK, scale=scale)
    torch.manual_seed(1)
    scores = (query @ key.transpose(-1, -2) * scale).masked_fill(~MASK, -torch.inf)
    kept = draw_kept(scores.shape, RATE).double() / (1 - rounded_rate(RATE))
    expected = scores.softmax(-1) * kept @ value
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    whole = cpu_attention(query, key, value, MASK, rate=1e-9)
    torch.testing.assert_close(whole, F.scaled_dot_product_attention(query, key, value, MASK))
    assert torch.autograd.gradcheck(lambda *rows: seeded(*rows, mask=MASK), make_rows())


@pytest.mark.parametrize(("rate", "n_keys"), [(RATE, 4), (0.0, 4), (RATE, 200), (0.0, 200)])
def test_attention_in_bfloat16_is_near_float32(rate, n_keys):
    query, key, value = (row.detach().bfloat16() for row in make_rows())
    key, value = (row.repeat(1, 1, n_keys // 4, 1) for row in (key, value))
    short = [row.requires_grad_() for row in (query, key, value)]
    wide = [row.detach().float().requires_grad_() for row in short]
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = seeded(*short, rate=rate), seeded(*wide, rate=rate)
    found.sum().backward()
    expected.sum().backward()
    assert found.dtype == torch.bfloat16
    if not rate:
        torch.testing.assert_close(expected, F.scaled_dot_product_attention(*wide))
    pairs = [(found, expected), *((a.grad, b.grad) for a, b in zip(short, wide, strict=True))]
    for one, other in pairs:
        torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2)


def test_packed_batches_drop_weights_in_training_and_the_same_again_when_recomputed(monkeypatch):
    rates = []

    def count(*rows: Any, rate: float, **kwargs: Any) -> torch.Tensor:
        rates.append(rate)
        return cpu_attention(*rows, rate=rate, **kwargs)

    monkeypatch.setattr(packing, "cpu_attention", count)
    model, batch = make_model("BERT"), packing.pack(BACKBONES["BERT"].batch(6, 40))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = RATE
    packing.use_packing(model, narrow=False)
    torch.manual_seed(0)
    expected = losses_and_gradients(model, batch)
    assert set(rates) == {RATE}
    assert losses_and_gradients(model, batch)["loss"] != expected["loss"]
    model.gradient_checkpointing_enable()
    torch.manual_seed(0)
    assert_same(losses_and_gradients(model, batch), expected)
    rates.clear()
    model.eval()(**batch)
    assert rates == []
