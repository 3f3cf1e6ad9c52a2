"""A short training that the tests of this room share."""

from pathlib import Path
from typing import Any

import pytest

from modeling_condenser.finetuning.finetune import finetune


@pytest.fixture
def train(bert_folder, tmp_path):
    """Fine-tunes the tiny BERT for two steps, or with other settings, in a folder of a name."""
    defaults = {"encoder": str(bert_folder), "pooling": "mean", "max_steps": 2}
    defaults |= {"per_device_train_batch_size": 4, "use_cpu": True, "disable_tqdm": True}

    def run(name: str = "run", **settings: Any) -> Path:
        return finetune(**{**defaults, **settings, "output_dir": str(tmp_path / name)})

    return run
