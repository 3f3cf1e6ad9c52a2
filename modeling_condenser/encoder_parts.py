"""How a Condenser uses the layers of any encoder, and pools its dense vector.

Travels to the Hub with `modeling_condenser.py`.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import nn

from .losses import block_of_rows, widen

FINAL_NORMS = ("final_norm", "norm")  # what encoders call the norm of their output
HEAD_WEIGHTS = ("head.", "head_norm.")  # how the names of the Condenser head's weights begin


def find_layers(encoder: nn.Module) -> list[nn.Module]:
    """An encoder's layers in order; a shared layer is listed once."""
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    members = [member for modules in lists for member in modules]
    return [m for m in members if not any(inner in lists for inner in m.modules())]


def build_like(layer: Any, encoder_config: Any) -> nn.Module:
    """A new layer of the same class."""
    if "layer_idx" not in signature(type(layer)).parameters:
        return type(layer)(encoder_config)
    indices = [getattr(module, "layer_idx", None) for module in layer.modules()]
    return type(layer)(encoder_config, next((i for i in indices if i is not None), None))


def build_final_norm(encoder: Any) -> nn.Module:
    """A norm like the one that a new encoder ends in, if it has one.

    The LM head of such an encoder was trained on normalised vectors.
    """
    modules = dict(encoder.named_modules())
    for name in FINAL_NORMS:
        if name in modules:
            return copy.deepcopy(modules[name])
    return nn.Identity()


@dataclass(frozen=True)
class LayerCall:
    """The arguments of a backbone layer beside hidden states: masks, positions, biases.

    The head's layers repeat the call. So tables that the backbone's layers share (of relative
    positions in MPNet and DeBERTa) get gradients from the head, too.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def repeat(self, layer: nn.Module, hidden: torch.Tensor, *, rows: Any = None) -> torch.Tensor:
        """Call another layer of the same class: (B, T, H) to (B, T, H), or to only these rows."""
        args, kwargs = (hidden, *self.args), self.kwargs
        if rows is not None:
            args, kwargs = rows.narrow(args, kwargs)
        result = layer(*args, **kwargs)
        return result[0] if isinstance(result, tuple) else result


class _Embedded(Exception):
    """Carries the embeddings out of an encoder before its first layer runs."""


class LayerRecorder:
    """Records what an encoder's layers are called with while a recording is open.

    Its hooks are registered once, because torch.compile cannot register hooks in a graph.
    """

    def __init__(self, layers: list[nn.Module], repeated: nn.Module):
        self.recording: Recording | None = None
        self.is_embedding = False
        for layer in layers:
            layer.register_forward_pre_hook(self._record_input)
        repeated.register_forward_pre_hook(self._record_call, with_kwargs=True)

    def _record_input(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        if self.is_embedding:
            raise _Embedded(args[0])
        if (recording := self.recording) is not None:
            if recording.n_calls == recording.skip_from:
                recording.early = args[0]
            recording.n_calls += 1

    def _record_call(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (recording := self.recording) is None:
            return None
        recording.call = LayerCall(args[1:], kwargs)
        return None if recording.rows is None else recording.rows.narrow(args, kwargs)

    @contextmanager
    def record(self, skip_from: int, rows: Any = None) -> Iterator["Recording"]:
        """Record the calls of one forward pass; see `Recording`."""
        self.recording = recording = Recording(skip_from, rows)
        try:
            yield recording
        finally:
            self.recording = None

    def embed(self, encoder: nn.Module, **inputs: Any) -> torch.Tensor:
        """The input of the encoder's first layer, (B, T, H)."""
        self.is_embedding = True
        try:
            encoder(**inputs)
        except _Embedded as embedded:
            return embedded.args[0]
        finally:
            self.is_embedding = False
        raise AssertionError("an encoder calls its first layer")


@dataclass
class Recording:
    """Recorded calls of one forward pass.

    Attributes:
        skip_from: number of layers that are called before `early` is recorded.
        rows: narrows the call of the layer that the head repeats, if not None.
        n_calls: of all layers so far; shared layers are called several times.
        early: (B, T, H) the output of layer `skip_from`; None if it is the last.
        call: the last of the layer that the head repeats, before it was narrowed.
    """

    skip_from: int
    rows: Any
    n_calls: int = 0
    early: torch.Tensor | None = None
    call: LayerCall | None = None


def pool(
    hidden: torch.Tensor,
    pooling: str,
    *,
    attention_mask: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """The dense vectors of the blocks of (B, T, H) hidden states.

    Args:
        hidden: (B, T, H), or (1, N, H) of a packed batch.
        pooling: "cls", each block's first vector, or "mean", the mean of all its vectors.
        attention_mask: (B, T), 1 for tokens and 0 for padding; by default all are tokens.
        starts: (B + 1,) where the blocks of a packed batch begin; some may be empty.

    Returns:
        (B, 1, H); of a packed batch (1, B, H).
    """
    if pooling == "cls":
        return hidden[:, :1] if starts is None else hidden.index_select(1, starts[:-1])
    if pooling != "mean":
        raise ValueError(f"pooling is {pooling!r}, expected cls or mean.")
    states = widen(hidden)  # sums need the precision
    if starts is not None:
        lengths, block = starts.diff(), block_of_rows(starts, hidden.shape[1])
        sums = states.new_zeros(1, len(lengths), hidden.shape[2]).index_add(1, block, states)
        return (sums / lengths.clamp(min=1)[:, None]).to(hidden.dtype)  # some are empty
    if attention_mask is None:
        return states.mean(dim=1, keepdim=True).to(hidden.dtype)
    is_token = attention_mask[..., None] != 0  # (B, T, 1)
    sums = states.where(is_token, 0).sum(dim=1, keepdim=True)
    return (sums / is_token.sum(dim=1, keepdim=True)).to(hidden.dtype)


def replace_cls(
    hidden: torch.Tensor, cls: torch.Tensor, starts: torch.Tensor | None
) -> torch.Tensor:
    """Hidden states (B, T, H) with other CLS vectors, shaped as `pool` returns them."""
    if starts is None:
        return torch.cat([cls, hidden[:, 1:]], dim=1)
    return hidden.index_copy(1, starts[:-1].long(), cls.to(hidden.dtype))


def position_offset(encoder: nn.Module) -> int:
    """The position of a text's first token; RoBERTa counts from the padding token's id + 1."""
    for module in encoder.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding):
            return 0 if table.padding_idx is None else table.padding_idx + 1
    return 0


def n_positions(encoder: Any) -> int | None:
    """The longest sequence that an encoder takes; None where there is no limit."""
    config = getattr(encoder.config, "encoder_config", encoder.config)  # of a CondenserModel
    n_rows = getattr(config, "max_position_embeddings", None)
    return n_rows - position_offset(encoder) if isinstance(n_rows, int) and n_rows > 0 else None


def refuse_incomplete(name_or_path: Any, missing: set[str], unexpected: set[str]) -> None:
    """Raise if a checkpoint has missing or unexpected weights."""
    if missing and all(key.startswith(HEAD_WEIGHTS) for key in missing):
        raise ValueError(
            f"{name_or_path} has no Condenser head, or a shorter one ({min(missing)} is missing), "
            "and a random head can corrupt the backbone: continue from a checkpoint with its head, "
            "or pass new_head=True to start a new one."
        )
    if missing or unexpected:
        raise ValueError(
            f"{name_or_path} does not fit the model: {len(missing)} weights are missing "
            f"{sorted(missing)[:3]}, {len(unexpected)} are unexpected {sorted(unexpected)[:3]}. "
            "Open a plain encoder with from_encoder."
        )


def freeze_pooler(encoder: nn.Module) -> None:
    """Freeze an encoder's pooler, because no loss reads it and data parallelism needs gradients.

    A pooler that was never trained (its bias is zero) becomes tanh(CLS).
    """
    pooler = getattr(encoder, "pooler", None) or nn.Identity()
    pooler.requires_grad_(False)
    for part in pooler.modules():
        if not isinstance(part, nn.Linear) or part.bias is None or part.weight.is_meta:
            continue
        if not part.bias.any():
            nn.init.eye_(part.weight)
