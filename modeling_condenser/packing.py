"""Batches without padding: all blocks of a batch in one row, (1, N), end to end.

Attention stays within each block, through an attention back-end of transformers called "packed",
and the last layers compute only the rows that a loss reads. Losses and gradients equal those of
padded batches, which a model with packing still accepts.

A packed batch holds B blocks in the fields of transformers' `FlashAttentionKwargs`:

- columns such as `input_ids` and `labels`, and `position_ids`, counted from 0 in each block: (1, N)
  int64;
- `cu_seq_lens_q` and `cu_seq_lens_k`, the same (B + 1,) int32: where each block begins, then N;
- `max_length_q` and `max_length_k`, the longest block's length, an int.

N is rounded up to a multiple of `PACK_MULTIPLE`, because kernels are built anew for every shape.
The filler is another block at the end, of tokens at position 0, without labels.
"""

from collections.abc import Callable, Mapping
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

from .cpu_kernels import cpu_attention
from .encoder_parts import find_layers, position_offset
from .losses import IGNORE_INDEX, ROW_MULTIPLE
from .modeling_condenser import CondenserForMaskedLM

PACKED = "packed"
PACK_MULTIPLE = 64
_TARGETS = ("labels", "targets")  # how the names of columns end that hold no inputs
# Names of the projections of keys and values in the attention of different encoders.
_KEYS_AND_VALUES = (("key", "value"), ("k_lin", "v_lin"))

# Numbers of keys (tokens times width) in a call of attention, measured on two cores: with 5,600 one
# padded call for all blocks is 1.13 times as fast as several, with 8,800 it is 0.93 times as fast;
# above 100,000 larger calls are no faster.
_LARGE_CALL, _LARGEST_CALL = 7_000, 100_000

_Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # queries, keys, values


def why_not_packed(encoder: Any) -> str | None:
    """Why an encoder of transformers cannot take packed batches; None if it can."""
    if encoder._supports_attention_backend and encoder._can_set_attn_implementation():
        return None
    return f"{encoder.config.model_type} encoders support only their own attention"


def use_packing(model: CondenserForMaskedLM, *, narrow: bool = True) -> None:
    """Replace a model's attention back-end, so that it accepts packed and padded batches.

    With `narrow`, the last layers of backbone and head compute only the rows that a loss reads, if
    the encoder's attention allows it.

    Raises:
        ValueError: the encoder cannot take packed batches.
    """
    encoder: Any = model.condenser.encoder
    if reason := why_not_packed(encoder):
        raise ValueError(f"Batches cannot be packed: {reason}. Set packed: false.")
    if not is_packing(model):
        model.set_attn_implementation(PACKED)
        offset = position_offset(encoder)
        encoder.register_forward_pre_hook(
            lambda _, args, kwargs: (args, offset_positions(kwargs, offset)), with_kwargs=True
        )
    # The head must read neither the last layer's input (a single layer) nor all of its output.
    n_layers, skip_from = model.config.num_hidden_layers, model.config.skip_from
    is_global = layer_to_narrow(encoder) is model.condenser.global_layer
    can_narrow = is_global and n_layers > 1 and skip_from < n_layers
    model.choose_rows = ReadRows.of if narrow and can_narrow else None


def is_packing(model: CondenserForMaskedLM) -> bool:
    """Whether a model accepts packed batches."""
    encoder: Any = model.condenser.encoder
    return encoder.config._attn_implementation == PACKED


def pack(batch: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Pack the blocks of a padded batch: (B, T) columns, `attention_mask` among them."""
    mask = batch["attention_mask"]
    places = mask.flatten().nonzero().squeeze(1)  # (tokens,)
    columns = {
        name: (values.flatten()[places], IGNORE_INDEX if name.endswith(_TARGETS) else 0)
        for name, values in batch.items()
        if name != "attention_mask"
    }
    return lay_end_to_end(mask.sum(dim=1), columns)


def lay_end_to_end(lengths: Any, columns: Mapping[str, tuple[Any, int]]) -> dict[str, Any]:
    """Make a packed batch of blocks that already lie end to end.

    `lengths`, (B,), are the numbers of tokens of the blocks. `columns` map a name to a number for
    each token, (tokens,), and the number for the filler.
    """
    lengths = torch.as_tensor(lengths).long()
    n_tokens, longest = torch.stack([lengths.sum(), lengths.max()]).tolist()
    n_filler = -n_tokens % PACK_MULTIPLE
    starts = F.pad(lengths.cumsum(0), (1, 0))
    before = starts[:-1].repeat_interleave(lengths, output_size=n_tokens)
    positions = torch.arange(n_tokens, device=lengths.device) - before
    if n_filler:
        starts = F.pad(starts, (0, 1), value=n_tokens + n_filler)
    batch: dict[str, Any] = {
        name: F.pad(torch.as_tensor(values).long(), (0, n_filler), value=fill)[None]
        for name, (values, fill) in {**columns, "position_ids": (positions, 0)}.items()
    }
    for side in "qk":
        batch[f"cu_seq_lens_{side}"] = starts.int()
        batch[f"max_length_{side}"] = max(longest, n_filler)
    return batch


def layer_to_narrow(encoder: Any) -> nn.Module | None:
    """The last layer, if it is called once and has separate projections of keys and values.

    ALBERT shares layers, and ModernBERT projects queries and keys together.
    """
    layers = find_layers(encoder)
    is_called_once = len(layers) == encoder.config.num_hidden_layers
    has_keys = any(keys_and_values(module) for module in layers[-1].modules())
    return layers[-1] if is_called_once and has_keys else None


@dataclass(frozen=True)
class ReadRows:
    """The rows of a packed batch that a loss reads: CLS and masked tokens.

    In the last layer the other rows serve only as keys and values.

    Attributes:
        columns: (R,) int64, their positions among the N rows, in order.
        starts: (B + 1,) int32, where each block begins among them.
    """

    columns: torch.Tensor
    starts: torch.Tensor

    @classmethod
    @torch.compiler.disable  # the number of rows depends on the batch
    def of(cls, labels: torch.Tensor, starts: torch.Tensor) -> "ReadRows":
        """Select CLS, the rows with a label, and further rows up to a multiple of `ROW_MULTIPLE`.

        Args:
            labels: (1, N).
            starts: (B + 1,), `cu_seq_lens_q` of the batch.
        """
        is_read = labels[0] != IGNORE_INDEX
        is_read[starts[:-1].long()] = True
        others = (~is_read).nonzero().squeeze(1)
        is_read[others[: int(-is_read.sum() % ROW_MULTIPLE)]] = True
        columns = is_read.nonzero().squeeze(1)
        return cls(columns, torch.searchsorted(columns, starts.long()).int())

    def narrow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """A layer's call with only these rows as queries, and all rows as keys."""
        own = {"kv_states": args[0], "cu_seq_lens_q": self.starts}
        return (args[0][:, self.columns], *args[1:]), {**kwargs, **own}


def offset_positions(inputs: dict[str, Any], offset: int) -> dict[str, Any]:
    """An encoder's inputs, with its offset added to the positions of a packed batch."""
    if inputs.get("cu_seq_lens_q") is None or inputs.get("position_ids") is None:
        return inputs
    return {**inputs, "position_ids": inputs["position_ids"] + offset}


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
    blocks = _Blocks(cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, sliding_window)
    if query.device.type == "cpu" and (dropout or query.dtype == torch.bfloat16):  # faster
        attention = partial(cpu_attention, rate=dropout, scale=scaling)
    else:
        attention = partial(F.scaled_dot_product_attention, dropout_p=dropout, scale=scaling)
    output = _attend_within((query, key, value), blocks, attention)
    return output.transpose(1, 2).contiguous(), None


def _mask(attention_mask: torch.Tensor | None = None, **kwargs: Any) -> Any:
    """The mask of "sdpa" for a padded batch, and none for a packed one."""
    return None if attention_mask is None else sdpa_mask(attention_mask=attention_mask, **kwargs)


AttentionInterface.register(PACKED, attend)
AttentionMaskInterface.register(PACKED, _mask)


class _Blocks(NamedTuple):
    """Bounds (B + 1,) and greatest lengths (0 if unknown) of the blocks, and the window."""

    query_starts: torch.Tensor
    key_starts: torch.Tensor
    most_queries: int
    most_keys: int
    window: int | None


@torch.compiler.disable  # a graph would hold for one number of blocks and their lengths
def _attend_within(rows: _Rows, blocks: _Blocks, attention: Callable) -> torch.Tensor:
    """Attention in the fastest way, (1, heads, R, D)."""
    _, key, _ = rows
    if key.device.type == "cuda" and blocks.window is None:
        return _attend_nested(rows, blocks, attention)
    if key.device.type == "cpu" and key.numel() >= len(_runs(rows, blocks)) * _LARGE_CALL:
        return _attend_runs(rows, blocks, attention)
    return _attend_padded(rows, blocks, attention)


def _attend_nested(rows: _Rows, blocks: _Blocks, attention: Callable) -> torch.Tensor:
    """Attention of nested tensors: flash attention on CUDA, with dropout."""
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
    """Attention in a call for each run of blocks of equal length, up to `_LARGEST_CALL`."""
    query, key, value = rows
    runs = _runs(rows, blocks)
    n_queries = [n_blocks * queries for n_blocks, queries, _ in runs]
    n_keys = [n_blocks * keys for n_blocks, _, keys in runs]
    parts = (query.split(n_queries, 2), key.split(n_keys, 2), value.split(n_keys, 2))
    outputs = []
    for (n_blocks, _, keys), *part in zip(runs, *parts, strict=True):
        below = [rows[0].unflatten(1, (n_blocks, -1)).transpose(0, 1) for rows in part]
        output = attention(*below, _window(keys, blocks.window, key.device))
        outputs.append(output.transpose(0, 1).flatten(1, 2)[None])
    return torch.cat(outputs, dim=2)


def _runs(rows: _Rows, blocks: _Blocks) -> list[tuple[int, int, int]]:
    """Adjacent blocks of equal length: how many, with how many queries and keys each."""
    runs, (_, key, _) = [], rows
    width = key.numel() // key.shape[2]
    n_queries, n_keys = blocks.query_starts.diff().tolist(), blocks.key_starts.diff().tolist()
    for (queries, keys), adjacent in groupby(zip(n_queries, n_keys, strict=True)):
        n_left, most = len(list(adjacent)), max(_LARGEST_CALL // (keys * width), 1)
        while n_left > 0:
            runs.append((min(n_left, most), queries, keys))
            n_left -= most
    return runs


def _attend_padded(rows: _Rows, blocks: _Blocks, attention: Callable) -> torch.Tensor:
    """Attention of all blocks in one call, padded for this call only."""
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
        # Rows of padding see themselves, because each row must see something.
        mask if near is None else mask & near | near.new_ones(len(near)).diag(),
    )
    return output.transpose(1, 2).flatten(0, 1)[query_places].transpose(0, 1)[None]


def _places(starts: torch.Tensor, n_rows: int, width: int) -> torch.Tensor:
    """(rows,) positions of a packed batch's rows in the padded one, its blocks end to end."""
    block = torch.arange(len(starts) - 1, device=starts.device)
    of_row = block.repeat_interleave(starts.diff(), output_size=n_rows)
    row = torch.arange(n_rows, device=starts.device)
    return of_row * width + row - starts[:-1].long()[of_row]


def _window(length: int, width: int | None, device: torch.device) -> torch.Tensor | None:
    """(T, T) bool, which tokens see each other; None if all do."""
    if width is None or length <= width:
        return None
    position = torch.arange(length, device=device)
    return (position[:, None] - position[None, :]).abs() < width


def keys_and_values(module: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """The projections of keys and of values of an attention, if it has separate ones."""
    for key, value in _KEYS_AND_VALUES:
        found = getattr(module, key, None), getattr(module, value, None)
        if all(isinstance(part, nn.Linear) for part in found):
            return found  # type: ignore[return-value]
    return None
