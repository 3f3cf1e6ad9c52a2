"""Run a pre-training recipe; the result is a run folder with a checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, TrainerCallback

from modeling_condenser.files.models import CONFIG_FILE, fetch
from modeling_condenser.modeling_condenser import CondenserForPreTraining
from modeling_condenser.training.run import run_training, scale_learning_rate

from .arguments import (
    CONTRASTIVE,
    HEAD_SETTINGS,
    WITH_HEAD,
    CondenserTrainingArguments,
    PretrainingRecipe,
)
from .contrastive_trainer import ContrastiveTrainer
from .documents import load_documents
from .trainer import CondenserTrainer
from .warm_start import (
    change_config,
    condenser_from_encoder,
    find_start,
    masked_lm_from_encoder,
    open_config,
)

_POWER = 0.7  # of the size: 5e-5 for BERT base becomes 5e-4 for `starter`, the best that we tried


def pretrain(
    settings: Mapping[str, Any],
    *,
    callbacks: Sequence[Callable[[CondenserTrainer], TrainerCallback]] = (),
) -> Path:
    """Run a pre-training recipe, from its start or from its last complete checkpoint.

    For errors, and runs that are finished, see `run_training`.

    Args:
        settings: fields of `PretrainingRecipe` and `CondenserTrainingArguments`.
        callbacks: functions that each make a callback for the trainer that they are given.

    Returns:
        The folder of the trained model, within the run folder.
    """
    if settings.get("readiness") is not None and not callbacks:
        raise ValueError(
            "pretrain() measures readiness by callbacks: pass those that `readiness_callbacks` of "
            "modeling_condenser.analysis.callback makes, or leave readiness out."
        )

    if settings.get("eval_strategy", "no") != "no":
        raise ValueError(
            f"eval_strategy is {settings['eval_strategy']}, but pretrain has no texts to evaluate "
            "on: measure readiness (readiness) instead, or give CondenserTrainer an eval_dataset "
            "in Python."
        )

    def make_trainer(recipe: PretrainingRecipe, arguments: Any) -> CondenserTrainer:
        name = find_start(recipe.tokenizer or recipe.encoder)
        if not Path(name).is_dir():
            fetch(name, only=[CONFIG_FILE])  # says what is wrong with a name
        tokenizer = AutoTokenizer.from_pretrained(name)
        model: Any = open_model(recipe)
        if recipe.base_learning_rate is not None and "learning_rate" not in settings:
            arguments.learning_rate = choose_learning_rate(model, recipe.base_learning_rate)
        with arguments.main_process_first(desc="reading the text"):
            documents = load_documents(recipe.corpus)
        kind = ContrastiveTrainer if recipe.objective in CONTRASTIVE else CondenserTrainer
        trainer = kind(model, arguments, train_dataset=documents, processing_class=tokenizer)
        for make_callback in callbacks:
            trainer.add_callback(make_callback(trainer))
        return trainer

    return run_training(settings, make_trainer, PretrainingRecipe, CondenserTrainingArguments)


def choose_learning_rate(model: Any, base: float) -> float:
    """The rate of BERT base, scaled to the size of a raw encoder.

    A retriever (`CondenserConfig.encoding`) gets the rate of BERT base: a higher one would change
    more of what it has learned.
    """
    if model.config.encoding:
        return base
    return scale_learning_rate(base, model.condenser.encoder, power=_POWER)


def open_model(recipe: PretrainingRecipe) -> PreTrainedModel:
    """The model that a recipe trains: a new one from an encoder, or a checkpoint to continue."""
    changes = recipe.encoder_changes
    if recipe.objective not in WITH_HEAD:
        return masked_lm_from_encoder(
            recipe.encoder, pooling=recipe.pooling, config_changes=changes
        )
    names = (*HEAD_SETTINGS, "pooling")
    stated = {n: value for n in names if (value := getattr(recipe, n)) is not None}
    folder = find_start(recipe.encoder)
    config = open_config(folder)
    if config.model_type != "condenser" or recipe.new_head:
        return condenser_from_encoder(recipe.encoder, config_changes=changes, **stated)
    change_config(config.encoder_config, changes)
    model = CondenserForPreTraining.from_pretrained(folder, config=config, dtype=torch.float32)
    for name, value in stated.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"The recipe says {name}: {value}, but the checkpoint {recipe.encoder} has "
                f"{getattr(config, name)}. Leave it out, or set new_head: true to start a new head."
            )
    return model
