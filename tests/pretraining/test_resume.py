"""A run that is killed, torn or starved of disk goes on as if nothing had happened."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from modeling_condenser.hub import trainer as sealing
from modeling_condenser.pretraining import pretrain as stage
from modeling_condenser.pretraining import trainer as trainer_module
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.runs.checkpoints import MANIFEST, last_whole_checkpoint

KILLED_RUN = """
import json, os, signal, sys
from modeling_condenser.pretraining.pretrain import CondenserTrainer, pretrain
settings, kill_at = json.loads(sys.argv[1]), int(sys.argv[2])
step = CondenserTrainer.training_step
def killed_step(self, *args, **kwargs):
    if self.state.global_step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *args, **kwargs)
CondenserTrainer.training_step = killed_step
pretrain(settings)
"""


def settings_for(folder: Path, bert_folder, corpus_file, **changes) -> dict:
    return {
        "encoder": str(bert_folder),
        "corpus": str(corpus_file),
        "output_dir": str(folder),
        "max_length": 32,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 20,
        "save_steps": 5,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "disable_tqdm": True,
        "use_cpu": True,
        **changes,
    }


def run(settings: dict, *, kill_at: int = -1) -> int:
    command = [sys.executable, "-c", KILLED_RUN, json.dumps(settings), str(kill_at)]
    process = subprocess.run(
        command, capture_output=True, text=True, env=os.environ, cwd=Path.cwd()
    )
    assert process.returncode in (0, -signal.SIGKILL), process.stderr[-3000:]
    return process.returncode


def losses(folder: Path) -> list[tuple[float, ...]]:
    entries = [e for e in json.loads((folder / "log.json").read_text()) if "loss" in e]
    return [(e["step"], e["loss"], e["head_loss"], e["late_loss"], e["grad_norm"]) for e in entries]


def assert_same_weights(a: Path, b: Path) -> None:
    first, second = (load_file(folder / "model" / "model.safetensors") for folder in (a, b))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_run_killed_and_restarted_by_the_same_command_ends_bit_equal(
    tmp_path, bert_folder, corpus_file, streaming
):
    changes = {"streaming": streaming, "dataloader_num_workers": 2}
    whole = settings_for(tmp_path / "whole", bert_folder, corpus_file, **changes)
    killed = settings_for(tmp_path / "killed", bert_folder, corpus_file, **changes)
    assert run(whole) == 0
    assert run(killed, kill_at=12) == -signal.SIGKILL
    assert not (tmp_path / "killed" / "model").exists()
    assert run(killed) == 0

    assert [entry[0] for entry in losses(tmp_path / "whole")] == list(range(1, 21))
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


class Interruption(Exception):
    pass


def interrupt_at(monkeypatch, step: int) -> None:
    original = trainer_module.CondenserTrainer.training_step

    def training_step(self, *args, **kwargs):
        if self.state.global_step == step:
            raise Interruption
        return original(self, *args, **kwargs)

    monkeypatch.setattr(trainer_module.CondenserTrainer, "training_step", training_step)


def test_a_torn_or_damaged_checkpoint_is_passed_over(
    tmp_path, bert_folder, corpus_file, monkeypatch, caplog
):
    settings = settings_for(tmp_path / "run", bert_folder, corpus_file)
    pretrain(settings_for(tmp_path / "whole", bert_folder, corpus_file))
    with monkeypatch.context() as patch:
        interrupt_at(patch, 17)
        with pytest.raises(Interruption):
            pretrain(settings)
    (tmp_path / "run" / "checkpoint-15" / MANIFEST).unlink()  # killed while it was written
    weights = tmp_path / "run" / "checkpoint-10" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    pretrain(settings)
    assert "checkpoint-15 is incomplete" in caplog.text
    assert "checkpoint-10 is damaged (model.safetensors has" in caplog.text
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_a_run_whose_checkpoints_are_all_damaged_says_so_and_touches_nothing(
    tmp_path, bert_folder, corpus_file, monkeypatch
):
    settings = settings_for(tmp_path / "run", bert_folder, corpus_file, max_steps=8)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6)
        with pytest.raises(Interruption):
            pretrain(settings)
    (tmp_path / "run" / "checkpoint-5" / "optimizer.pt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"checkpoint-5: optimizer.pt has 0 bytes"):
        pretrain(settings)
    assert (tmp_path / "run" / "checkpoint-5" / "model.safetensors").is_file()


def test_a_full_disk_at_save_leaves_the_previous_checkpoint_whole(
    tmp_path, bert_folder, corpus_file, monkeypatch
):
    settings = settings_for(
        tmp_path / "run", bert_folder, corpus_file, max_steps=10, save_total_limit=1
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    seal = sealing.seal_checkpoint

    def seal_and_fill_the_disk(folder):
        seal(folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))

    with monkeypatch.context() as patch:
        patch.setattr(sealing, "seal_checkpoint", seal_and_fill_the_disk)
        try:
            with pytest.raises(OSError, match="File too large"):
                pretrain(settings)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert last_whole_checkpoint(tmp_path / "run") == tmp_path / "run" / "checkpoint-5"
    pretrain(settings)  # with room again, the same command finishes
    pretrain(settings_for(tmp_path / "whole", bert_folder, corpus_file, max_steps=10))
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_a_finished_run_is_left_as_it_is(tmp_path, bert_folder, corpus_file, monkeypatch):
    settings = settings_for(tmp_path / "run", bert_folder, corpus_file, max_steps=2)
    model = pretrain(settings)
    before = (model / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(stage.CondenserTrainer, "train", None)  # would fail if it were called
    assert pretrain(settings) == model
    assert (model / "model.safetensors").stat().st_mtime_ns == before


def test_old_checkpoints_go_only_beyond_the_limit(tmp_path, bert_folder, corpus_file):
    pretrain(settings_for(tmp_path, bert_folder, corpus_file, save_total_limit=2))
    assert sorted(folder.name for folder in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-15",
        "checkpoint-20",
    ]
