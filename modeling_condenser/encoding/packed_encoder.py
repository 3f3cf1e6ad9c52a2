"""Let an encoder take packed batches: all texts of a batch in one row, without padding.

Attention stays within each text (`packing.py`). If only CLS is pooled, the last layer computes
queries, output projection and feed-forward for CLS alone. Vectors equal those of padded batches.
"""

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import nn

from modeling_condenser.configuration_condenser import SUPPORTED_ENCODERS
from modeling_condenser.packing import (
    PACKED,
    ReadRows,
    keys_and_values,
    offset_positions,
    why_not_packed,
)
from modeling_condenser.positions import position_offset


def use_packing(model: SentenceTransformer) -> bool:
    """Make a model accept packed batches; return False, without a change, if it cannot."""
    modules: list[Any] = list(model)
    if not _can_pack(*modules):
        return False
    transformer, pooling = modules[:2]
    encoder = transformer.model
    encoder.set_attn_implementation(PACKED)
    offset = position_offset(encoder)
    # On the module, because it calls the encoder's `forward` directly, which skips hooks.
    transformer.register_forward_pre_hook(
        lambda _, args: (offset_positions(args[0], offset), *args[1:])
    )
    # Without the prompt, sentence-transformers pools the first token after the prompt.
    is_cls = pooling.pooling_mode in ("cls", ("cls",), ["cls"]) and pooling.include_prompt
    if is_cls and (layer := _last_layer(encoder)) is not None:
        layer.register_forward_pre_hook(_keep_cls, with_kwargs=True)
        transformer.register_forward_hook(_rename_cls)
    return True


def _can_pack(transformer: Any, pooling: Any, *following: Any) -> bool:
    """Whether a known bidirectional encoder is pooled, and later modules read only the vector."""
    encoder = transformer.model
    return (
        encoder.config.model_type in SUPPORTED_ENCODERS  # for which tests compare vectors
        and why_not_packed(encoder) is None
        and encoder.config._attn_implementation == "sdpa"
        and transformer.tokenizer.padding_side == "right"  # left padding shifts positions
        and not any(getattr(module, "is_causal", False) for module in encoder.modules())
        and isinstance(pooling, Pooling)
        and all(
            isinstance(module, Normalize)
            or getattr(module, "module_input_name", None) == "sentence_embedding"
            for module in following
        )
    )


def _last_layer(encoder: nn.Module) -> nn.Module | None:
    """The last layer, if it is called once and has separate projections of keys and values.

    ALBERT shares layers in several lists, and ModernBERT projects queries and keys together.
    """
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    if len(lists) != 1:
        return None
    layer = lists[0][-1]
    found = [module for module in layer.modules() if keys_and_values(module) is not None]
    return layer if len(found) == 1 else None


def _keep_cls(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Change a layer's call so that CLS of each text is its only query; keys are all tokens."""
    starts = kwargs.get("cu_seq_lens_q")
    if starts is None:
        return args, kwargs
    one_each = torch.arange(len(starts), dtype=starts.dtype, device=starts.device)
    args, kwargs = ReadRows(starts[:-1].long(), one_each).narrow(args, kwargs)
    return args, {**kwargs, "max_length_q": 1}


def _rename_cls(_: nn.Module, args: tuple, features: dict[str, Any]) -> None:
    """Pass the rows of a packed batch, (B, H), to the pooling as CLS embeddings."""
    if "cu_seq_lens_q" in features:
        features["cls_token_embeddings"] = features["token_embeddings"][0]
