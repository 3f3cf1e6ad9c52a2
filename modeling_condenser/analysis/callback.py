"""Readiness seen while training: a Trainer callback that measures and logs, and changes nothing."""

import logging
import time
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.fsdp import is_fsdp_enabled

from modeling_condenser.pretraining.trainer import CondenserTrainer
from modeling_condenser.repository.readiness import SAMPLE, is_readiness

from .readiness import Instruments, measure_readiness
from .subject import Subject

logger = logging.getLogger(__name__)


class ReadinessCallback(TrainerCallback):
    """Measures the model at the start, every so many steps, and at the end.

    The figures are entries of their own in the trainer's log (`repository/readiness.py`): they
    are reported like losses, saved with checkpoints, and the run's record and card are made from
    them. Weights, gradients, random states, modes and attention back-end are as if nothing had
    been measured. Only the first process measures; the others wait for it. The time that it takes
    is no part of a `CondenserTrainer`'s own `seconds`.

    Args:
        trainer: that it is added to, of a `CondenserForPreTraining` or `CondenserForMaskedLM`, with
            its tokenizer as `processing_class`.
        instruments: what to measure with.
        every: steps between two measurements.

    Raises:
        ValueError: the trainer has no tokenizer, its processes hold parts of the weights only, or
            `every` is below 1.
    """

    def __init__(self, trainer: Trainer, instruments: Instruments, *, every: int = 500):
        if every < 1:
            raise ValueError(f"every is {every}, expected at least 1 step.")
        if trainer.processing_class is None:
            raise ValueError("The trainer has no tokenizer: pass it as processing_class.")
        if trainer.args.deepspeed or trainer.args.fsdp or is_fsdp_enabled():
            raise ValueError(
                "Readiness while training needs the whole model in the first process, but FSDP and "
                "DeepSpeed keep a part in each: leave readiness out, and measure the checkpoints "
                "with `condenser analyze RUN OUT`."
            )
        self.trainer, self.instruments, self.every = trainer, instruments, every

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._refuse_other_sample(state)
        if state.global_step == 0:
            self._measure(state, control)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step % self.every == 0 or state.global_step >= state.max_steps:
            self._measure(state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure a training that ended early."""
        self._measure(state, control)

    def _measure(self, state: TrainerState, control: TrainerControl) -> None:
        """Measure, unless this step has been."""
        trainer, started = self.trainer, time.perf_counter()
        if trainer.is_world_process_zero() and not _is_measured(state):
            model = trainer.accelerator.unwrap_model(trainer.model)
            tokenizer: Any = trainer.processing_class
            longest = self.instruments.measuring.max_length
            subject = Subject.of_model(model, tokenizer, max_length=longest)
            readiness = measure_readiness(subject, self.instruments)
            # Logging ends with this switched off, and the step may have an entry of its own to log.
            should_log = control.should_log
            trainer.log(self.instruments.logs(readiness))
            control.should_log = should_log
        trainer.accelerator.wait_for_everyone()
        if isinstance(trainer, CondenserTrainer):
            trainer.leave_out(time.perf_counter() - started)

    def _refuse_other_sample(self, state: TrainerState) -> None:
        """Refuse to go on with a log whose figures could not be compared with the new ones."""
        before = [entry[SAMPLE] for entry in state.log_history if SAMPLE in entry]
        if before and before[-1] != self.instruments.number:
            raise ValueError(
                "Readiness was measured on another sample, or with other settings, in an earlier "
                "session of this run, so its figures could not be compared: repeat the settings "
                "that the run's recipe.yaml has under readiness, or leave readiness out."
            )


def _is_measured(state: TrainerState) -> bool:
    return any(
        is_readiness(entry) and entry.get("step") == state.global_step
        for entry in state.log_history
    )
