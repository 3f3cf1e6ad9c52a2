"""The fine-tuning stage: a recipe in, a run folder with a retriever out."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import set_seed

from modeling_condenser.publishing.export import write_repository
from modeling_condenser.repository.provenance import read_provenance, read_stage
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    LOG_FILE,
    MODEL_FOLDER,
    claim_run_folder,
    record_run,
    whole_folder,
)
from modeling_condenser.runs.whole_files import write_json

from .batches import choose_batch_sampler
from .encoder import OpenedEncoder, open_encoder
from .lengths import LengthCollator
from .objectives import make_loss
from .recipe import FinetuningRecipe
from .trainer import RetrieverTrainer
from .training_data import load_training_data

logger = logging.getLogger(__name__)


def finetune(settings: Mapping[str, Any]) -> Path:
    """Run a fine-tuning recipe, from its start or from its last whole checkpoint.

    Everything is opened and checked before the run folder is touched. A finished run is left as
    it is.

    Args:
        settings: fields of `FinetuningRecipe` and of `SentenceTransformerTrainingArguments`.

    Returns:
        The folder of the retriever, within the run folder.

    Raises:
        ValueError: a setting or the data does not fit; the message says which and what to do.
        FileNotFoundError: the encoder, the collection or a file does not exist.
    """
    recipe, arguments = _read(settings)
    run_folder = Path(str(arguments.output_dir))
    model_folder = run_folder / MODEL_FOLDER
    if model_folder.is_dir():
        claim_run_folder(run_folder, settings)
        logger.info("%s is finished.", run_folder)
        return model_folder

    set_seed(arguments.seed)
    encoder = open_encoder(recipe.encoder, recipe.contract_changes)
    data = load_training_data(recipe, encoder.contract, seed=arguments.seed)
    with arguments.main_process_first():
        claim_run_folder(run_folder, settings)
    trainer = RetrieverTrainer(
        model=encoder.model,
        args=arguments,
        train_dataset=data.examples,
        loss=make_loss(recipe, encoder.model),
        data_collator=LengthCollator(encoder.model.tokenizer, encoder.contract),
        drawn=data.drawn,
    )
    started = time.perf_counter()
    trainer.train()
    log = trainer.state.log_history
    if trainer.is_world_process_zero():
        write_json(run_folder / LOG_FILE, log)
        facts = {
            "objective": recipe.objective,
            "seed": arguments.seed,
            **data.facts,
            "steps": trainer.state.global_step,
            "mean_loss": _mean_loss(log),
            "session_seconds": round(time.perf_counter() - started, 1),
        }
        record_run(run_folder, facts)
        _write_model(encoder, run_folder, model_folder)
    trainer.accelerator.wait_for_everyone()
    return model_folder


def _read(
    settings: Mapping[str, Any],
) -> tuple[FinetuningRecipe, SentenceTransformerTrainingArguments]:
    if "output_dir" not in settings:
        raise ValueError("The recipe names no output_dir: add it, or pass --output_dir FOLDER.")
    defaults = {
        "dataloader_pin_memory": torch.cuda.is_available(),
        "report_to": "none",
        # A recipe that says how often to save wants checkpoints.
        "save_strategy": "steps" if "save_steps" in settings else "no",
    }
    recipe, arguments = fill(
        {**defaults, **settings}, FinetuningRecipe, SentenceTransformerTrainingArguments
    )
    asked = arguments.batch_sampler if "batch_sampler" in settings else None
    arguments.batch_sampler = choose_batch_sampler(
        recipe, asked, seed=arguments.seed, n_devices=arguments.world_size
    )
    return recipe, arguments


def _mean_loss(log: list[dict[str, float]]) -> float | None:
    """Over all sessions of a run; the trainer's own mean is that of the last."""
    losses = [entry["loss"] for entry in log if "loss" in entry]
    losses = losses or [entry["train_loss"] for entry in log if "train_loss" in entry]
    return round(sum(losses) / len(losses), 4) if losses else None


def _write_model(encoder: OpenedEncoder, run_folder: Path, model_folder: Path) -> None:
    """Write the trained encoder's repository, whole or not at all."""
    transformer: Any = encoder.model[0]
    stage = read_stage(run_folder, "Fine-tuning")
    stages = [*read_provenance(encoder.folder), *([stage] if stage else [])]
    with whole_folder(model_folder) as partial:
        write_repository(
            partial, transformer.model, encoder.model.tokenizer, encoder.contract, stages
        )
