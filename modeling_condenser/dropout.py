"""Dropout on a CPU, where torch takes longer to draw masks than a layer takes for its norms.

torch draws a number for each unit, one after the other. Here a random number of 64 bits decides
four units, and what is kept for the backward pass is a byte a unit instead of a number. Rates are
rounded to 1/65,536 (0.1 to 0.100006); what is kept is scaled by the rounded rate, so expectations
are exact.

Seeds come from torch's generator: its state decides all, as it does for torch's own dropout.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

_LEVELS = 2**16
_LOWEST = -(2**15)  # of 16 bits with a sign


def rounded_rate(rate: float) -> float:
    """The share of units that is dropped where `rate`, below 1, is asked for."""
    return _level(rate) / _LEVELS


def _level(rate: float) -> int:
    return min(round(rate * _LEVELS), _LEVELS - 1)


def draw_kept(shape: torch.Size, rate: float) -> torch.Tensor:
    """Draw which units are kept, each with a probability of 1 - `rounded_rate(rate)`.

    Returns:
        (*shape) int8 on the CPU, 1 where kept and else 0; bools are converted ten times as slowly.
    """
    n_units = math.prod(shape)
    seed = int(torch.randint(2**62, (), dtype=torch.int64))
    words = np.random.Generator(np.random.SFC64(seed)).integers(
        -(2**63), 2**63 - 1, size=n_units // 4 + 1, endpoint=True
    )
    draws = torch.from_numpy(words).view(torch.int16)[:n_units]
    kept = torch.empty(n_units, dtype=torch.int8)
    return torch.ge(draws, _LOWEST + _level(rate), out=kept).view(shape)


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, but with such masks on a CPU, outside of compiled graphs."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Drop values, of any shape, in training."""
        is_cheaper = values.device.type == "cpu" and not torch.compiler.is_compiling()
        if not (is_cheaper and self.training and 0 < self.p < 1):
            return super().forward(values)
        return _Drop.apply(values, self.p)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, rate: float) -> torch.Tensor:
        kept = draw_kept(values.shape, rate)
        ctx.save_for_backward(kept)
        ctx.growth = 1 / (1 - rounded_rate(rate))
        return _scale_kept(values, kept, ctx.growth)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        (kept,) = ctx.saved_tensors
        return _scale_kept(gradient, kept, ctx.growth), None


def _scale_kept(values: torch.Tensor, kept: torch.Tensor, growth: float) -> torch.Tensor:
    return kept.to(values.dtype).mul_(values).mul_(growth)  # so rounded once, in short precisions


def use_cheap_dropout(model: nn.Module) -> None:
    """Put this `Dropout` in the place of torch's, wherever a model has one."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout and not child.inplace:
                setattr(parent, name, Dropout(child.p).train(child.training))


__all__ = ["Dropout", "draw_kept", "rounded_rate", "use_cheap_dropout"]
