"""Condenser: retrieval-oriented pre-training of any encoder, for the Hugging Face Hub.

Importing the package registers its model with the Auto classes, so that they open a Condenser
checkpoint without remote code. All other public names are imported when they are first used.
"""

# ruff: noqa: F401 (the imports for type checkers)

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adaptation.adapt import adapt
    from .analysis.analyze import analyze
    from .analysis.callback import ReadinessCallback
    from .collection.collect import collect
    from .configuration_condenser import CondenserConfig
    from .encoding.encode import encode
    from .encoding.pipeline_step import EncodeShards
    from .encoding.retriever import Retriever
    from .evaluation.evaluate import evaluate
    from .finetuning.finetune import finetune
    from .finetuning.mine import mine
    from .modeling_condenser import (
        CondenserForMaskedLM,
        CondenserForPreTraining,
        CondenserForPreTrainingOutput,
        CondenserModel,
    )
    from .pretraining.arguments import CondenserTrainingArguments
    from .pretraining.collator import CondenserDataCollator
    from .pretraining.contrastive_trainer import ContrastiveTrainer
    from .pretraining.pretrain import pretrain
    from .pretraining.trainer import CondenserTrainer
    from .publishing.export import export, export_encoder
    from .publishing.push import push
    from .retrieval.index import Index, Passage

_NAMES = {
    ".adaptation.adapt": "adapt",
    ".analysis.analyze": "analyze",
    ".analysis.callback": "ReadinessCallback",
    ".collection.collect": "collect",
    ".configuration_condenser": "CondenserConfig",
    ".encoding.encode": "encode",
    ".encoding.pipeline_step": "EncodeShards",
    ".encoding.retriever": "Retriever",
    ".evaluation.evaluate": "evaluate",
    ".finetuning.finetune": "finetune",
    ".finetuning.mine": "mine",
    ".publishing.export": "export export_encoder",
    ".publishing.push": "push",
    ".modeling_condenser": "CondenserForMaskedLM CondenserForPreTraining"
    " CondenserForPreTrainingOutput CondenserModel",
    ".pretraining.arguments": "CondenserTrainingArguments",
    ".pretraining.collator": "CondenserDataCollator",
    ".pretraining.contrastive_trainer": "ContrastiveTrainer",
    ".pretraining.pretrain": "pretrain",
    ".pretraining.trainer": "CondenserTrainer",
    ".retrieval.index": "Index Passage",
}


def register_auto_classes() -> None:
    """Let the Auto classes open Condenser checkpoints; further calls change nothing."""
    from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining

    from .configuration_condenser import CondenserConfig
    from .modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining, CondenserModel

    AutoConfig.register("condenser", CondenserConfig, exist_ok=True)
    AutoModel.register(CondenserConfig, CondenserModel, exist_ok=True)
    AutoModelForMaskedLM.register(CondenserConfig, CondenserForMaskedLM, exist_ok=True)
    AutoModelForPreTraining.register(CondenserConfig, CondenserForPreTraining, exist_ok=True)


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names.split():
            return getattr(import_module(module, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "CONDENSER_LAZY" not in os.environ:  # set by commands, most of which need no model
    register_auto_classes()

__all__ = sorted(" ".join(_NAMES.values()).split())
