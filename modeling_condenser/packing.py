"""Batches without padding: all blocks of a batch in one row, (1, N), end to end.

Attention stays within each block (`packed_attention.py`), and the last layers compute only the rows
that the losses need. Losses and gradients equal those of padded batches, which a model with packing
still accepts.

A packed batch holds B blocks in the fields of transformers' `DataCollatorWithFlattening`, made by
the collator, so that a forward pass never waits for a number on the device:

- columns such as `input_ids` and `labels`, and `position_ids`, counted from 0 in each block: (1, N)
  int64;
- `cu_seq_lens_q` and `cu_seq_lens_k`, the same (B + 1,) int32: where each block begins, then N;
- `max_length_q` and `max_length_k`, the longest block's length, an int;
- `masked_index` (M,) int64, the rows with a label, and some without: M + B is a multiple of
  `ROW_MULTIPLE`; `head_masked_index`, the same of `head_targets`;
- `block_index` (B,) int64, where the blocks stand that the collator was given, the longest first;
  with a `BatchShape`, the entries after theirs repeat the place of an empty block.

N is rounded up to a multiple of `PACK_MULTIPLE`, because kernels are built anew for every shape.
The filler is another block at the end, of tokens at position 0, without labels. With a `BatchShape`
all batches have the same sizes; then there are empty blocks before the filler, too.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from .encoder_parts import find_layers, position_offset
from .losses import IGNORE_INDEX, ROW_MULTIPLE
from .modeling_condenser import CondenserForMaskedLM
from .packed_attention import PACKED, keys_and_values

PACK_MULTIPLE = 64
# Columns of labels, and the name of the rows that have one.
_INDEX_OF = {"labels": "masked_index", "head_targets": "head_masked_index"}
_TARGETS = ("labels", "targets")  # how the names of columns end that hold no inputs


def why_not_packed(encoder: Any) -> str | None:
    """Why an encoder of transformers cannot take packed batches; None if it can."""
    if encoder._supports_attention_backend and encoder._can_set_attn_implementation():
        return None
    return f"{encoder.config.model_type} encoders support only their own attention"


def use_packing(model: CondenserForMaskedLM) -> None:
    """Replace a model's attention back-end, so that it accepts packed and padded batches.

    The last layers of backbone and head then compute only the rows that the losses need, if the
    encoder's attention allows it.

    Raises:
        ValueError: the encoder cannot take packed batches.
    """
    encoder: Any = model.condenser.encoder
    if reason := why_not_packed(encoder):
        raise ValueError(f"Batches cannot be packed: {reason}. Set packed: false.")
    model.set_attn_implementation(PACKED)
    if not hasattr(encoder, "packed_offset"):  # a hook is the encoder's own, a configuration not
        encoder.packed_offset = offset = position_offset(encoder)
        encoder.register_forward_pre_hook(
            lambda _, args, kwargs: (args, offset_positions(kwargs, offset)), with_kwargs=True
        )
    # The head must read neither the last layer's input (a single layer) nor all of its output.
    n_layers, skip_from = model.config.num_hidden_layers, model.config.skip_from
    is_global = layer_to_narrow(encoder) is model.condenser.global_layer
    can_narrow = is_global and n_layers > 1 and skip_from < n_layers
    model.select_rows = SelectedRows.select if can_narrow else None


def is_packing(model: CondenserForMaskedLM) -> bool:
    """Whether a model accepts packed batches."""
    encoder: Any = model.condenser.encoder
    return encoder.config._attn_implementation == PACKED and hasattr(encoder, "packed_offset")


class BatchShape(NamedTuple):
    """Sizes that packed batches are filled to, so that kernels and graphs see one shape.

    Attributes:
        n_tokens: N, a multiple of `PACK_MULTIPLE`, and more than the tokens of any batch.
        n_blocks: B, with the blocks of the filler and two more at least.
        longest: tokens of the longest block, and of a block of the filler at most.
        n_rows: columns of labels -> M + B, a multiple of `ROW_MULTIPLE`.
    """

    n_tokens: int
    n_blocks: int
    longest: int
    n_rows: Mapping[str, int]


def pack(
    batch: Mapping[str, torch.Tensor], *, padding: int = 0, shape: BatchShape | None = None
) -> dict[str, Any]:
    """Pack the blocks of a padded batch: (B, T) columns, `attention_mask` among them.

    The longest come first, so that equally long ones are neighbours. `padding` is the token of the
    filler.
    """
    lengths, order = batch["attention_mask"].sum(dim=1).sort(descending=True, stable=True)
    is_token = batch["attention_mask"][order] != 0
    columns = {
        name: (values[order][is_token], IGNORE_INDEX if name.endswith(_TARGETS) else padding)
        for name, values in batch.items()
        if name != "attention_mask"
    }
    packed = lay_end_to_end(lengths.tolist(), columns, shape)
    starts = packed["cu_seq_lens_q"]
    for name in _INDEX_OF.keys() & packed.keys():
        n_rows = shape.n_rows[name] if shape else 0
        packed[_INDEX_OF[name]] = _index_of_labels(packed[name][0], starts, n_rows)
    places = order.argsort()
    if shape:
        places = F.pad(places, (0, shape.n_blocks - len(places)), value=len(places))
    return {**packed, "block_index": places}


def _index_of_labels(labels: torch.Tensor, starts: torch.Tensor, n_rows: int = 0) -> torch.Tensor:
    """The rows with a label and others, so that with the blocks' CLS there are `n_rows`.

    There are as many more as make a multiple of `ROW_MULTIPLE`, if `n_rows` is too few.
    """
    is_chosen = labels != IGNORE_INDEX
    is_free = ~is_chosen
    is_free[starts[:-1].long()] = False
    n_chosen = int(is_chosen.sum()) + len(starts) - 1
    n_rows = max(n_rows, n_chosen + -n_chosen % ROW_MULTIPLE)
    is_chosen[is_free.nonzero()[: n_rows - n_chosen, 0]] = True
    return is_chosen.nonzero()[:, 0]


def lay_end_to_end(
    lengths: Sequence[int],
    columns: Mapping[str, tuple[torch.Tensor, int]],
    shape: BatchShape | None = None,
) -> dict[str, Any]:
    """Make a packed batch of blocks that already lie end to end.

    `lengths`, (B,), are the numbers of tokens of the blocks. `columns` map a name to a number for
    each token, (tokens,), and the number for the filler.
    """
    device = next(iter(columns.values()))[0].device
    n_filler = (shape.n_tokens - sum(lengths)) if shape else -sum(lengths) % PACK_MULTIPLE
    positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
    columns = {**columns, "position_ids": (positions, 0)}
    blocks = list(lengths)
    if shape:
        n_full, rest = divmod(n_filler, shape.longest)
        fillers = [shape.longest] * n_full + [rest] * (rest > 0)
        # The CLS of an empty block is the first row of the filler, which no loss reads.
        blocks += [0] * (shape.n_blocks - len(blocks) - len(fillers)) + fillers
    elif n_filler:
        blocks.append(n_filler)
    starts = F.pad(torch.tensor(blocks, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0))
    batch: dict[str, Any] = {
        name: F.pad(values.long(), (0, n_filler), value=fill)[None]
        for name, (values, fill) in columns.items()
    }
    for side in "qk":
        batch[f"cu_seq_lens_{side}"] = starts.to(device)
        batch[f"max_length_{side}"] = shape.longest if shape else max(blocks)
    return batch


def unpack(batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The padded batch, without the filler, of which `pack` made a packed one."""
    lengths, order = batch["cu_seq_lens_q"].diff().tolist(), batch["block_index"].tolist()
    n_times = Counter(order)
    order = [i for i in order if n_times[i] == 1]
    columns = {"attention_mask": torch.ones_like(batch["input_ids"]), **batch}
    padded = {}
    for name, values in columns.items():
        if isinstance(values, torch.Tensor) and values.dim() == 2 and name != "position_ids":
            blocks = values[0].split(lengths)
            fill = IGNORE_INDEX if name.endswith(_TARGETS) else 0
            padded[name] = pad_sequence([blocks[i] for i in order], True, fill)
    return padded


def layer_to_narrow(encoder: Any) -> nn.Module | None:
    """The last layer, if it is called once and has separate projections of keys and values.

    ALBERT shares layers, and ModernBERT projects queries and keys together.
    """
    layers = find_layers(encoder)
    is_called_once = len(layers) == encoder.config.num_hidden_layers
    has_keys = any(keys_and_values(module) for module in layers[-1].modules())
    return layers[-1] if is_called_once and has_keys else None


@dataclass(frozen=True)
class SelectedRows:
    """The rows of a packed batch that the losses need: CLS and masked tokens.

    In the last layer they are the queries of the attention. The other rows serve only as keys and
    values.

    Attributes:
        positions: (R,) int64, their positions among the N rows, in order.
        starts: (B + 1,) int32, where each block begins among them.
    """

    positions: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def select(cls, index: torch.Tensor, starts: torch.Tensor) -> "SelectedRows":
        """CLS of each block, and the rows of an index, (M,).

        `starts`, (B + 1,), is `cu_seq_lens_q` of the batch.
        """
        positions = torch.cat([starts[:-1].long(), index]).sort().values
        return cls(positions, torch.searchsorted(positions, starts.long()).int())

    def narrow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """A layer's call with only these rows as queries, and all rows as keys."""
        changed = {"kv_states": args[0], "cu_seq_lens_q": self.starts}
        return (args[0].index_select(1, self.positions), *args[1:]), {**kwargs, **changed}


def offset_positions(inputs: dict[str, Any], offset: int) -> dict[str, Any]:
    """An encoder's inputs, with its offset added to the positions of a packed batch."""
    if inputs.get("cu_seq_lens_q") is None or inputs.get("position_ids") is None:
        return inputs
    return {**inputs, "position_ids": inputs["position_ids"] + offset}
