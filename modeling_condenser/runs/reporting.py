"""What a training reports: the latest loss beside its bar, and its log to experiment trackers."""

from typing import Any

from transformers import Trainer, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks
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


def check_trackers(arguments: TrainingArguments) -> None:
    """Raise a ValueError if a tracker that `report_to` names is unknown or not installed.

    The Trainer finds this out, too, but after the run folder was made, and with other errors.
    """
    for tracker in arguments.report_to or []:
        for make_callback in get_reporting_integration_callbacks(tracker):
            try:
                make_callback()
            except (RuntimeError, ImportError) as error:
                raise ValueError(
                    f"report_to names {tracker}, which cannot be used: {error} Install it, or "
                    "leave report_to out."
                ) from error
