"""An encoder without padding: texts end to end in one row, and only what the pooling reads of it.

Attention keeps to the texts (`packed_attention.py`), and sentence-transformers' pooling reads
packed batches as they are. Where nothing but CLS is pooled, the other tokens of the last layer are
keys and values, but what becomes of them is read by nothing, so their queries, output projection
and feed-forward are left out: of a BERT of four layers about a sixth of the time. The vectors are
those of padded batches, which the encoder takes as before.
"""

from functools import partial
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from torch import nn

from modeling_condenser.packed_attention import PACKED, keys_and_values
from modeling_condenser.packing import OffsetPositions, ReadRows, why_not_packed

# Whose packed vectors are known, by tests, to be the padded ones.
_MODEL_TYPES = (
    "albert",
    "bert",
    "camembert",
    "distilbert",
    "electra",
    "modernbert",
    "roberta",
    "xlm-roberta",
)


def use_packing(model: SentenceTransformer) -> bool:
    """Make a model take packed batches, as `packed_texts.py` makes them, if it can.

    Args:
        model: a `Transformer` and what follows it.

    Returns:
        Whether it can; if not, it is left as it was.
    """
    transformer: Any = model[0]
    encoder: Any = transformer.model
    if not _can_pack(model) or not _reads_packed(model):
        return False
    encoder.set_attn_implementation(PACKED)
    # Not of the encoder itself, whose `forward` is called directly, past its hooks.
    transformer.register_forward_pre_hook(partial(_offset_positions, OffsetPositions(encoder)))
    if _reads_cls_only(model) and (layer := _last_layer(encoder)) is not None:
        layer.register_forward_pre_hook(_keep_cls, with_kwargs=True)
        transformer.register_forward_hook(_hand_over_cls)
    return True


def _can_pack(model: SentenceTransformer) -> bool:
    """Whether texts are seen by a known encoder, each token by all, in torch's own attention."""
    transformer: Any = model[0]
    encoder: Any = transformer.model
    return (
        encoder.config.model_type in _MODEL_TYPES
        and why_not_packed(encoder) is None
        and encoder.config._attn_implementation == "sdpa"
        and transformer.tokenizer.padding_side == "right"  # else padding moves positions
        and not any(getattr(module, "is_causal", False) for module in encoder.modules())
    )


def _reads_packed(model: SentenceTransformer) -> bool:
    """Whether the modules behind the encoder read packed batches."""
    transformer: Any = model[0]
    pooling, following = (model[1] if len(model) > 1 else None), list(model)[2:]
    return (
        isinstance(pooling, Pooling)
        and all(_reads_the_vector(module) for module in following)
        and transformer.modality_config["text"]["method"] == "forward"
        and transformer.modality_config["text"]["method_output_name"] == "last_hidden_state"
        and not transformer.model.config.output_hidden_states
    )


def _reads_the_vector(module: nn.Module) -> bool:
    if isinstance(module, Dense):
        return module.module_input_name == "sentence_embedding"
    return isinstance(module, Normalize)


def _reads_cls_only(model: SentenceTransformer) -> bool:
    pooling: Any = model[1]
    is_cls = pooling.pooling_mode in ("cls", ("cls",), ["cls"])
    return is_cls and pooling.include_prompt  # else it takes the first token behind the prompt


def _last_layer(encoder: nn.Module) -> nn.Module | None:
    """The last layer, where its attention has projections of keys and values of their own.

    ALBERT has several lists of layers, of which it calls one again and again; ModernBERT projects
    keys and queries at once.
    """
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    if len(lists) != 1:
        return None
    layer = lists[0][-1]
    found = [module for module in layer.modules() if keys_and_values(module) is not None]
    return layer if len(found) == 1 else None


def _offset_positions(own: OffsetPositions, _: nn.Module, args: tuple) -> tuple:
    """As `OffsetPositions`, for a module whose features are one dictionary."""
    features, *others = args
    return own.of(features), *others


def _keep_cls(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """A layer's call with the CLS of each text as its only query, and all tokens as keys."""
    starts = kwargs.get("cu_seq_lens_q")
    if starts is None:
        return args, kwargs
    one_each = torch.arange(len(starts), dtype=starts.dtype, device=starts.device)
    args, kwargs = ReadRows(starts[:-1].long(), one_each).narrow(args, kwargs)
    return args, {**kwargs, "max_length_q": 1}


def _hand_over_cls(_: nn.Module, args: tuple, features: dict[str, Any]) -> None:
    """Name the rows of a packed batch as what they are, (B, H), for the pooling."""
    if "cu_seq_lens_q" in features:
        features["cls_token_embeddings"] = features["token_embeddings"][0]
