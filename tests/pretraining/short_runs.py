"""Settings of short runs, interruptions, and the figures of their logs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from transformers.trainer_callback import CallbackHandler

from modeling_condenser import CondenserTrainingArguments
from tests.run_logs import read_log

SETTINGS: dict[str, Any] = {
    "max_length": 32,
    "per_device_train_batch_size": 8,
    "max_steps": 3,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "use_cpu": True,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def column(run: Path, *names: str) -> list[list[float]]:
    """Some figures of each log entry of a run."""
    return [[entry[name] for name in names] for entry in read_log(run)]


@contextmanager
def interrupted_at(step: int) -> Iterator[None]:
    """Interrupt the training in this block, of any trainer, before the batch behind a step."""
    begin = CallbackHandler.on_step_begin

    def stop(self: CallbackHandler, args: Any, state: Any, control: Any) -> Any:
        if state.global_step == step:
            raise KeyboardInterrupt
        return begin(self, args, state, control)

    with patch.object(CallbackHandler, "on_step_begin", stop), pytest.raises(KeyboardInterrupt):
        yield


def arguments(folder: Path, **changes: Any) -> CondenserTrainingArguments:
    return CondenserTrainingArguments(str(folder), **{**SETTINGS, **changes})


def steps_of(trainer) -> list[dict[str, float]]:
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def losses_of(trainer) -> list[float]:
    return [entry["loss"] for entry in steps_of(trainer)]
