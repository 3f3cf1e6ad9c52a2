"""How much arithmetic a loss needs, and how much of it a machine can do.

Needed is what enters the loss, counted from shapes, whoever computes more than that: blocks of n_b
tokens without padding (N = sum of n_b), of which m_b are masked (M = sum of m_b), each attending to
its own block; hidden size H, feed-forward size I, vocabulary V, L layers, h head layers. In
multiply-adds of the forward pass:

    layer(rows r_b of each block)  N * 2 H^2                  keys and values of all tokens
                                   + R * (2 H^2 + 2 H I)      queries, outputs, feed-forward
                                   + 2 H * sum(r_b * n_b)     attention, R = sum of r_b
    plain    (L - 1) * layer(n_b) + layer(m_b) + M * (H^2 + H V)
    paper,   (L - 1) * layer(n_b) + layer(m_b + 1)            the last layer: CLS and masked tokens
    ours     + (h - 1) * layer(n_b) + layer(m_b) + 2 M * (H^2 + H V)

A multiply-add is two operations, and the backward pass takes twice the forward pass's: 6 each.
Norms, activations, embeddings, dropout and the optimiser are left out.
"""

import statistics
import time
from collections.abc import Mapping, Sequence

import torch

_PEAK_SIDE = {"cpu": 2048, "cuda": 8192}  # of the square matrices whose product is timed
_PEAK_REPEATS = 8


def needed_flops(
    batches: Sequence[Mapping[str, torch.Tensor]],
    *,
    n_layers: int,
    n_head_layers: int,
    hidden: int,
    vocabulary: int,
) -> float:
    """Operations that the losses of padded batches need, forward and backward.

    Args:
        batches: each with `attention_mask` and `labels`, (B, T).
        n_layers: of the encoder.
        n_head_layers: of the Condenser head; 0 for plain MLM.
        hidden: H; the feed-forward size is 4 H.
        vocabulary: V.
    """
    total = 0
    for batch in batches:
        n = batch["attention_mask"].sum(1).double()
        m = (batch["labels"] != -100).sum(1).double()

        def layer(rows: torch.Tensor, n: torch.Tensor = n) -> float:
            linear = n.sum() * 2 * hidden**2 + rows.sum() * (2 * hidden**2 + 8 * hidden**2)
            return float(linear + 2 * hidden * (rows * n).sum())

        predictions = float(m.sum()) * (hidden**2 + hidden * vocabulary)
        if n_head_layers:
            total += (n_layers + n_head_layers - 2) * layer(n) + layer(m + 1) + layer(m)
            total += 2 * predictions
        else:
            total += (n_layers - 1) * layer(n) + layer(m) + predictions
    return 6 * total


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product on this machine, the median of several."""
    side = _PEAK_SIDE[device.type]
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(_PEAK_REPEATS):
        synchronize(device)
        started = time.perf_counter()
        torch.matmul(a, b)
        synchronize(device)
        seconds.append(time.perf_counter() - started)
    return 2 * side**3 / statistics.median(seconds[2:])


def synchronize(device: torch.device) -> None:
    """Wait for what the device has been given to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
