"""Train in a run folder: check the settings, train, record and save."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, set_seed
from transformers.trainer_callback import ProgressCallback

from modeling_condenser.files.run_folder import (
    LOG_FILE,
    MODEL_FOLDER,
    check_run_folder,
    claim_run_folder,
    record_run,
    write_json,
)
from modeling_condenser.files.settings import parse_settings

logger = logging.getLogger(__name__)

_LOG_ENTRIES, _MINUTES = 20, 5  # of a run, and between two checkpoints, by default
_LOG_SECONDS = 30  # between two writings of the log
_BERT_BASE = 86e6  # parameters outside of the embeddings
_ASKED = 5  # steps of several processes between two looks at the clock
_NEVER = 10**9  # steps; the Trainer saves after the last step in any case


class LossBar(ProgressCallback):
    """The Trainer's bar, but it shows the loss instead of printing all log entries."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self.training_bar is not None and logs and "loss" in logs:
            self.training_bar.set_postfix_str(f"loss {float(logs['loss']):.3f}", refresh=False)


class WrittenLog(TrainerCallback):
    """Writes the log to a file while training, but not at each of many entries."""

    def __init__(self, file: Path):
        self.file, self._written = file, float("-inf")

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero and time.perf_counter() - self._written > _LOG_SECONDS:
            write_json(self.file, state.log_history)
            self._written = time.perf_counter()


class Pace(TrainerCallback):
    """Logs the intervals of logs and checkpoints; if timed, saves about every five minutes."""

    def __init__(self, *, is_timed: bool):
        self.is_timed = is_timed
        self._saved = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saved = time.monotonic()
        saving = f", a checkpoint every {_MINUTES} minutes and at the end" if self.is_timed else ""
        steps, every = state.max_steps, state.logging_steps
        logger.info("%d steps: a log entry every %d%s.", steps, every, saving)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Processes ask the first one for its clock, for which all must wait.
        if args.world_size > 1 and state.global_step % _ASKED:
            return
        is_due = time.monotonic() - self._saved >= 60 * _MINUTES
        if self.is_timed and broadcast_object_list([is_due])[0]:  # by the first process's clock
            self._saved, control.should_save = time.monotonic(), True


def scale_learning_rate(base: float, encoder: Any, *, power: float) -> float:
    """The learning rate of an encoder, from that of one of BERT base's size.

    It is base * (86 million / n) ** power for n parameters outside of the embeddings, rounded to
    two digits: the smaller the encoder, the higher.
    """
    n_parameters = encoder.num_parameters(exclude_embeddings=True)
    rate = float(f"{base * (_BERT_BASE / n_parameters) ** power:.2g}")
    logger.info(
        "Learning rate %g, scaled from %g for BERT base to %.1f million parameters in the layers.",
        *(rate, base, n_parameters / 1e6),
    )
    return rate


def run_training(
    settings: Mapping[str, Any],
    make_trainer: Callable[[Any, Any], Any],
    recipe_class: type,
    arguments_class: type,
    **defaults: Any,
) -> Path:
    """Train in the run folder of these settings, or resume; write record, log and model.

    Settings, model and data are checked before anything is written. A finished run is not changed.
    Where the settings do not say otherwise, there are about 20 log entries, and a checkpoint every
    five minutes and at the end, of which the last two are kept.

    Args:
        settings: fields of both classes.
        make_trainer: makes a `ResumableTrainer` of recipe and arguments, after the seed is set.
        recipe_class, arguments_class: the latter is `TrainingArguments` or a subclass.
        **defaults: values of settings that are not given.

    Returns:
        The folder of the model, within the run folder.

    Raises:
        ValueError: a setting is wrong, or `output_dir` holds results of a run with other settings,
            another model or other data.
        FileNotFoundError: a file that a setting names does not exist.
    """
    if "output_dir" not in settings:
        raise ValueError("The recipe has no output_dir: add it, or pass --output_dir FOLDER.")
    is_timed = not {"save_steps", "save_strategy"} & settings.keys()
    # Who trains with a ranking of dev queries by default saves for it, and by time.
    is_timed &= "load_best_model_at_end" in defaults or not settings.get("load_best_model_at_end")
    defaults = {"logging_steps": 1 / _LOG_ENTRIES, **defaults}
    if is_timed:
        defaults = {"save_steps": _NEVER, "save_total_limit": 2, **defaults}
    recipe, arguments = parse_settings({**defaults, **settings}, recipe_class, arguments_class)
    run_folder = Path(arguments.output_dir)
    model_folder = run_folder / MODEL_FOLDER
    check_run_folder(run_folder, settings)
    if is_finished := model_folder.is_dir():
        arguments.push_to_hub = False  # a trainer creates the repository; this one trains nothing
    set_seed(arguments.seed)
    trainer = make_trainer(recipe, arguments)
    trainer.settings = settings
    trainer.check_processes()
    with arguments.main_process_first(desc="claiming the run folder"):
        claim_run_folder(run_folder, settings, trainer.data_hash, batch=trainer.global_batch)
    if is_finished:
        logger.info("%s is finished. `condenser push` publishes it.", run_folder)
        return model_folder
    trainer.add_callback(Pace(is_timed=is_timed))
    trainer.add_callback(WrittenLog(run_folder / LOG_FILE))
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(LossBar)
    trainer.train(arguments.resume_from_checkpoint)
    if trainer.is_world_process_zero():
        write_json(run_folder / LOG_FILE, trainer.state.log_history)
        record_run(run_folder, trainer.run_record())
    if arguments.push_to_hub:
        trainer.push_to_hub()
    else:
        trainer.write_model()
    return model_folder
