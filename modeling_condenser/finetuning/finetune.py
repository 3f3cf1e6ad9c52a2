"""Run a fine-tuning recipe: the output folder holds the retriever, its log and its record."""

import copy
import dataclasses
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import TrainerState, set_seed

from modeling_condenser.hub.export import write_repository
from modeling_condenser.hub.provenance import FINETUNING, read_provenance, read_stage
from modeling_condenser.hub.training_log import thin_log
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    LOG_FILE,
    MODEL_FOLDER,
    claim_run_folder,
    describe_machine,
    record_run,
    whole_folder,
)
from modeling_condenser.runs.whole_files import write_json

from .encoder import open_encoder
from .objectives import make_loss
from .recipe import FinetuningRecipe
from .trainer import LengthCollator, RetrieverTrainer, choose_batch_sampler
from .training_data import load_training_data

logger = logging.getLogger(__name__)


def finetune(settings: Mapping[str, Any]) -> Path:
    """Run a fine-tuning recipe, or resume it from its last complete checkpoint.

    Encoder and data are opened and checked before the output folder is created. A finished folder
    is left unchanged.

    Args:
        settings: fields of `FinetuningRecipe` and of `SentenceTransformerTrainingArguments`.

    Returns:
        The folder of the retriever, within the output folder.

    Raises:
        ValueError: a setting or the data does not fit.
        FileNotFoundError: the encoder, the collection or a file does not exist.
    """
    recipe, arguments = _read(settings)
    output_folder = Path(str(arguments.output_dir))
    model_folder = output_folder / MODEL_FOLDER
    if model_folder.is_dir():
        claim_run_folder(output_folder, settings)
        logger.info("%s is finished.", output_folder)
        return model_folder

    set_seed(arguments.seed)
    encoder = open_encoder(recipe.encoder, recipe.contract_changes)
    data = load_training_data(recipe, encoder.contract, seed=arguments.seed)
    with arguments.main_process_first():
        claim_run_folder(output_folder, settings)
    facts = {"objective": recipe.objective, "seed": arguments.seed, **data.facts}

    def write_current(folder: Path, state: TrainerState, name: str | None = None) -> None:
        """Write the repository of the encoder in its present state."""
        stages = read_provenance(encoder.folder)
        stage = read_stage(output_folder, FINETUNING)
        if stage is not None:
            run = {**describe_machine(), **facts, "steps": state.global_step}
            stages.append(dataclasses.replace(stage, run=run, log=thin_log(state.log_history)))
        transformer: Any = encoder.model[0]
        # A copy, because write_repository changes the tokenizer, and training may continue.
        tokenizer = copy.deepcopy(encoder.model.tokenizer)
        write_repository(folder, transformer.model, tokenizer, encoder.contract, stages, name=name)

    trainer = RetrieverTrainer(
        repository=write_current,
        model=encoder.model,
        args=arguments,
        train_dataset=data.examples,
        loss=make_loss(recipe, encoder.model),
        data_collator=LengthCollator(encoder.model.tokenizer, encoder.contract),
        callbacks=data.callbacks,
    )
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    if trainer.is_world_process_zero():
        write_json(output_folder / LOG_FILE, trainer.state.log_history)
        facts["session_seconds"] = round(time.perf_counter() - started, 1)
        record_run(output_folder, {**facts, "steps": trainer.state.global_step})
        with whole_folder(model_folder) as partial:
            write_current(partial, trainer.state)
    trainer.accelerator.wait_for_everyone()
    if arguments.push_to_hub:
        trainer.push_to_hub()
    return model_folder


def _read(
    settings: Mapping[str, Any],
) -> tuple[FinetuningRecipe, SentenceTransformerTrainingArguments]:
    if "output_dir" not in settings:
        raise ValueError("The recipe has no output_dir: add it, or pass --output_dir FOLDER.")
    defaults = {
        "dataloader_pin_memory": torch.cuda.is_available(),
        "report_to": "none",
        # A recipe that sets save_steps wants checkpoints.
        "save_strategy": "steps" if "save_steps" in settings else "no",
    }
    recipe, arguments = fill(
        {**defaults, **settings}, FinetuningRecipe, SentenceTransformerTrainingArguments
    )
    arguments.batch_sampler = choose_batch_sampler(recipe, arguments.seed)
    return recipe, arguments
