"""Train in a run folder: check the settings, train, record and save."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import set_seed
from transformers.trainer_callback import ProgressCallback

from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import (
    LOG_FILE,
    MODEL_FOLDER,
    RunIdentity,
    check_run_folder,
    claim_run_folder,
    record_run,
)
from modeling_condenser.runs.whole_files import write_json

logger = logging.getLogger(__name__)


class LossBar(ProgressCallback):
    """The Trainer's bar, but it shows the loss instead of printing all log entries."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self.training_bar is not None and logs and "loss" in logs:
            self.training_bar.set_postfix_str(f"loss {float(logs['loss']):.3f}", refresh=False)


def run_training(
    settings: Mapping[str, Any],
    make_trainer: Callable[[Any, Any], Any],
    recipe_class: type,
    arguments_class: type,
    **defaults: Any,
) -> Path:
    """Train in the run folder of these settings, or resume; write record, log and model.

    Settings, model and data are checked before anything is written. A finished run is not changed.

    Args:
        settings: fields of both classes.
        make_trainer: makes a `ResumableTrainer` of recipe and arguments, after the seed is set.
        recipe_class: the recipe's dataclass.
        arguments_class: `TrainingArguments` or a subclass.
        **defaults: values of settings that are not given.

    Returns:
        The folder of the model, within the run folder.

    Raises:
        ValueError: a setting is wrong, or `output_dir` holds a run with other settings, another
            model or other data.
        FileNotFoundError: a file that a setting names does not exist.
    """
    if "output_dir" not in settings:
        raise ValueError("The recipe has no output_dir: add it, or pass --output_dir FOLDER.")
    recipe, arguments = fill({**defaults, **settings}, recipe_class, arguments_class)
    run_folder = Path(arguments.output_dir)
    model_folder = run_folder / MODEL_FOLDER
    if arguments.fp16 and arguments.device.type == "cpu":  # which the Trainer would ignore
        raise ValueError(
            "fp16 is set, but this training runs on a CPU, where it would be float32: set bf16 "
            "instead, or leave it out."
        )
    check_run_folder(run_folder, RunIdentity(settings))
    if is_finished := model_folder.is_dir():
        arguments.push_to_hub = False  # a trainer creates the repository; this one trains nothing
    set_seed(arguments.seed)
    trainer = make_trainer(recipe, arguments)
    trainer.settings = settings
    with arguments.main_process_first(desc="claiming the run folder"):
        claim_run_folder(run_folder, trainer.identity)
    if is_finished:
        logger.info("%s is finished.", run_folder)
        return model_folder
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(LossBar)
    trainer.train(arguments.resume_from_checkpoint)
    if trainer.is_world_process_zero():
        write_json(run_folder / LOG_FILE, trainer.state.log_history)
        record_run(run_folder, trainer.run_facts())
    if arguments.push_to_hub:
        trainer.push_to_hub()
    else:
        trainer.write_model()
    return model_folder
