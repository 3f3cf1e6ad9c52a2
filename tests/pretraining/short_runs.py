"""Settings of short runs, and the figures of their logs."""

from pathlib import Path
from typing import Any

from modeling_condenser.runs.run_folder import read_log

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
