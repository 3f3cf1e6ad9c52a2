"""Attention within blocks on a CPU, faster than torch's.

For the dropout of its weights, torch draws a random number for each weight in turn. Here 64 random
bits decide four weights. Rates are rounded to 1/65,536 (0.1 to 0.100006), and kept weights are
scaled by the rounded rate, so expectations are exact. Seeds come from torch's generator.

The attention is one operator, which `torch.compile` does not look into.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .losses import widen

_LEVELS = 2**16
# With at most so many keys, bfloat16 matrices are multiplied in float32: for bfloat16 oneDNN builds
# and keeps a kernel for each new shape, which costs more than the faster product saves.
_SHORT = 128
_LARGEST_CALL = 2**17  # weights of a run of several blocks, which should fit the cache


def rounded_rate(rate: float) -> float:
    """The exact share of units that is dropped for `rate`, below 1."""
    return min(round(rate * _LEVELS), _LEVELS - 1) / _LEVELS


def draw_seed() -> Tensor:
    """Draw a seed, () int64, from torch's generator."""
    return torch.randint(2**62, (), dtype=torch.int64)


class Kept:
    """Draws which units are kept, each with a probability of 1 - `rounded_rate(rate)`."""

    def __init__(self, seed: Tensor, rate: float):
        self.bits = np.random.SFC64(int(seed))
        self.least = int(rounded_rate(rate) * _LEVELS) - 2**15  # the smallest int16 is -2**15

    def like(self, units: Tensor) -> Tensor:
        """The next draws, 1 where kept and 0 elsewhere, in the shape and precision of `units`."""
        n_units = units.numel()
        draws = self.bits.random_raw(n_units // 4 + 1).view(np.int16)[:n_units]
        kept = torch.empty(units.shape, dtype=units.dtype)
        return torch.ge(torch.from_numpy(draws).view(units.shape), self.least, out=kept)


def cpu_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    *,
    longest: int,
    rate: float = 0.0,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Scaled dot-product attention within blocks, with dropout of its weights.

    Torch's attention keeps weights, mask and their product for the backward pass. This keeps the
    weights, in the inputs' precision, and draws the mask again. Dot products are in at least
    float32, as in fused kernels.

    Args:
        query, key, value: (heads, R, D), and (heads, N, D) twice.
        query_starts, key_starts: (B + 1,) int, the bounds of the blocks.
        longest: the most keys of a block.
        rate: share of weights to drop, below 1; 0 for none.
        scale: of the dot products; default 1 / sqrt(D).
        window: tokens nearer than this see each other; None for all.

    Returns:
        (R, heads, D)
    """
    seed = draw_seed() if rate else torch.zeros((), dtype=torch.int64)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    has_gradient = torch.is_grad_enabled() and query.requires_grad
    n_kept = query.shape[0] * query.shape[1] * longest if has_gradient else 0  # at most
    options = (seed, rate, scale, window or 0, n_kept)
    return _attention(query, key, value, query_starts, key_starts, *options)[0]


class _Run(NamedTuple):
    """Adjacent blocks with equally many queries and equally many keys, computed at once.

    The slices are of rows of queries and of keys, and of the weights of all runs.
    """

    n_blocks: int
    queries: slice
    keys: slice
    weights: slice


def _runs(query_starts: Tensor, key_starts: Tensor, heads: int) -> Iterator[_Run]:
    sizes = zip(query_starts.diff().tolist(), key_starts.diff().tolist(), strict=True)
    query = key = weight = 0
    for (n_queries, n_keys), alike in groupby(sizes):
        n_left, n_weights = len(list(alike)), heads * n_queries * n_keys
        if not n_weights:  # empty blocks
            continue
        while n_left:
            n = min(n_left, max(_LARGEST_CALL // n_weights, 1))
            ends = (query + n * n_queries, key + n * n_keys, weight + n * n_weights)
            yield _Run(n, slice(query, ends[0]), slice(key, ends[1]), slice(weight, ends[2]))
            (query, key, weight), n_left = ends, n_left - n


def _new_rows(like: Tensor) -> Tensor:
    """Memory for (heads, N, D), in which the rows lie one after the other."""
    heads, n_rows, size = like.shape
    return like.new_empty(n_rows, heads, size).transpose(0, 1)


def _for_product(tensor: Tensor, like: Tensor, n_keys: int) -> Tensor:
    """A tensor in the precision in which the matrices of a call are multiplied."""
    return tensor.to(like.dtype) if n_keys > _SHORT else widen(tensor)


@torch.library.custom_op("condenser::attention", mutates_args=())
@torch.autocast("cpu", enabled=False)
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    seed: Tensor,
    rate: float,
    scale: float,
    window: int,
    n_kept: int,
) -> tuple[Tensor, Tensor]:
    """The output, and `n_kept` numbers that begin with the weights of all calls."""
    output, weights = _new_rows(query), query.new_empty(n_kept)
    kept, is_wide = Kept(seed, rate), widen(query).dtype == query.dtype
    for run in _runs(query_starts, key_starts, len(query)):
        parts = (query[:, run.queries], key[:, run.keys], value[:, run.keys])
        q, k, v = (part.unflatten(1, (run.n_blocks, -1)) for part in parts)
        n_keys = k.shape[2]
        stored = weights[run.weights].view(*q.shape[:3], n_keys) if n_kept else None
        scores = torch.matmul(widen(q) * scale, widen(k).mT, out=stored if is_wide else None)
        if 0 < window < n_keys:
            position = torch.arange(n_keys)
            scores.masked_fill_((position[:, None] - position).abs() >= window, -torch.inf)
        shares = torch.softmax(scores, dim=-1, out=scores)
        if stored is not None and not is_wide:
            stored.copy_(shares)
        if rate:
            shares = kept.like(shares).mul_(shares)
        mixed = _for_product(shares, v, n_keys) @ _for_product(v, v, n_keys)
        output[:, run.queries] = mixed.flatten(1, 2)
    return output.mul_(1 / (1 - rounded_rate(rate))).transpose(0, 1), weights


@_attention.register_fake
def _(query: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    return _new_rows(query).transpose(0, 1), query.new_empty(inputs[-1])


@torch.library.custom_op("condenser::attention_backward", mutates_args=())
@torch.autocast("cpu", enabled=False)
def _attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    seed: Tensor,
    weights: Tensor,
    rate: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values."""
    gradient = gradient.transpose(0, 1) * (1 / (1 - rounded_rate(rate)))
    of_query, of_key, of_value = _new_rows(query), _new_rows(key), _new_rows(value)
    kept = Kept(seed, rate)
    for run in _runs(query_starts, key_starts, len(query)):
        parts = (query[:, run.queries], gradient[:, run.queries], key[:, run.keys])
        q, g, k, v = (
            part.unflatten(1, (run.n_blocks, -1)) for part in (*parts, value[:, run.keys])
        )
        n_keys = k.shape[2]
        shares = dropped = widen(weights[run.weights].view(*q.shape[:3], n_keys))
        of_shares = widen(g) @ widen(v).mT
        if rate:
            mask = kept.like(shares)
            of_shares.mul_(mask)
            dropped = mask.mul_(shares)
        of_scores = torch.ops.aten._softmax_backward_data(of_shares, shares, -1, shares.dtype)
        q, g, k, of_scores, dropped = (
            _for_product(part, v, n_keys) for part in (q, g, k, of_scores, dropped)
        )
        of_query[:, run.queries] = (of_scores @ k).flatten(1, 2)
        of_key[:, run.keys] = (of_scores.mT @ q).flatten(1, 2)
        of_value[:, run.keys] = (dropped.mT @ g).flatten(1, 2)
    return of_query.mul_(scale), of_key.mul_(scale), of_value


@_attention_backward.register_fake
def _(gradient: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (_new_rows(tensor) for tensor in inputs[:3])
    return query, key, value


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.rate, ctx.scale, _, _ = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # of the weights, as large as these


def _gradients(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Any, ...]:
    if gradient is None:
        return (None,) * 10
    of_rows = _attention_backward(gradient, *ctx.saved_tensors, ctx.rate, ctx.scale)
    return *of_rows, *[None] * 7


_attention.register_autograd(_gradients, setup_context=_keep_inputs)
