"""Attention with dropout on a CPU, in less time and memory than torch's own.

With dropout, torch's attention on a CPU keeps the weights, the mask and their product for the
backward pass, each in float32, and copies of queries, keys and values. Here one number a weight is
kept, in the precision of the values, with the sign for the mask: weights are not negative, so one
that is dropped is marked by a minus.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .dropout import draw_kept, rounded_rate


def attention_with_dropout(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    rate: float,
    scale: float | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention whose weights are dropped at random.

    Dot products and their gradients are float32 where inputs are shorter, as in fused kernels;
    weights meet values in the precision of the values.

    Args:
        query: (B, heads, Q, D).
        key: (B, heads, K, D).
        value: (B, heads, K, D).
        mask: bool, True where a query sees a key, and broadcast to (B, heads, Q, K); None for all.
        rate: share of weights to drop, below 1.
        scale: of dot products; 1 / sqrt(D) when not given.

    Returns:
        (B, heads, Q, D).
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
        with torch.autocast("cpu", enabled=False):
            scores = (_wide(query) @ _wide(key).transpose(-1, -2)).mul_(scale)
            if mask is not None:
                scores += torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, -torch.inf)
            weights = torch.softmax(scores, dim=-1, out=scores)
            sign = draw_kept(weights.shape, rate).to(weights.dtype).mul_(2).sub_(1)
            signed = weights.mul_(sign).to(value.dtype)
            output = (signed.relu() @ value).mul_(ctx.growth)
        ctx.save_for_backward(query, key, value, signed)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        query, key, value, signed = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            gradient = gradient * ctx.growth
            of_value = signed.relu().transpose(-1, -2) @ gradient
            # Of softmax's backward pass w * (g - sum(w * g)): g is the kept weights' gradient.
            of_scores = _wide(gradient) @ _wide(value).transpose(-1, -2)
            weights = _wide(signed)
            of_scores.mul_(weights.relu())
            of_scores.sub_(weights.abs().mul_(of_scores.sum(dim=-1, keepdim=True)))
            of_scores = of_scores.mul_(ctx.scale).to(query.dtype)
            of_query, of_key = of_scores @ key, of_scores.transpose(-1, -2) @ query
        return of_query, of_key, of_value, None, None, None


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


__all__ = ["attention_with_dropout"]
