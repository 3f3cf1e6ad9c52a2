"""Settings of short runs; interrupts such runs, and reads them."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from modeling_condenser import CondenserTrainer
from modeling_condenser.pretraining.pretrain import pretrain
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


class Interruption(Exception):
    pass


def interrupt(settings: dict[str, Any], *, step: int) -> None:
    """Train until a step, in which the process dies."""
    original = CondenserTrainer.training_step

    def training_step(self: CondenserTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == step:
            raise Interruption
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CondenserTrainer, "training_step", training_step)
        with pytest.raises(Interruption):
            pretrain(settings)


def column(run: Path, *names: str) -> list[list[float]]:
    """Some figures of each log entry of a run."""
    return [[entry[name] for name in names] for entry in read_log(run)]


def assert_same_weights(a: Path, b: Path) -> None:
    first, second = (load_file(run / "model" / "model.safetensors") for run in (a, b))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
