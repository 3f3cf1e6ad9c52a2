"""Reads short runs, and interrupts them."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from modeling_condenser import CondenserTrainer
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.runs.run_folder import read_log


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
