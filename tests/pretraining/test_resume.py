"""Interrupted runs resume bit-equal from the last complete checkpoint."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import SafetensorError

from modeling_condenser.hub import trainer as sealing
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.runs.checkpoints import MANIFEST, last_whole_checkpoint
from tests.pretraining.short_runs import assert_same_weights, column, interrupt

pytestmark = pytest.mark.slow

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


@pytest.fixture
def resumable(settings):
    return {
        **settings,
        "encoder_changes": {},  # dropout is on
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 12,
        "save_strategy": "steps",
        "save_steps": 5,
    }


def assert_same_runs(a: Path, b: Path) -> None:
    names = ("step", "loss", "head_loss", "late_loss", "grad_norm")
    assert column(a, *names) == column(b, *names)
    assert_same_weights(a, b)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_run_killed_and_restarted_by_the_same_command_ends_bit_equal(
    resumable, tmp_path, streaming
):
    settings = {**resumable, "streaming": streaming, "dataloader_num_workers": 2}
    command = [sys.executable, "-c", KILLED_RUN, json.dumps(settings), "7"]
    killed = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert not (tmp_path / "run" / "model").exists()
    pretrain(settings)
    pretrain({**settings, "output_dir": str(tmp_path / "whole")})
    assert_same_runs(tmp_path / "run", tmp_path / "whole")


def test_a_run_within_a_budget_resumes_bit_equal_in_a_later_epoch_past_a_torn_checkpoint(
    resumable, tmp_path, caplog
):
    lines = Path(resumable["corpus"]).read_text().splitlines(keepends=True)
    (tmp_path / "some.jsonl").write_text("".join(lines[:50]))
    settings = {**resumable, "corpus": str(tmp_path / "some.jsonl"), "tokens_per_batch": 800}
    pretrain({**settings, "output_dir": str(tmp_path / "whole")})
    assert column(tmp_path / "whole", "epoch")[-1][0] > 2  # so that orders of several are taken up
    interrupt(settings, step=11)
    (tmp_path / "run" / "checkpoint-10" / MANIFEST).unlink()  # killed while it was written
    pretrain(settings)
    assert "checkpoint-10 is incomplete" in caplog.text
    assert_same_runs(tmp_path / "run", tmp_path / "whole")


def test_a_full_disk_at_save_leaves_the_previous_checkpoint_complete(
    resumable, tmp_path, monkeypatch
):
    settings = {**resumable, "max_steps": 10, "save_total_limit": 1}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    seal = sealing.seal_checkpoint

    def seal_and_fill_the_disk(folder):
        seal(folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))

    with monkeypatch.context() as patch:
        patch.setattr(sealing, "seal_checkpoint", seal_and_fill_the_disk)
        try:
            with pytest.raises((OSError, SafetensorError), match="File too large"):
                pretrain(settings)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert last_whole_checkpoint(tmp_path / "run") == tmp_path / "run" / "checkpoint-5"
    pretrain(settings)  # with room again, the same command finishes
    pretrain({**settings, "output_dir": str(tmp_path / "whole"), "save_total_limit": 2})
    assert_same_runs(tmp_path / "run", tmp_path / "whole")
    kept = sorted(folder.name for folder in (tmp_path / "run").glob("checkpoint-*"))
    assert kept == ["checkpoint-10"]
