"""Dropout on a CPU: the rates, gradients and repeatability of torch's, from other draws."""

import copy

import pytest
import torch
from torch import nn

from modeling_condenser.dropout import Dropout, draw_kept, rounded_rate, use_cheap_dropout
from tests.test_packing import make_model


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 1e-4])
def test_units_are_dropped_at_the_rate(rate: float) -> None:
    torch.manual_seed(0)
    n = 2_000_003  # not a multiple of the four that share a number
    kept = draw_kept(torch.Size([n]), rate)
    assert set(kept.unique().tolist()) == {0, 1}
    spread = (rate * (1 - rate) / n) ** 0.5
    assert abs(1 - kept.double().mean().item() - rounded_rate(rate)) < 4 * spread
    assert abs(rounded_rate(rate) - rate) <= 2**-17


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 768])
def test_a_unit_says_nothing_about_the_next(distance: int) -> None:
    torch.manual_seed(0)
    kept = draw_kept(torch.Size([1_000_000]), 0.5).double() - 0.5
    correlation = 4 * (kept[distance:] * kept[:-distance]).mean().item()
    assert abs(correlation) < 0.004  # four standard deviations


def test_the_generator_of_torch_decides() -> None:
    shape = torch.Size([3, 5, 7])
    torch.manual_seed(1)
    first, second = draw_kept(shape, 0.5), draw_kept(shape, 0.5)
    torch.manual_seed(1)
    assert first.shape == shape
    assert torch.equal(draw_kept(shape, 0.5), first)
    assert not torch.equal(first, second)
    assert draw_kept(torch.Size([0, 4]), 0.5).shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_is_kept_is_scaled_and_so_is_its_gradient(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.randn(40, 50).to(dtype).requires_grad_()
    output = Dropout(0.25)(values)
    output.backward(torch.full_like(output, 3))
    kept = output != 0
    assert output.dtype == dtype
    assert 0.6 < kept.double().mean() < 0.9
    torch.testing.assert_close(output[kept], values[kept] / 0.75)
    torch.testing.assert_close(values.grad, kept.to(dtype) * 4)


def test_nothing_is_dropped_where_torch_drops_nothing() -> None:
    values = torch.randn(8, 9)
    assert torch.equal(Dropout(0.5).eval()(values), values)
    assert torch.equal(Dropout(0.0)(values), values)
    assert not Dropout(1.0)(values).any()


def test_every_dropout_of_an_encoder_is_replaced_and_nothing_else() -> None:
    model = make_model("BERT")
    before = copy.deepcopy(model)
    use_cheap_dropout(model)
    assert not any(type(module) is nn.Dropout for module in model.modules())
    cheap = {name for name, module in model.named_modules() if type(module) is Dropout}
    assert cheap == {name for name, module in before.named_modules() if type(module) is nn.Dropout}
    assert any(name.startswith("head.") for name in cheap)
    assert not any(module.training for module in model.modules())
    assert model.state_dict().keys() == before.state_dict().keys()
    others = nn.Sequential(nn.Dropout2d(0.1), nn.AlphaDropout(0.1), nn.Dropout(0.1, inplace=True))
    kinds = [type(module) for module in others]
    use_cheap_dropout(others)
    assert [type(module) for module in others] == kinds


def test_a_compiled_graph_drops_as_torch_does() -> None:
    torch.compiler.reset()
    values = torch.randn(30, 40)
    layer = Dropout(0.5)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.manual_seed(0)
    found = compiled(values)
    torch.manual_seed(0)
    assert torch.equal(found, nn.functional.dropout(values, 0.5))
    torch.compiler.reset()
