"""A run that is killed goes on as if nothing had happened; nothing is half-written."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from modeling_condenser.biencoder.finetune import finetune
from modeling_condenser.biencoder.trainer import RetrieverTrainer
from modeling_condenser.runs.checkpoints import MANIFEST

KILLED_RUN = """
import json, os, signal, sys
from modeling_condenser.biencoder.finetune import finetune
from modeling_condenser.biencoder.trainer import RetrieverTrainer
settings, kill_at = json.loads(sys.argv[1]), int(sys.argv[2])
step = RetrieverTrainer.training_step
def killed_step(self, *args, **kwargs):
    if self.state.global_step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *args, **kwargs)
RetrieverTrainer.training_step = killed_step
finetune(settings)
"""


class Interruption(Exception):
    pass


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    original = RetrieverTrainer.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == step:
            raise Interruption
        return original(self, *args, **kwargs)

    monkeypatch.setattr(RetrieverTrainer, "training_step", training_step)


@pytest.fixture
def settings(bert_folder: Path, tmp_path: Path, texts: list[str]) -> dict[str, Any]:
    """Contrast with negatives that are drawn anew each epoch, with dropout: 3 epochs of 4 steps."""
    rows = [
        {"query": texts[i][:40], "positive": texts[i], "negatives": texts[i + 60 : i + 70]}
        for i in range(16)
    ]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "encoder": str(bert_folder),
        "pooling": "mean",
        "data": str(file),
        "format": "negatives",
        "n_negatives": 2,
        "query_max_length": 8,
        "passage_max_length": 16,
        "per_device_train_batch_size": 4,
        "num_train_epochs": 3,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_steps": 3,
        "disable_tqdm": True,
        "use_cpu": True,
        "output_dir": str(tmp_path / "whole"),
    }


def losses(folder: Path) -> list[tuple[float, ...]]:
    entries = [e for e in json.loads((folder / "log.json").read_text()) if "loss" in e]
    return [(entry["step"], entry["loss"], entry["grad_norm"]) for entry in entries]


def assert_same_run(a: Path, b: Path) -> None:
    assert losses(a) == losses(b)
    first, second = (load_file(folder / "model" / "model.safetensors") for folder in (a, b))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)


@pytest.mark.slow
def test_a_run_killed_and_restarted_by_the_same_command_ends_bit_equal(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    finetune(settings)
    assert len(losses(tmp_path / "whole")) == 12
    killed = {**settings, "output_dir": str(tmp_path / "killed")}
    command = [sys.executable, "-c", KILLED_RUN, json.dumps(killed), "11"]
    process = subprocess.run(
        command, capture_output=True, text=True, env=os.environ, cwd=Path.cwd()
    )
    assert process.returncode == -signal.SIGKILL, process.stderr[-3000:]
    assert not (tmp_path / "killed" / "model").exists()
    assert (tmp_path / "killed" / "checkpoint-9" / MANIFEST).is_file()
    finetune(killed)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"dataloader_num_workers": 2}, marks=pytest.mark.slow),
        pytest.param({"mini_batch_size": 3}, marks=pytest.mark.slow),
        {"objective": "triplet", "n_negatives": 1},
    ],
)
def test_every_way_of_training_resumes_bit_equal(
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    settings = {**settings, **changes}
    finetune(settings)
    stopped = {**settings, "output_dir": str(tmp_path / "stopped"), "save_total_limit": 1}
    with monkeypatch.context() as patch:
        interrupt_at(patch, 7)
        with pytest.raises(Interruption):
            finetune(stopped)
    assert [f.name for f in (tmp_path / "stopped").glob("checkpoint-*")] == ["checkpoint-6"]
    finetune(stopped)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_a_failure_while_the_model_is_written_leaves_none_and_the_next_run_writes_it(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modeling_condenser.publishing import export

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    short = {**settings, "max_steps": 3}
    with monkeypatch.context() as patch:
        patch.setattr(export, "write_card", full)
        with pytest.raises(OSError, match="No space left"):
            finetune(short)
    assert not (tmp_path / "whole" / "model").exists()
    model = finetune(short)
    assert (model / "README.md").is_file()
    assert len(losses(tmp_path / "whole")) == 3  # and not one more
