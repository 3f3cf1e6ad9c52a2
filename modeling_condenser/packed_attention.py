"""Attention within the blocks of a packed batch, as the back-end "packed" of transformers.

On a CPU by `cpu_kernels.py`; on a GPU by flash attention, or with padding where there is none.
`packing.py` describes the batches.

Shapes: N rows of B blocks end to end, R of them queries, D numbers of a head.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .cpu_kernels import cpu_attention
from .losses import block_of_rows

PACKED = "packed"
# Names of the projections of keys and values in the attention of different encoders.
_KEYS_AND_VALUES = (("key", "value"), ("k_lin", "v_lin"))


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int = 0,
    max_length_k: int = 0,
    kv_states: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention within blocks, as an attention back-end of transformers.

    Args:
        module: the attention module that calls.
        query, key, value: (1, heads, R, D).
        attention_mask: of a padded batch.
        dropout, scaling: as for other back-ends.
        sliding_window: in local attention, tokens nearer than this see each other.
        cu_seq_lens_q, cu_seq_lens_k: (B + 1,) bounds of the blocks; None if the batch is padded.
        max_length_q, max_length_k: upper limits of a block's queries and keys; 0 if unknown.
        kv_states: (1, N, H) hidden states of all rows, if queries are only some of them.

    Returns:
        (1, R, heads, D), and no weights.
    """
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        if attention_mask is None and sliding_window is not None:
            attention_mask = _window(query.shape[2], sliding_window, query.device)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if kv_states is not None:  # (1, heads, N, D) each
        shape = (*kv_states.shape[:-1], -1, query.shape[-1])
        parts = keys_and_values(module) or ()
        key, value = (part(kv_states).view(shape).transpose(1, 2) for part in parts)
    if (n_shared := query.shape[1] // key.shape[1]) > 1:  # grouped-query attention
        key, value = (part.repeat_interleave(n_shared, dim=1) for part in (key, value))
    attention = cpu_attention if query.device.type == "cpu" else cuda_attention
    output = attention(
        *(query[0], key[0], value[0], cu_seq_lens_q, cu_seq_lens_k),
        longest=max_length_k or int(cu_seq_lens_k.diff().max()),
        rate=dropout,
        scale=scaling,
        window=sliding_window,
    )
    return output[None], None


def _mask(attention_mask: torch.Tensor | None = None, **kwargs: Any) -> Any:
    """The mask of "sdpa" for a padded batch, and none for a packed one."""
    return None if attention_mask is None else sdpa_mask(attention_mask=attention_mask, **kwargs)


AttentionInterface.register(PACKED, attend)
AttentionMaskInterface.register(PACKED, _mask)


def cuda_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_starts: torch.Tensor,
    key_starts: torch.Tensor,
    *,
    longest: int,
    rate: float,
    scale: float | None,
    window: int | None,
) -> torch.Tensor:
    """The same as `cpu_attention`, by flash attention in half precision."""
    query, key, value = (part.transpose(0, 1) for part in (query, key, value))  # (N, heads, D)
    device = query.device.type
    if device != "meta" and torch.is_autocast_enabled(device):  # positions may have widened them
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (part.to(dtype) for part in (query, key, value))
    bounds, options = (query_starts, key_starts, longest), (rate, scale, window)
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    attention = _flash if is_half and _has_flash() else attend_padded
    return attention(query.contiguous(), key.contiguous(), value.contiguous(), *bounds, *options)


@torch.compiler.assume_constant_result
def _has_flash() -> bool:
    """Whether the GPU is at least an Ampere, which flash attention needs (not a T4 or V100)."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (8, 0)


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_starts: torch.Tensor,
    key_starts: torch.Tensor,
    longest: int,
    rate: float,
    scale: float | None,
    window: int | None,
) -> torch.Tensor:
    """One call of the operator that `torch.nn.attention.varlen` calls, which leaves out dropout.

    torch.compile knows its shapes and its gradient.
    """
    size = query.shape[-1]
    scale = size**-0.5 if scale is None else scale
    if size % 8:
        query, key, value = (F.pad(part, (0, -size % 8)) for part in (query, key, value))
    width = None if window is None else window - 1
    output, *_ = torch.ops.aten._flash_attention_forward(
        *(query, key, value, query_starts.int(), key_starts.int(), longest, longest),
        *(rate, False, False),  # neither causal nor with weights to look at
        scale=scale,
        window_size_left=width,
        window_size_right=width,
    )
    return output[..., :size]


def attend_padded(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_starts: torch.Tensor,
    key_starts: torch.Tensor,
    longest: int,
    rate: float,
    scale: float | None,
    window: int | None,
) -> torch.Tensor:
    """Attention of all blocks in one call, padded for this call only; (N, heads, D).

    For float32 and older GPUs. Nested tensors would need no padding, but drop other weights in
    their backward pass (pytorch issue 115590).
    """
    n_blocks, device = len(key_starts) - 1, query.device

    def place(packed: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        block = block_of_rows(starts, len(packed))
        return block * longest + torch.arange(len(packed), device=device) - starts.long()[block]

    def pad(packed: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        padded = packed.new_zeros(n_blocks * longest, *packed.shape[1:])
        padded = padded.index_copy(0, places, packed)
        return padded.unflatten(0, (n_blocks, longest)).transpose(1, 2)

    of_queries, of_keys = place(query, query_starts), place(key, key_starts)
    position = torch.arange(longest, device=device)
    is_seen = (position < key_starts.diff()[:, None])[:, None, None]  # (B, 1, 1, keys)
    if window is not None:
        is_seen = is_seen & _window(longest, window, device)
    # Rows of padding see themselves, because each row must see something.
    is_seen = is_seen | is_seen.new_ones(longest).diag()
    output = F.scaled_dot_product_attention(
        *(pad(query, of_queries), pad(key, of_keys), pad(value, of_keys)),
        *(is_seen, rate),
        scale=scale,
    )
    return output.transpose(1, 2).flatten(0, 1)[of_queries]


def _window(length: int, width: int, device: torch.device) -> torch.Tensor:
    """(T, T) bool, which tokens see each other in local attention."""
    position = torch.arange(length, device=device)
    return (position[:, None] - position[None, :]).abs() < width


def keys_and_values(module: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """The projections of keys and of values of an attention, if it has separate ones."""
    for key, value in _KEYS_AND_VALUES:
        projections = getattr(module, key, None), getattr(module, value, None)
        if all(isinstance(part, nn.Linear) for part in projections):
            return projections  # type: ignore[return-value]
    return None
