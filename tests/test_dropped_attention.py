"""Attention with dropout on a CPU against its formula, and in packed batches."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from modeling_condenser import packed_attention
from modeling_condenser.dropout import draw_kept, rounded_rate, use_cheap_dropout
from modeling_condenser.dropped_attention import attention_with_dropout
from modeling_condenser.packing import use_packing
from tests.backbones.encoders import BACKBONES
from tests.test_packing import assert_same, losses_and_gradients, make_model, pack

RATE = 0.3


def make_rows(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(2, 3, n, 8, dtype=dtype, requires_grad=True) for n in (5, 7, 7))


def make_mask() -> torch.Tensor:
    torch.manual_seed(0)
    mask = torch.rand(2, 1, 5, 7) > 0.3
    mask[..., 0] = True
    return mask


def seeded(*rows: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    torch.manual_seed(1)
    return attention_with_dropout(*rows, **{"mask": None, "rate": RATE, **kwargs})


def written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    torch.manual_seed(1)
    weights = (query @ key.transpose(-1, -2) * scale).masked_fill(~mask, -torch.inf).softmax(-1)
    return weights * draw_kept(weights.shape, RATE) / (1 - rounded_rate(RATE)) @ value


def test_it_is_the_formula() -> None:
    rows = make_rows()
    found = seeded(*rows, mask=make_mask(), scale=0.2)
    torch.testing.assert_close(found, written_out(*rows, make_mask(), 0.2), rtol=1e-12, atol=1e-12)


def test_its_gradient_is_its_own() -> None:
    assert torch.autograd.gradcheck(lambda *rows: seeded(*rows, mask=make_mask()), make_rows())


def test_almost_without_dropout_it_is_torchs_attention() -> None:
    rows, mask = make_rows(), make_mask()
    found = attention_with_dropout(*rows, mask, rate=1e-9)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*rows, attn_mask=mask))


def test_short_precisions_are_as_good_as_their_digits() -> None:
    wide = [row.detach().bfloat16().float().requires_grad_() for row in make_rows()]
    short = [row.detach().bfloat16().requires_grad_() for row in wide]
    with torch.autocast("cpu", torch.bfloat16):
        found = seeded(*short)
        found.sum().backward()
    expected = seeded(*wide)
    expected.sum().backward()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
    for one, other in zip(short, wide, strict=True):
        torch.testing.assert_close(one.grad.float(), other.grad, rtol=2e-2, atol=2e-2)


def test_little_is_kept_for_the_backward_pass() -> None:
    query, key, value = (row.detach().bfloat16().requires_grad_() for row in make_rows())
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor
    ):
        seeded(query, key, value)
    n_bytes = sum(tensor.nbytes for tensor in kept)
    assert n_bytes == query.nbytes + key.nbytes + value.nbytes + 2 * (2 * 3 * 5 * 7)


def make_dropping_model() -> Any:
    model = make_model("BERT")
    for module in model.modules():
        if hasattr(module, "query") and hasattr(module, "dropout"):
            module.dropout.p = RATE
    use_packing(model, narrow=False)
    return model.train()


@pytest.mark.parametrize("large", [0, float("inf")], ids=["block by block", "in one call"])
def test_packed_batches_drop_weights_in_training(
    large: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_attention, "_LARGE_CALL", large)
    calls = []

    def count(*rows: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(kwargs["rate"])
        return attention_with_dropout(*rows, **kwargs)

    monkeypatch.setattr(packed_attention, "attention_with_dropout", count)
    model, batch = make_dropping_model(), pack(BACKBONES["BERT"].batch(6, 40))
    losses = {model(**batch).loss.item() for _ in range(3)}
    assert len(losses) == 3
    assert set(calls) == {RATE}
    calls.clear()
    model.eval()
    assert model(**batch).loss.item() == model(**batch).loss.item()
    assert calls == []


def test_what_is_computed_again_is_dropped_again() -> None:
    batch = pack(BACKBONES["BERT"].batch(6, 40))
    model = make_dropping_model()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = RATE
    use_cheap_dropout(model)
    torch.manual_seed(0)
    expected = losses_and_gradients(model, batch)
    model.gradient_checkpointing_enable()
    torch.manual_seed(0)
    assert_same(losses_and_gradients(model, batch), expected)
