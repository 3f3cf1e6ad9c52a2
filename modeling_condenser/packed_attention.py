"""Attention within the blocks of a packed batch, as a back-end of transformers called "packed".

A packed batch is one row of all blocks, end to end; `cu_seq_lens_q` and `cu_seq_lens_k` say where
each begins and the last ends, as transformers has it for flash attention. Batches that are padded
are passed on to "sdpa".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .dropped_attention import attention_with_dropout

PACKED = "packed"
# What the projections of keys and values are called in the attention of different encoders.
_KEYS_AND_VALUES = (("key", "value"), ("k_lin", "v_lin"))

# Numbers of keys, tokens times width, measured on two cores. With 5,600 a call one padded call for
# all is 1.13 times as fast, with 8,800 0.93 times; from 100,000 on nothing is gained by more.
_LARGE_CALL, _LARGEST_CALL = 7_000, 100_000

_Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # queries, keys, values


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
        module: the attention that calls.
        query: (1, heads, R, D); `key` and `value` likewise, of all N rows, or of the R rows.
        key: see `query`.
        value: see `query`.
        attention_mask: of a padded batch.
        dropout: share of attention weights to drop.
        scaling: of the dot products.
        sliding_window: how far a token sees, where attention is local; 1 is itself alone.
        cu_seq_lens_q: (B + 1,) where blocks begin and end among the queries; None if padded.
        cu_seq_lens_k: (B + 1,) the same among the keys.
        max_length_q: queries of the longest block, or more; counted where it is not said.
        max_length_k: keys of the longest block, likewise.
        kv_states: (1, N, H) hidden states of all rows, where queries are of some rows only.
        **kwargs: what other back-ends read.

    Returns:
        (1, R, heads, D), and no weights.
    """
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        if attention_mask is None and sliding_window is not None:
            attention_mask = _window(query.shape[2], sliding_window, query.device)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if kv_states is not None:
        key, value = project_keys_and_values(module, kv_states, head_width=query.shape[-1])
    blocks = _Blocks(cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, sliding_window)
    attention = partial(_attention, dropout=dropout, scale=scaling)
    output = _attend_within((query, key, value), blocks, attention)
    return output.transpose(1, 2).contiguous(), None


@dataclass(frozen=True)
class _Blocks:
    """Which queries and keys belong together.

    Attributes:
        query_starts: (B + 1,) where blocks begin and end among the queries.
        key_starts: (B + 1,) the same among the keys.
        most_queries: of a block, or more; 0 where it is to be counted.
        most_keys: of a block, likewise.
        window: how far a token sees, if not to the ends of its block.
    """

    query_starts: torch.Tensor
    key_starts: torch.Tensor
    most_queries: int
    most_keys: int
    window: int | None


@torch.compiler.disable  # a graph would be of one number of blocks and of their lengths
def _attend_within(rows: _Rows, blocks: _Blocks, attention: Callable) -> torch.Tensor:
    """Attention in the cheapest way, (1, heads, R, D)."""
    return _choose_way(rows, blocks)(rows, blocks, attention)


def _choose_way(rows: _Rows, blocks: _Blocks) -> Callable:
    _, key, _ = rows
    if key.device.type == "cuda" and blocks.window is None:
        return _attend_nested
    is_cpu = key.device.type == "cpu"
    pays = is_cpu and key.numel() >= len(list(_runs(rows, blocks))) * _LARGE_CALL
    return _attend_runs if pays else _attend_padded


def _attend_nested(rows: _Rows, blocks: _Blocks, attention: Callable) -> torch.Tensor:
    """Attention by a kernel that reads where blocks begin, (1, heads, R, D): flash on CUDA.

    torch chooses it for nested tensors; it is the one that drops weights, too.
    """
    query, key, value = rows
    query_starts, key_starts = blocks.query_starts.long(), blocks.key_starts.long()

    def nest(packed: torch.Tensor, starts: torch.Tensor, most: int) -> torch.Tensor:
        known: Any = {"min_seqlen": 1, "max_seqlen": most} if most else {}  # else counted
        rows = packed[0].transpose(0, 1).contiguous()  # (N, heads, D)
        return torch.nested.nested_tensor_from_jagged(rows, starts, **known).transpose(1, 2)

    output = attention(
        nest(query, query_starts, blocks.most_queries),
        nest(key, key_starts, blocks.most_keys),
        nest(value, key_starts, blocks.most_keys),
        None,
    )
    return output.transpose(1, 2).values().transpose(0, 1)[None]


def _attend_runs(rows: _Rows, blocks: _Blocks, attention: Callable) -> torch.Tensor:
    """Attention run by run, (1, heads, R, D): no work is lost, where calls cost little."""
    query, key, value = rows
    runs = list(_runs(rows, blocks))
    n_queries = [run.n_blocks * run.n_queries for run in runs]
    n_keys = [run.n_blocks * run.n_keys for run in runs]
    parts = zip(
        query.split(n_queries, 2), key.split(n_keys, 2), value.split(n_keys, 2), strict=True
    )
    outputs = []
    for run, some in zip(runs, parts, strict=True):
        window = _window(run.n_keys, blocks.window, key.device)
        if run.n_blocks == 1:
            outputs.append(attention(*some, window))
            continue
        below = [part[0].unflatten(1, (run.n_blocks, -1)).transpose(0, 1) for part in some]
        outputs.append(attention(*below, window).transpose(0, 1).flatten(1, 2)[None])
    return torch.cat(outputs, dim=2)


class _Run(NamedTuple):
    """Neighbours that have equally many queries and keys, and so need no padding in one call.

    Attributes:
        n_blocks: how many they are.
        n_queries: of each.
        n_keys: of each.
    """

    n_blocks: int
    n_queries: int
    n_keys: int


def _runs(rows: _Rows, blocks: _Blocks) -> Iterator[_Run]:
    """The blocks in calls that are not too large."""
    _, key, _ = rows
    width = key.numel() // key.shape[2]
    n_queries, n_keys = blocks.query_starts.diff().tolist(), blocks.key_starts.diff().tolist()
    for (queries, keys), neighbours in groupby(zip(n_queries, n_keys, strict=True)):
        n_left, most = len(list(neighbours)), max(_LARGEST_CALL // (keys * width), 1)
        while n_left > 0:
            yield _Run(min(n_left, most), queries, keys)
            n_left -= most


def _attend_padded(rows: _Rows, blocks: _Blocks, attention: Callable) -> torch.Tensor:
    """Attention of all blocks in one call, (1, heads, R, D), padded for that call alone."""
    query, key, value = rows
    most_queries = blocks.most_queries or int(blocks.query_starts.diff().max())
    most_keys = blocks.most_keys or int(blocks.key_starts.diff().max())
    query_places = _places(blocks.query_starts, query.shape[2], most_queries)
    key_places = _places(blocks.key_starts, key.shape[2], most_keys)
    n_blocks = len(blocks.key_starts) - 1

    def pad(packed: torch.Tensor, places: torch.Tensor, width: int) -> torch.Tensor:
        _, heads, _, size = packed.shape
        padded = packed.new_zeros(n_blocks * width, heads, size)
        padded = padded.index_copy(0, places, packed[0].transpose(0, 1))
        return padded.view(n_blocks, width, heads, size).transpose(1, 2)

    position = torch.arange(most_keys, device=query.device)
    mask = (position < blocks.key_starts.diff()[:, None])[:, None, None]  # (B, 1, 1, keys)
    near = _window(most_keys, blocks.window, query.device)
    output = attention(
        pad(query, query_places, most_queries),
        pad(key, key_places, most_keys),
        pad(value, key_places, most_keys),
        # Rows of padding see themselves, so that none sees nothing.
        mask if near is None else mask & near | near.new_ones(len(near)).diag(),
    )
    return output.transpose(1, 2).flatten(0, 1)[query_places].transpose(0, 1)[None]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    dropout: float,
    scale: float | None,
) -> torch.Tensor:
    if dropout and query.device.type == "cpu":
        return attention_with_dropout(query, key, value, mask, rate=dropout, scale=scale)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale
    )


def _places(starts: torch.Tensor, n_rows: int, width: int) -> torch.Tensor:
    """(rows,) where each row of a packed batch lies in the padded one, its blocks end to end."""
    block = torch.arange(len(starts) - 1, device=starts.device)
    of_row = block.repeat_interleave(starts.diff(), output_size=n_rows)
    row = torch.arange(n_rows, device=starts.device)
    return of_row * width + row - starts[:-1].long()[of_row]


def _mask(attention_mask: torch.Tensor | None = None, **kwargs: Any) -> Any:
    """The mask of "sdpa" for a padded batch, and none for a packed one."""
    if attention_mask is None:
        return None
    return sdpa_mask(attention_mask=attention_mask, **kwargs)


AttentionInterface.register(PACKED, attend)
AttentionMaskInterface.register(PACKED, _mask)


def _window(length: int, width: int | None, device: torch.device) -> torch.Tensor | None:
    """(T, T) which tokens see which, if they do not all see all."""
    if width is None or length <= width:
        return None
    position = torch.arange(length, device=device)
    return (position[:, None] - position[None, :]).abs() < width


def project_keys_and_values(
    module: nn.Module, states: torch.Tensor, *, head_width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, each (B, heads, T, D), of hidden states (B, T, H)."""
    projections = keys_and_values(module)
    assert projections is not None  # as the caller has seen to
    shape = (*states.shape[:-1], -1, head_width)
    key, value = (part(states).view(shape).transpose(1, 2) for part in projections)
    return key, value


def keys_and_values(module: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """The projections of keys and of values of an attention, where it has one for each."""
    for key, value in _KEYS_AND_VALUES:
        found = getattr(module, key, None), getattr(module, value, None)
        if all(isinstance(part, nn.Linear) for part in found):
            return found  # type: ignore[return-value]
    return None
