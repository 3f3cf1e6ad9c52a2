"""Attention on a CPU that is faster than torch's, with dropout of its weights or in bfloat16.

For dropout torch draws a random number for each weight in turn. Here 64 random bits decide four
weights. Rates are rounded to 1/65,536 (0.1 to 0.100006), and kept weights are scaled by the rounded
rate, so expectations are exact. Seeds come from torch's generator.
"""

import math
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from .losses import widen

_LEVELS = 2**16
# With at most so many keys, bfloat16 matrices are multiplied in float32: for bfloat16 oneDNN builds
# and keeps a kernel for each new shape, which costs more than the faster product saves.
_SHORT = 128


def rounded_rate(rate: float) -> float:
    """The exact share of weights that is dropped for `rate`, below 1."""
    return min(round(rate * _LEVELS), _LEVELS - 1) / _LEVELS


def draw_kept(shape: torch.Size, rate: float) -> torch.Tensor:
    """Draw which weights are kept, each with a probability of 1 - `rounded_rate(rate)`.

    Returns `shape` int8, 1 where kept and 0 elsewhere, because bools take ten times as long to
    convert.
    """
    n_units = math.prod(shape)
    seed = int(torch.randint(2**62, (), dtype=torch.int64))
    words = np.random.Generator(np.random.SFC64(seed)).integers(
        -(2**63), 2**63 - 1, size=n_units // 4 + 1, endpoint=True
    )
    draws = torch.from_numpy(words).view(torch.int16)[:n_units]
    kept = torch.empty(n_units, dtype=torch.int8)
    least = int(rounded_rate(rate) * _LEVELS) - 2**15  # the smallest 16-bit integer is -2**15
    return torch.ge(draws, least, out=kept).view(shape)


def cpu_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    rate: float,
    scale: float | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention, with dropout of its weights.

    For the backward pass torch's attention keeps weights, mask and their product in float32. This
    keeps one number for each weight, in the inputs' precision, negative where the weight is
    dropped. Dot products are in at least float32, as in fused kernels.

    Args:
        query, key, value: (B, heads, Q, D), and (B, heads, K, D) twice.
        mask: bool, True where a query sees a key, broadcast to (B, heads, Q, K); None for all.
        rate: share of weights to drop, below 1; 0 for none.
        scale: of the dot products; default 1 / sqrt(D).
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return _Attention.apply(query, key, value, mask, rate, scale)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        rate: float,
        scale: float,
    ) -> torch.Tensor:
        ctx.scale, ctx.growth = scale, 1 / (1 - rounded_rate(rate))
        ctx.wide = widen if key.shape[-2] <= _SHORT else lambda tensor: tensor
        with torch.autocast("cpu", enabled=False):
            scores = (widen(query) @ widen(key).transpose(-1, -2)).mul_(scale)
            if mask is not None:
                scores += torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, -torch.inf)
            weights = torch.softmax(scores, dim=-1, out=scores)
            if rate:
                weights *= draw_kept(weights.shape, rate).to(weights.dtype).mul_(2).sub_(1)
            signed = weights.to(value.dtype)
            output = (ctx.wide(signed).relu() @ ctx.wide(value)).mul_(ctx.growth)
        ctx.save_for_backward(query, key, value, signed)
        return output.to(value.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (query, key, value, signed), wide = ctx.saved_tensors, ctx.wide
        with torch.autocast("cpu", enabled=False):
            gradient = gradient * ctx.growth
            of_value = wide(signed).relu().transpose(-1, -2) @ wide(gradient)
            # Softmax's backward pass, w * (g - sum(w * g)), with g the gradient of kept weights.
            of_scores = widen(gradient) @ widen(value).transpose(-1, -2)
            weights = widen(signed)
            of_scores.mul_(weights.relu())
            of_scores.sub_(weights.abs().mul_(of_scores.sum(dim=-1, keepdim=True)))
            of_scores = wide(of_scores.mul_(ctx.scale).to(query.dtype))
            of_query = of_scores @ wide(key)
            of_key = of_scores.transpose(-1, -2) @ wide(query)
        of_inputs = (of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype))
        return *of_inputs, None, None, None
