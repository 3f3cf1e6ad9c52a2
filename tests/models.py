"""Models of the tests, and what a model gives for a batch."""

from collections.abc import Mapping
from typing import Any

import torch

from modeling_condenser import CondenserConfig, CondenserForPreTraining
from tests.backbones.encoders import BACKBONES, LAYERS

LOSSES = {"loss", "head_loss", "late_loss", "bow_loss"}


def make_model(
    name: str,
    model_class: Any = CondenserForPreTraining,
    *,
    n_layers: int = LAYERS,
    changes: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A model without dropout, with biases and norms away from 0 and 1."""
    torch.manual_seed(1)
    encoder_config = BACKBONES[name].config(
        positions=40, num_hidden_layers=n_layers, **(changes or {})
    )
    config = CondenserConfig(encoder_config=encoder_config, **settings)
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.double().train()


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
