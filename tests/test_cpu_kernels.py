"""Attention on a CPU: rates of dropout, formulas and gradients of torch's, from other draws."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from modeling_condenser import packed_attention, packing
from modeling_condenser.cpu_kernels import Kept, cpu_attention, draw_seed, rounded_rate
from tests.backbones.encoders import BACKBONES
from tests.models import assert_same, losses_and_gradients, make_model

RATE = 0.3


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_units_are_dropped_at_the_rate_independently_and_by_the_generator_of_torch(rate):
    torch.manual_seed(0)
    n = 2_000_003  # not a multiple of the four that share a number
    units = torch.ones(n)
    kept, again = (Kept(draw_seed(), rate).like(units) for _ in range(2))
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
    assert torch.equal(Kept(draw_seed(), rate).like(units), kept)


# Three blocks: two of 3 queries and 4 keys, and one of 2 queries and 2 keys.
QUERY_STARTS, KEY_STARTS = torch.tensor([0, 3, 6, 8]), torch.tensor([0, 4, 8, 10])


def make_rows(n_queries: int = 8) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((2, n_queries, 4), (2, 10, 4), (2, 10, 4))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def seeded(*rows: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    torch.manual_seed(1)
    bounds = (QUERY_STARTS, KEY_STARTS)
    return cpu_attention(*rows, *bounds, **{"longest": 4, "rate": RATE, **kwargs})


def test_attention_is_the_formula_and_its_gradient_is_its_own():
    (query, key, value), scale = make_rows(), 0.2
    torch.manual_seed(1)
    kept = Kept(draw_seed(), RATE)
    alike = kept.like(torch.empty(2, 2, 3, 4, dtype=torch.float64))
    masks = [alike[:, 0], alike[:, 1], kept.like(torch.empty(2, 2, 2, dtype=torch.float64))]
    blocks = zip(pairwise(QUERY_STARTS), pairwise(KEY_STARTS), masks, strict=True)
    outputs = []
    for (first, last), (first_key, last_key), mask in blocks:
        scores = query[:, first:last] @ key[:, first_key:last_key].mT * scale
        shares = scores.softmax(-1) * mask / (1 - rounded_rate(RATE))
        outputs.append((shares @ value[:, first_key:last_key]).transpose(0, 1))
    found = seeded(query, key, value, scale=scale)
    torch.testing.assert_close(found, torch.cat(outputs), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(seeded, make_rows())


def test_without_dropout_attention_is_that_of_torch_with_a_window_or_without():
    query, key, value = make_rows(10)
    block = torch.repeat_interleave(torch.arange(3), KEY_STARTS.diff())
    position = torch.arange(10)
    for window in (None, 2):
        mask = block[:, None] == block
        if window is not None:
            mask &= (position[:, None] - position).abs() < window
        expected = F.scaled_dot_product_attention(query, key, value, mask).transpose(0, 1)
        found = cpu_attention(query, key, value, KEY_STARTS, KEY_STARTS, longest=4, window=window)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("rate", "n_keys"), [(RATE, 4), (0.0, 4), (RATE, 200), (0.0, 200)])
def test_attention_in_bfloat16_is_near_float32(rate, n_keys):
    query, key, value = (row.detach().bfloat16() for row in make_rows())
    key, value = (row[:, :4].repeat(1, n_keys // 4, 1) for row in (key, value))
    short = [row.requires_grad_() for row in (query, key, value)]
    wide = [row.detach().float().requires_grad_() for row in short]
    bounds, outputs = (torch.tensor([0, 8]), torch.tensor([0, n_keys])), []
    with torch.autocast("cpu", torch.bfloat16):
        for rows in (short, wide):
            torch.manual_seed(1)
            outputs.append(cpu_attention(*rows, *bounds, longest=n_keys, rate=rate))
            outputs[-1].sum().backward()
    assert outputs[0].dtype == torch.bfloat16
    pairs = [outputs, *((a.grad, b.grad) for a, b in zip(short, wide, strict=True))]
    for one, other in pairs:
        torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2)


def test_packed_batches_drop_units_in_training_and_the_same_again_when_recomputed(monkeypatch):
    rates = []

    def count(*rows: Any, rate: float, **kwargs: Any) -> torch.Tensor:
        rates.append(rate)
        return cpu_attention(*rows, rate=rate, **kwargs)

    monkeypatch.setattr(packed_attention, "cpu_attention", count)
    model, batch = make_model("BERT"), packing.pack(BACKBONES["BERT"].batch(6, 40))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = RATE
    packing.use_packing(model)
    model.select_rows = None  # as when layers are recomputed
    torch.manual_seed(0)
    expected = losses_and_gradients(model, batch)
    assert set(rates) == {RATE}
    assert losses_and_gradients(model, batch)["loss"] != expected["loss"]
    model.gradient_checkpointing_enable()
    torch.manual_seed(0)
    assert_same(losses_and_gradients(model, batch), expected)
    rates.clear()
    model.eval()(**batch)
    assert set(rates) == {0.0}
