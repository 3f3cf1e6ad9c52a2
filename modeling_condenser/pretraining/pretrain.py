"""The pre-training stage: a recipe in, a run folder with a checkpoint out."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    set_seed,
)

from modeling_condenser.hub.card import write_card
from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.hub.provenance import Stage, read_pretraining, write_provenance
from modeling_condenser.modeling_condenser import CondenserForPreTraining
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.reporting import check_trackers, show_loss_in_bar
from modeling_condenser.runs.run_folder import (
    LOG_FILE,
    MODEL_FOLDER,
    check_run_folder,
    claim_run_folder,
    record_run,
    whole_folder,
)
from modeling_condenser.runs.whole_files import write_json

from .arguments import CONTRASTIVE, WITH_HEAD, CondenserTrainingArguments, PretrainingRecipe
from .contrastive_trainer import ContrastiveTrainer
from .data import load_documents
from .trainer import CondenserTrainer
from .tsdae import remove_decoder
from .warm_start import change_config, condenser_from_encoder, masked_lm_from_encoder

logger = logging.getLogger(__name__)


def pretrain(
    settings: Mapping[str, Any],
    *,
    callbacks: Sequence[Callable[[CondenserTrainer], TrainerCallback]] = (),
) -> Path:
    """Run a pre-training recipe, from its start or from its last complete checkpoint.

    Settings and text are checked before anything is written. A finished run is not changed.

    Args:
        settings: fields of `PretrainingRecipe` and `CondenserTrainingArguments`.
        callbacks: functions of the trainer, each of which returns a callback to add.

    Returns:
        The folder of the trained model, within the run folder.

    Raises:
        ValueError: a setting does not fit.
        FileNotFoundError: a local file of the corpus does not exist.
    """
    if "output_dir" not in settings:
        raise ValueError("The recipe names no output_dir: add it, or pass --output_dir FOLDER.")
    recipe, arguments = fill(settings, PretrainingRecipe, CondenserTrainingArguments)
    if recipe.readiness is not None and not callbacks:
        raise ValueError(
            "pretrain() does not measure readiness: call analysis.callback.pretrain_and_measure "
            "with the same settings, or leave it out."
        )
    check_trackers(arguments)
    run_folder = Path(str(arguments.output_dir))
    model_folder = run_folder / MODEL_FOLDER
    set_seed(arguments.seed)
    tokenizer_name = resolve_encoder_name(recipe.tokenizer or recipe.encoder)
    tokenizer, model = AutoTokenizer.from_pretrained(tokenizer_name), open_model(recipe)
    check_run_folder(run_folder, settings)
    if model_folder.is_dir():
        logger.info("%s is finished.", run_folder)
        return model_folder

    with arguments.main_process_first(desc="reading the text"):
        documents = load_documents(recipe.corpus, streaming=arguments.streaming)
    make_trainer = ContrastiveTrainer if recipe.objective in CONTRASTIVE else CondenserTrainer
    trainer = make_trainer(model, arguments, train_dataset=documents, processing_class=tokenizer)
    with arguments.main_process_first(desc="claiming the run folder"):
        claim_run_folder(run_folder, settings)
    show_loss_in_bar(trainer)
    for make_callback in callbacks:
        trainer.add_callback(make_callback(trainer))
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    if trainer.is_world_process_zero():
        write_json(run_folder / LOG_FILE, trainer.state.log_history)
        seconds = round(time.perf_counter() - started, 1)
        record_run(run_folder, {**trainer.run_facts(), "session_seconds": seconds})
        model = trainer.accelerator.unwrap_model(trainer.model)
        if arguments.objective == "tsdae":
            remove_decoder(model)
        save_model(model, tokenizer, model_folder, stages=read_pretraining(run_folder))
    trainer.accelerator.wait_for_everyone()
    if arguments.push_to_hub:
        trainer.push_to_hub()
    return model_folder


def open_model(recipe: PretrainingRecipe) -> PreTrainedModel:
    """The model that a recipe trains: started from an encoder, or a checkpoint to continue."""
    changes = recipe.encoder_changes
    if recipe.objective not in WITH_HEAD:
        return masked_lm_from_encoder(recipe.encoder, config_changes=changes)
    names = ("n_head_layers", "skip_from", "late_mlm", "head_mlm_probability")
    stated = {n: value for n in names if (value := getattr(recipe, n)) is not None}
    folder = resolve_encoder_name(recipe.encoder)
    config: Any = AutoConfig.from_pretrained(folder)
    if config.model_type != "condenser" or recipe.new_head:
        return condenser_from_encoder(recipe.encoder, config_changes=changes, **stated)
    change_config(config.encoder_config, changes)
    model = CondenserForPreTraining.from_pretrained(folder, config=config)
    for name, value in stated.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"The recipe says {name}: {value}, but the checkpoint {recipe.encoder} has "
                f"{getattr(config, name)}. Leave it out, or set new_head: true to start a new head."
            )
    return model


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    stages: Sequence[Stage] = (),
) -> None:
    """Save model and tokenizer with provenance and card, atomically."""
    with whole_folder(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        write_provenance(partial, stages)
        write_card(partial)
