"""A pre-training repository: a checkpoint's model, and how it was made."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import Trainer

from modeling_condenser.repository.card import write_card
from modeling_condenser.repository.provenance import (
    PRETRAINING,
    Stage,
    publishable,
    read_pretraining,
    write_provenance,
)
from modeling_condenser.repository.readiness import readiness_entries
from modeling_condenser.repository.training_log import thin_log
from modeling_condenser.runs.checkpoints import model_files
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.runs.whole_files import link_or_copy


def complete_repository(folder: Path, stages: Sequence[Stage], *, name: str | None = None) -> None:
    """Add provenance and card to a folder with a model and its tokenizer.

    Args:
        folder: of the model.
        stages: that made it.
        name: `owner/name` that it will have, where that is known.
    """
    write_provenance(folder, stages)
    write_card(folder, name=name)


def link_model(checkpoint: Path, folder: Path) -> None:
    """Give a checkpoint's model files a second place, without its training state."""
    for file in model_files(checkpoint):
        target = folder / file.relative_to(checkpoint)
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(file, target)


def describe_training(trainer: Trainer, facts: Mapping[str, Any]) -> list[Stage]:
    """The stages that made a model so far, the running one as far as it has come.

    Args:
        trainer: that is running, or has run.
        facts: about data and model, for the record.
    """
    run_folder = Path(str(trainer.args.output_dir))
    stages = read_pretraining(run_folder) or [_stage_without_recipe(trainer)]
    state, model = trainer.state, trainer.accelerator.unwrap_model(trainer.model)
    run = {
        **describe_machine(),
        **facts,
        "seed": trainer.args.seed,
        "steps": state.global_step,
        "tokens_seen": int(state.num_input_tokens_seen),
        "train_seconds": round(train_seconds(state.log_history), 1),
        "n_parameters": sum(p.numel() for p in model.parameters()),
    }
    log = state.log_history
    running = dataclasses.replace(
        stages[-1], run=run, log=thin_log(log), readiness=readiness_entries(log)
    )
    return [*stages[:-1], running]


def _stage_without_recipe(trainer: Trainer) -> Stage:
    """A run that a script started: its arguments, as far as they are not the library's defaults."""
    settings = trainer.args.to_dict()
    usual = type(trainer.args)(output_dir="unused").to_dict()
    changed = {name: value for name, value in settings.items() if value != usual.get(name)}
    config: Any = trainer.accelerator.unwrap_model(trainer.model).config
    start = str(getattr(config, "encoder_config", config).name_or_path)
    recipe = publishable({"encoder": start, **changed} if start else changed)
    return Stage(PRETRAINING, recipe, {})


def train_seconds(log: Sequence[Mapping[str, Any]]) -> float:
    """Time between the entries of a log, over all sessions of a run."""
    return sum(float(entry.get("seconds", 0.0)) for entry in log if "loss" in entry)
