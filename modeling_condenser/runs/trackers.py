"""Experiment trackers, such as Trackio or TensorBoard, that a recipe's `report_to` names."""

from transformers import TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks


def check_trackers(arguments: TrainingArguments) -> None:
    """Raise a ValueError if a tracker is unknown or not installed.

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
