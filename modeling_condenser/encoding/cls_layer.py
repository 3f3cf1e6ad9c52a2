"""The last layer for CLS alone: the only one of its outputs that CLS pooling reads.

The other tokens of the last layer are keys and values, but what becomes of them is read by nothing,
so their queries, output projection and feed-forward are left out. The vectors are the same, and of
a BERT of four layers about a sixth of the time is saved.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from modeling_condenser.packed_attention import keys_and_values, project_keys_and_values

CLS_ONLY = "cls_only"
# Whose keys and values are projections of the hidden states and nothing more: not rotated, not
# shared between layers.
_MODEL_TYPES = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")


@dataclass(frozen=True)
class ClsLayer:
    """An encoder's last layer, and how to run it for CLS alone.

    Attributes:
        layer: the last one.
        attention: its self-attention.
        config: of the attention while only CLS is computed.
    """

    layer: nn.Module
    attention: Any
    config: Any

    @classmethod
    def of(cls, model: SentenceTransformer) -> "ClsLayer | None":
        """The last layer of a model's encoder, if nothing but its CLS vector is read; else None.

        Args:
            model: a `Transformer` and what follows it.
        """
        transformer: Any = model[0]
        encoder: Any = transformer.model
        if encoder.config.model_type not in _MODEL_TYPES or not _reads_cls_only(model):
            return None
        lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
        if len(lists) != 1 or encoder.config._attn_implementation != "sdpa":
            return None
        found: list[Any] = [m for m in lists[0][-1].modules() if keys_and_values(m) is not None]
        if len(found) != 1 or getattr(found[0], "is_causal", False):
            return None
        config: Any = copy.copy(found[0].config)
        config._attn_implementation = CLS_ONLY
        return cls(lists[0][-1], found[0], config)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Give `last_hidden_state` (B, 1, H), of CLS, within the block."""
        before = self.attention.config
        hook = self.layer.register_forward_pre_hook(_keep_cls, with_kwargs=True)
        self.attention.config = self.config
        try:
            yield
        finally:
            self.attention.config = before
            hook.remove()


def _reads_cls_only(model: SentenceTransformer) -> bool:
    transformer: Any = model[0]
    pooling, following = (model[1] if len(model) > 1 else None), list(model)[2:]
    return (
        isinstance(pooling, Pooling)
        and pooling.pooling_mode in ("cls", ("cls",), ["cls"])
        and pooling.include_prompt  # else it takes the first token behind the prompt
        and all(_reads_the_vector(module) for module in following)
        and transformer.modality_config["text"]["method_output_name"] == "last_hidden_state"
        and not transformer.model.config.output_hidden_states
        and transformer.tokenizer.padding_side == "right"
    )


def _reads_the_vector(module: nn.Module) -> bool:
    if isinstance(module, Dense):
        return module.module_input_name == "sentence_embedding"
    return isinstance(module, Normalize)


def _keep_cls(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """A layer's call with CLS as the only query, and all tokens as keys and values."""
    states = args[0]  # (B, T, H)
    return (states[:, :1], *args[1:]), {**kwargs, "kv_states": states}


def _attend_from_cls(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    kv_states: torch.Tensor,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of CLS to all tokens, as an attention back-end of transformers.

    Args:
        module: the attention that calls.
        query: (B, heads, 1, D); `key` and `value`, of CLS alone, are not read.
        key: see `query`.
        value: see `query`.
        attention_mask: (B, 1, T, T), or none where no text is padded.
        kv_states: (B, T, H) the hidden states of all tokens.
        **kwargs: for "sdpa".

    Returns:
        (B, 1, heads, D), and no weights.
    """
    key, value = project_keys_and_values(module, kv_states, head_width=query.shape[-1])
    if attention_mask is not None:
        attention_mask = attention_mask[:, :, :1]  # (B, 1, 1, T)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


AttentionInterface.register(CLS_ONLY, _attend_from_cls)
