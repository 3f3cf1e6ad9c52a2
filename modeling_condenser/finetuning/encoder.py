"""Open the encoder to fine-tune, with its encoding contract."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from torch import nn

from modeling_condenser.encoding import opening
from modeling_condenser.encoding.opening import OpenedEncoder
from modeling_condenser.hub.contract import Pooling
from modeling_condenser.hub.model_folder import find_model_folder, is_checkpoint


def open_encoder(name: str, changes: Mapping[str, Any]) -> OpenedEncoder:
    """Load an encoder to fine-tune, in float32; `changes` are fields of `EncodingContract`.

    Its model has two modules, the transformer and the pooling. It does not normalise its vectors;
    the loss does, where the similarity is cosine.
    """
    folder = find_model_folder(name)
    if is_checkpoint(folder):
        raise ValueError(
            f"{folder} is a Condenser checkpoint: use `condenser export` first, and fine-tune that."
        )
    opened = opening.open_encoder(folder, **changes)
    modules: list[Any] = list(opened.model)
    kinds, pooling = [type(module) for module in modules], opened.contract.pooling
    is_plain = kinds[:2] == [Transformer, PoolingModule] and kinds[2:] in ([], [Normalize])
    if not is_plain or pooling not in get_args(Pooling):
        raise ValueError(
            f"{folder} has the modules {', '.join(kind.__name__ for kind in kinds)} and the "
            f"pooling {pooling!r}; expected Transformer, Pooling ({', '.join(get_args(Pooling))}) "
            "and possibly Normalize: state another pooling, or use sentence-transformers itself."
        )
    transformer = modules[0]
    _freeze_pooler(transformer.model)
    pooler = PoolingModule(transformer.get_embedding_dimension(), pooling_mode=pooling)
    model = SentenceTransformer(modules=[transformer, pooler], device=str(opened.model.device))
    return dataclasses.replace(opened, model=model)


def _freeze_pooler(encoder: Any) -> None:
    """Exclude the pooler from training, which no loss uses.

    One that was never trained, as its bias of zeros tells, becomes tanh(CLS).
    """
    pooler = getattr(encoder, "pooler", None)
    if not isinstance(pooler, nn.Module):
        return
    pooler.requires_grad_(False)
    for module in pooler.modules():
        if isinstance(module, nn.Linear) and module.bias is not None and not module.bias.any():
            nn.init.eye_(module.weight)
