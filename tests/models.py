"""Models and packed batches of the tests, and what a model gives for a batch."""

from typing import Any

import torch
from torch.nn import functional as F

from modeling_condenser import CondenserConfig, CondenserForPreTraining
from tests.backbones.encoders import BACKBONES

LOSSES = {"loss", "head_loss", "late_loss", "bow_loss"}


def make_model(name: str, model_class: Any = CondenserForPreTraining, **settings: Any) -> Any:
    """A model without dropout, with biases and norms away from 0 and 1."""
    torch.manual_seed(1)
    config = CondenserConfig(encoder_config=BACKBONES[name].config(positions=40), **settings)
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.double().train()


def pack(batch: dict[str, torch.Tensor], *, filler: int = 0) -> dict[str, Any]:
    """The blocks of a padded batch end to end, and behind them one of padding alone."""
    is_token = batch["attention_mask"].bool()
    lengths = [int(n) for n in is_token.sum(1)] + [filler] * (filler > 0)
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    columns = {name: column[is_token] for name, column in batch.items() if name != "attention_mask"}
    return {
        **{
            name: F.pad(column, (0, filler), value=0 if name.endswith("input_ids") else -100)[None]
            for name, column in columns.items()
        },
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def losses_and_gradients(model: Any, *batches: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    """Sums over batches, by name; a tied weight is there under each of its names."""
    model.zero_grad()
    found: dict[str, Any] = {}
    for batch in batches:
        output = model(**batch, **inputs)
        output.loss.backward()
        for name in output.keys() & LOSSES:
            found[name] = found.get(name, 0) + output[name].detach()
    return found | gradients(model)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    named = model.named_parameters(remove_duplicate=False)
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def assert_same(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
