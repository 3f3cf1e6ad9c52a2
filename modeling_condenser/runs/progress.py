"""Progress of trainings in a terminal: one bar, with the latest loss beside it."""

from typing import Any

from transformers import Trainer
from transformers.trainer_callback import ProgressCallback


class LossBar(ProgressCallback):
    """The Trainer's bar; it shows the loss, where the Trainer's own prints all log entries."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self.training_bar is not None and logs and "loss" in logs:
            self.training_bar.set_postfix_str(f"loss {float(logs['loss']):.3f}", refresh=False)


def show_loss_in_bar(trainer: Trainer) -> None:
    """Replace the Trainer's own bar, if it has one."""
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(LossBar)
