"""Batches without padding: an encoder that takes all blocks of a batch end to end, in one row.

All that an encoder does to tokens one by one then has no padding to spend time on; attention keeps
to the blocks (`packed_attention.py`). Losses and gradients are those of padded batches, which the
model takes as before, so that it can be probed, evaluated and exported as any other.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from .modeling_condenser import IGNORE_INDEX, ROW_MULTIPLE, CondenserForMaskedLM
from .packed_attention import PACKED, keys_and_values


def why_not_packed(encoder: Any) -> str | None:
    """Why an encoder cannot take packed batches; None if it can.

    Args:
        encoder: a plain encoder of transformers.
    """
    if not encoder._supports_attention_backend or not encoder._can_set_attn_implementation():
        return (
            f"the attention of {encoder.config.model_type} encoders is their own and knows padded "
            "batches only"
        )
    return None


def use_packing(model: CondenserForMaskedLM, *, narrow: bool = True) -> None:
    """Make a model take packed batches; padded ones, too.

    Args:
        model: whose attention back-end is set.
        narrow: let the last layers of backbone and head compute only the rows that a loss reads,
            where the encoder's attention allows it.

    Raises:
        ValueError: its encoder cannot.
    """
    encoder: Any = model.condenser.encoder
    if reason := why_not_packed(encoder):
        raise ValueError(f"Batches cannot be packed: {reason}. Set packed: false.")
    if encoder.config._attn_implementation != PACKED:
        model.set_attn_implementation(PACKED)
        encoder.register_forward_pre_hook(OffsetPositions(encoder), with_kwargs=True)
    model.choose_rows = ReadRows.of if narrow and can_narrow(model) else None


def can_narrow(model: CondenserForMaskedLM) -> bool:
    """Whether the last layers can leave out the queries that no loss reads.

    They can where keys and values have projections of their own, where the last layer is called
    once and attends to the whole block, and where the head does not read all of its output.
    """
    layers, config = model.condenser.layers, model.config
    return (
        any(keys_and_values(module) for module in layers[-1].modules())
        and len(layers) == config.num_hidden_layers
        and model.condenser.global_layer is layers[-1]
        and config.skip_from < config.num_hidden_layers
    )


@dataclass(frozen=True)
class ReadRows:
    """The rows of a packed batch that a loss reads: CLS and masked tokens.

    In the last layer of a stack the others are keys and values, but what becomes of them is read by
    nothing, so their queries, output projection and feed-forward can be left out.

    Attributes:
        columns: (R,) int64, which they are of the N, in order.
        starts: (B + 1,) int32, where among them each block begins: their `cu_seq_lens_q`.
    """

    columns: torch.Tensor
    starts: torch.Tensor

    @classmethod
    @torch.compiler.disable  # how many rows there are is up to the batch
    def of(cls, labels: torch.Tensor, starts: torch.Tensor) -> "ReadRows":
        is_read = labels[0] != IGNORE_INDEX
        is_read[starts[:-1].long()] = True
        others = (~is_read).nonzero().squeeze(1)
        is_read[others[: int(-is_read.sum() % ROW_MULTIPLE)]] = True
        columns = is_read.nonzero().squeeze(1)
        return cls(columns, torch.searchsorted(columns, starts.long()).int())

    def narrow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """A layer's call as one whose queries are these rows, and whose keys are all."""
        own = {"kv_states": args[0], "cu_seq_lens_q": self.starts}
        return (args[0][:, self.columns], *args[1:]), {**kwargs, **own}


def _position_offset(encoder: PreTrainedModel) -> int:
    """What an encoder adds to positions that count from 0: RoBERTa's begin behind padding's."""
    for module in encoder.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding):
            return 0 if table.padding_idx is None else table.padding_idx + 1
    return 0


class OffsetPositions:
    """Turns a packed batch's positions, which count from 0, into the encoder's own.

    An encoder's forward pre-hook that gets keyword arguments.
    """

    def __init__(self, encoder: PreTrainedModel):
        self.offset = _position_offset(encoder)

    def __call__(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        return args, self.of(kwargs)

    def of(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """An encoder's inputs with its own positions, where they are a packed batch."""
        if inputs.get("cu_seq_lens_q") is None or inputs.get("position_ids") is None:
            return inputs
        return {**inputs, "position_ids": inputs["position_ids"] + self.offset}


__all__ = ["OffsetPositions", "ReadRows", "can_narrow", "use_packing", "why_not_packed"]
