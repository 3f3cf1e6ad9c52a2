"""The pre-training stage: a recipe in, a run folder with a checkpoint out."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.repository.provenance import Stage, read_pretraining
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    LOG_FILE,
    MODEL_FOLDER,
    claim_run_folder,
    record_run,
    whole_folder,
)
from modeling_condenser.runs.whole_files import write_json

from .arguments import CONTRASTIVE
from .checks import check_fit
from .corpus import load_documents
from .examples import Examples, packs
from .objectives import make_trainer, open_model
from .recipe import PretrainingRecipe
from .repository import complete_repository, train_seconds
from .trainer import CondenserTrainer
from .tsdae import remove_decoder

__all__ = [
    "CondenserTrainer",
    "PretrainingRecipe",
    "check_fit",
    "open_model",
    "open_tokenizer",
    "pretrain",
    "save_model",
]

logger = logging.getLogger(__name__)

READINESS = "readiness"  # the field of a recipe that `analysis/callback.py` reads
MakeCallback = Callable[[CondenserTrainer], TrainerCallback]


def pretrain(
    settings: Mapping[str, Any],
    *,
    callbacks: Sequence[MakeCallback] = (),
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Run a pre-training recipe, from its start or from its last whole checkpoint.

    Everything is opened and checked before the run folder is touched. A finished run is left as
    it is.

    Args:
        settings: fields of `PretrainingRecipe` and of `transformers.TrainingArguments`; with
            callbacks also `readiness`, which is theirs to read.
        callbacks: each is called with the trainer, and what it returns joins the trainer's own.
        facts: further ones, for the run's record.

    Returns:
        The folder of the trained model, within the run folder.

    Raises:
        ValueError: a setting does not fit; the message says which and what to do.
        FileNotFoundError: a local file of the corpus does not exist.
    """
    recipe, arguments = _read(settings, is_measured=bool(callbacks))
    run_folder = Path(str(arguments.output_dir))
    model_folder = run_folder / MODEL_FOLDER

    set_seed(arguments.seed)
    tokenizer = open_tokenizer(recipe)
    model = open_model(recipe)
    if recipe.attn_implementation is not None:
        model.set_attn_implementation(recipe.attn_implementation)
    check_fit(tokenizer, model, recipe.max_length)
    examples = Examples.of(
        recipe,
        arguments,
        tokenizer,
        packed=packs(recipe, model),
        head_mlm_probability=model.config.head_mlm_probability,
    )
    # Of several processes the first makes what the others then find.
    with arguments.main_process_first(desc="preparing the text"):
        documents = load_documents(recipe.sources, streaming=recipe.streaming)
        claim_run_folder(run_folder, settings)
        if model_folder.is_dir():
            logger.info("%s is finished.", run_folder)
            return model_folder
        dataset, data_facts = examples.build(documents)
    facts = {
        "seed": arguments.seed,
        "objective": recipe.objective,
        **data_facts,
        **(facts or {}),
    }
    trainer = make_trainer(
        recipe,
        model=model,
        args=arguments,
        train_dataset=dataset,
        data_collator=examples.collator,
        processing_class=tokenizer,
        facts=facts,
    )
    for make_callback in callbacks:
        trainer.add_callback(make_callback(trainer))
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    facts |= {
        "session_seconds": round(time.perf_counter() - started, 1),
        "train_seconds": round(train_seconds(trainer.state.log_history), 1),
        "steps": trainer.state.global_step,
        "tokens_seen": int(trainer.state.num_input_tokens_seen),
        "n_parameters": sum(p.numel() for p in model.parameters()),
    }
    if trainer.is_world_process_zero():
        write_json(run_folder / LOG_FILE, trainer.state.log_history)
        record_run(run_folder, facts)
        model = trainer.accelerator.unwrap_model(trainer.model)
        if recipe.objective == "tsdae":
            remove_decoder(model)
        save_model(model, tokenizer, model_folder, stages=read_pretraining(run_folder))
    trainer.accelerator.wait_for_everyone()
    if arguments.push_to_hub:
        trainer.push_to_hub()
    return model_folder


def open_tokenizer(recipe: PretrainingRecipe) -> PreTrainedTokenizerBase:
    """The tokenizer that a recipe names, or else its encoder's."""
    name = resolve_encoder_name(recipe.tokenizer or recipe.encoder)
    return AutoTokenizer.from_pretrained(name)


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    stages: Sequence[Stage] = (),
) -> None:
    """Save model and tokenizer with provenance and card, whole or not at all."""
    with whole_folder(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        complete_repository(partial, stages)


def _read(
    settings: Mapping[str, Any], *, is_measured: bool
) -> tuple[PretrainingRecipe, TrainingArguments]:
    if settings.get(READINESS) is not None and not is_measured:
        raise ValueError(
            f"The recipe asks for {READINESS}, which pretrain() alone does not measure: call "
            "modeling_condenser.analysis.callback.pretrain_and_measure with the same "
            "settings, as `condenser pretrain` does, or leave it out."
        )
    settings = {name: value for name, value in settings.items() if name != READINESS}
    if "output_dir" not in settings:
        raise ValueError("The recipe names no output_dir: add it, or pass --output_dir FOLDER.")
    defaults = {
        "dataloader_pin_memory": torch.cuda.is_available(),
        "include_num_input_tokens_seen": "non_padding",
        "remove_unused_columns": False,
        "report_to": "none",
    }
    if settings.get("objective") in CONTRASTIVE:
        defaults["dataloader_drop_last"] = True  # a smaller batch is another loss
    recipe, arguments = fill({**defaults, **settings}, PretrainingRecipe, TrainingArguments)
    if recipe.streaming and arguments.max_steps < 1:
        raise ValueError(
            "A streamed corpus has no known length: set max_steps, the number of optimiser steps."
        )
    return recipe, arguments
