"""Two processes that gather their passages train as one process with the whole batch."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from modeling_condenser.biencoder.finetune import finetune

SCRIPT = """
import json, sys
from modeling_condenser.biencoder.finetune import finetune
finetune(json.loads(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"mini_batch_size": 2}])
def test_two_devices_take_the_step_of_one_with_the_whole_batch(
    encoder: Path,
    write_jsonl: Callable[..., Path],
    texts: list[str],
    tmp_path: Path,
    changes: dict[str, Any],
) -> None:
    rows = [{"query": texts[i][:30], "positive": texts[i + 30]} for i in range(24)]
    settings = {
        "encoder": str(encoder),
        "data": str(write_jsonl(rows)),
        "format": "pairs",
        "optim": "sgd",
        "learning_rate": 0.01,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "max_steps": 3,
        "dataloader_drop_last": True,
        "use_cpu": True,
        "disable_tqdm": True,
        "output_dir": str(tmp_path / "one"),
    }
    one = finetune({**settings, "per_device_train_batch_size": 8})
    two = {
        **settings,
        **changes,
        "per_device_train_batch_size": 4,
        "gather_across_devices": True,
        "ddp_backend": "gloo",
        "output_dir": str(tmp_path / "two"),
    }
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    process = subprocess.run(
        [*launch, str(script), json.dumps(two)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())},
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    start, first, second = (
        load_file(folder / "model.safetensors") for folder in (encoder, one, tmp_path / "two/model")
    )
    moved = max((first[name] - start[name]).abs().max().item() for name in first)
    assert moved > 1e-3
    for name, weights in first.items():
        assert (second[name] - weights).abs().max().item() < 1e-5, name
    assert json.loads((tmp_path / "two" / "run.json").read_text())["steps"] == 3
