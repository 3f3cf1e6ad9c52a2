"""Condenser: retrieval-oriented pre-training of any encoder, for the Hugging Face Hub.

Public names, and the registration that lets the Auto classes open a Condenser checkpoint in a
process that has this package; elsewhere the checkpoint brings its own code. Stages that need more
than transformers are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining

from .configuration_condenser import CondenserConfig
from .modeling_condenser import (
    CondenserForMaskedLM,
    CondenserForPreTraining,
    CondenserForPreTrainingOutput,
    CondenserModel,
)

if TYPE_CHECKING:
    from .analysis.callback import ReadinessCallback
    from .pretraining.arguments import CondenserTrainingArguments
    from .pretraining.collator import CondenserDataCollator
    from .pretraining.contrastive_trainer import ContrastiveTrainer
    from .pretraining.trainer import CondenserTrainer
    from .pretraining.warm_start import condenser_from_encoder, masked_lm_from_encoder
    from .publishing.export import export_encoder

AutoConfig.register("condenser", CondenserConfig)
AutoModel.register(CondenserConfig, CondenserModel)
AutoModelForMaskedLM.register(CondenserConfig, CondenserForMaskedLM)
AutoModelForPreTraining.register(CondenserConfig, CondenserForPreTraining)

_STAGES = {
    "CondenserDataCollator": ".pretraining.collator",
    "CondenserTrainer": ".pretraining.trainer",
    "CondenserTrainingArguments": ".pretraining.arguments",
    "ContrastiveTrainer": ".pretraining.contrastive_trainer",
    "ReadinessCallback": ".analysis.callback",
    "condenser_from_encoder": ".pretraining.warm_start",
    "masked_lm_from_encoder": ".pretraining.warm_start",
    "export_encoder": ".publishing.export",
}


def __getattr__(name: str) -> Any:
    if name not in _STAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_STAGES[name], __name__), name)


__all__ = [
    "CondenserConfig",
    "CondenserDataCollator",
    "CondenserForMaskedLM",
    "CondenserForPreTraining",
    "CondenserForPreTrainingOutput",
    "CondenserModel",
    "CondenserTrainer",
    "CondenserTrainingArguments",
    "ContrastiveTrainer",
    "ReadinessCallback",
    "condenser_from_encoder",
    "export_encoder",
    "masked_lm_from_encoder",
]
