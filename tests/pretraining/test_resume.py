"""Interrupted runs resume bit-equal from the last complete checkpoint."""

import resource
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from modeling_condenser import CondenserForMaskedLM
from modeling_condenser.hub import trainer as sealing
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.runs.checkpoints import MANIFEST, last_whole_checkpoint
from tests.pretraining.short_runs import assert_same_weights, column, interrupt

pytestmark = pytest.mark.slow

CASES: dict[str, dict[str, Any]] = {
    "accumulation": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "stream": {"streaming": True, "objective": "mlm"},
    "budget": {"tokens_per_batch": 800},
    "cocondenser": {"objective": "cocondenser", "similarity": "cosine", "cache_chunk_size": 6},
    "tsdae": {"objective": "tsdae"},
}


@pytest.fixture
def resumable(settings, tmp_path):
    lines = Path(settings["corpus"]).read_text().splitlines(keepends=True)
    (tmp_path / "some.jsonl").write_text("".join(lines[:50]))
    return {
        **settings,
        "corpus": str(tmp_path / "some.jsonl"),  # few, so that a run takes several epochs
        "encoder_changes": {},  # dropout is on
        "max_steps": 12,
        "save_strategy": "steps",
        "save_steps": 5,
    }


def assert_same_runs(a: Path, b: Path) -> None:
    names = ("step", "loss", "grad_norm")
    assert column(a, *names) == column(b, *names)
    assert_same_weights(a, b)


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_run_resumes_bit_equal_past_a_torn_checkpoint(
    resumable, tmp_path, caplog, case
):
    settings = {**resumable, **CASES[case]}
    pretrain({**settings, "output_dir": str(tmp_path / "whole")})
    interrupt(settings, step=11)
    checkpoints = [tmp_path / "run" / f"checkpoint-{step}" for step in (5, 10)]
    if case == "tsdae":  # the decoder's untied weights do not keep it from being a masked LM
        CondenserForMaskedLM.from_pretrained(checkpoints[1])
    (checkpoints[1] / MANIFEST).unlink()  # as if killed while it was written
    pretrain({**settings, "dataloader_num_workers": 2})
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
