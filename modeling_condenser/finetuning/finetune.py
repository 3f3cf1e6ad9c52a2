"""Run a fine-tuning recipe: the output folder holds the retriever, its log and its record."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import set_seed

from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.reporting import check_trackers, show_loss_in_bar
from modeling_condenser.runs.run_folder import MODEL_FOLDER, claim_run_folder, whole_folder

from .encoder import open_encoder
from .objectives import matryoshka_dims
from .recipe import FinetuningRecipe
from .trainer import RetrieverTrainer
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
    check_trackers(arguments)
    output_folder = Path(str(arguments.output_dir))
    model_folder = output_folder / MODEL_FOLDER
    if model_folder.is_dir():
        claim_run_folder(output_folder, settings)
        logger.info("%s is finished.", output_folder)
        return model_folder
    set_seed(arguments.seed)
    encoder = open_encoder(recipe.encoder, recipe.contract_changes)
    matryoshka_dims(recipe, encoder.model)  # checks them
    data = load_training_data(recipe, encoder.contract, seed=arguments.seed)
    with arguments.main_process_first():
        claim_run_folder(output_folder, settings)
    trainer = RetrieverTrainer(recipe, encoder, data, arguments)
    show_loss_in_bar(trainer)
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    if trainer.is_world_process_zero():
        trainer.facts["session_seconds"] = round(time.perf_counter() - started, 1)
        with whole_folder(model_folder) as partial:
            trainer.write_repository(partial, None)
    trainer.accelerator.wait_for_everyone()
    if arguments.push_to_hub:
        trainer.push_to_hub()
    return model_folder
