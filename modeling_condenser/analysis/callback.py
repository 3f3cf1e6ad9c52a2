"""Readiness while training: a Trainer callback, also of a pre-training recipe."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from transformers import Trainer, TrainerCallback

from modeling_condenser.files.settings import check_value, parse_settings
from modeling_condenser.pretraining.arguments import PretrainingRecipe
from modeling_condenser.pretraining.corpus import load_some
from modeling_condenser.pretraining.trainer import CondenserTrainer
from modeling_condenser.publishing.training_log import is_readiness

from .readiness import measure_checkpoint
from .recipe import Measuring
from .sample import Sample
from .titles import titled_measures

logger = logging.getLogger(__name__)


class ReadinessCallback(TrainerCallback):
    """Measures readiness at the start, every so many steps and at the end of a training.

    The measures are entries of the trainer's log, so they are reported, and saved with checkpoints
    and in the model's provenance. They change neither weights nor random states. In distributed
    training the first process measures and the others wait.

    Args:
        trainer: of a `CondenserForPreTraining` or `CondenserForMaskedLM`, with its tokenizer as
            `processing_class`. Add the callback to it.
        sample: what to measure on.
        every: steps between two measurements.
    """

    def __init__(self, trainer: Trainer, sample: Sample, *, every: int = 500):
        if trainer.processing_class is None:
            raise ValueError("The trainer has no tokenizer: pass it as processing_class.")
        if every < 1:
            raise ValueError(f"every is {every}, expected at least 1.")
        self.trainer, self.sample, self.every = trainer, sample, every

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self._measure(state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0 or state.global_step >= state.max_steps:
            self._measure(state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        # Training may end before max_steps, and in on_train_end trackers have closed their run.
        if "train_loss" in (logs or {}):  # the Trainer's last entry
            self._measure(state, control)

    def _measure(self, state: Any, control: Any) -> None:
        """Measure, unless this step was measured before."""
        trainer, started = self.trainer, time.perf_counter()
        steps = [entry.get("step") for entry in state.log_history if is_readiness(entry)]
        if trainer.is_world_process_zero() and state.global_step not in steps:
            model = trainer.accelerator.unwrap_model(trainer.model)
            entry = measure_checkpoint(model, trainer.processing_class, self.sample)
            should_log = control.should_log  # log() resets it, but the step's own entry follows
            trainer.log(entry)
            control.should_log = should_log
            titles = titled_measures([entry])
            shown = "; ".join(f"{title} {entry[name]:.3f}" for name, title in titles.items())
            logger.info("Readiness after %d steps: %s.", state.global_step, shown)
        trainer.accelerator.wait_for_everyone()
        if isinstance(trainer, CondenserTrainer):
            trainer.exclude_time(time.perf_counter() - started)


def readiness_callbacks(
    settings: Mapping[str, Any],
) -> list[Callable[[CondenserTrainer], ReadinessCallback]]:
    """The callbacks of `pretrain` for a recipe: one if it has the field `readiness`.

    The field is a mapping of the fields of `Measuring`, and of `every`, the steps between two
    measurements, 500 by default. The sample is taken from the recipe's corpus.
    """
    if settings.get("readiness") is None:
        return []
    names = settings.keys() & {"encoder", "encoder_config", "tokenizer", "corpus", "readiness"}
    (recipe,) = parse_settings({name: settings[name] for name in names}, PretrainingRecipe)
    fields = dict(recipe.readiness)
    every = check_value("every", fields.pop("every", 500), int)
    (measuring,) = parse_settings(fields, Measuring)
    sample = Sample.choose(measuring, load_some(recipe.corpus))

    def add_readiness(trainer: CondenserTrainer) -> ReadinessCallback:
        trainer.record["readiness"] = sample.facts()
        return ReadinessCallback(trainer, sample, every=every)

    return [add_readiness]
