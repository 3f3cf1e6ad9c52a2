"""Change a sentence-transformers model so that it encodes packed batches (`packing.py`)."""

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dropout,
    Module,
    Normalize,
    Pooling,
    Router,
)
from torch import nn

from modeling_condenser import packing
from modeling_condenser.configuration_condenser import SUPPORTED_ENCODERS
from modeling_condenser.encoder_parts import position_offset
from modeling_condenser.packed_attention import PACKED


def accept_packed(model: SentenceTransformer) -> bool:
    """Change a model to accept packed batches; return False and change nothing if it cannot."""
    modules: list[Any] = list(model)
    if model.device.type not in ("cpu", "cuda") or not _can_pack(*modules):
        return False  # other devices have no such attention
    transformer, pooling = modules[:2]
    encoder = transformer.model
    encoder.set_attn_implementation(PACKED)
    offset = position_offset(encoder)
    # The module calls the encoder's `forward` directly, which skips hooks of the encoder.
    transformer.register_forward_pre_hook(
        lambda _, args: (packing.offset_positions(args[0], offset), *args[1:])
    )
    is_cls = pooling.pooling_mode in ("cls", ("cls",), ["cls"])
    if is_cls and (layer := packing.layer_to_narrow(encoder)) is not None:
        layer.register_forward_pre_hook(_keep_cls, with_kwargs=True)
        transformer.register_forward_hook(_rename_cls)
    return True


def _can_pack(transformer: Any, pooling: Any, *following: Any) -> bool:
    """Return whether a supported encoder is pooled and later modules read only the vector."""
    encoder = transformer.model
    parts = [part for module in following for part in module.modules()]  # of a router, too
    return (
        encoder.config.model_type in SUPPORTED_ENCODERS  # for which tests compare vectors
        and packing.why_not_packed(encoder) is None
        and encoder.config._attn_implementation == "sdpa"
        and not any(getattr(module, "is_causal", False) for module in encoder.modules())
        and isinstance(pooling, Pooling)
        and all(
            isinstance(module, Normalize | Dropout | Router)
            or getattr(module, "module_input_name", None) == "sentence_embedding"
            for module in parts
            if isinstance(module, Module)
        )
    )


def _keep_cls(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Change a layer's call so that CLS of each text is its only query; keys are all tokens."""
    starts = kwargs.get("cu_seq_lens_q")
    if starts is None:
        return args, kwargs
    one_each = torch.arange(len(starts), dtype=starts.dtype, device=starts.device)
    args, kwargs = packing.SelectedRows(starts[:-1].long(), one_each).narrow(args, kwargs)
    return args, {**kwargs, "max_length_q": 1}


def _rename_cls(_: nn.Module, args: tuple, features: dict[str, Any]) -> None:
    """Pass the rows of a packed batch, (B, H), to the pooling as CLS embeddings."""
    if "cu_seq_lens_q" in features:
        features["cls_token_embeddings"] = features["token_embeddings"][0]
