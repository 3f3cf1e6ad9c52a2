"""An encoder that the tests of this room share, and a short training."""

from pathlib import Path
from typing import Any

import pytest

from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from tests.hub.making import make_run


@pytest.fixture(scope="session")
def encoder(bert_folder, tmp_path_factory):
    """An export, without dropout, with noisy weights and lengths of 48 and 56."""
    root = tmp_path_factory.mktemp("encoders")
    contract = EncodingContract(48, 56, title_separator=" : ")
    return export_encoder(make_run(bert_folder, root / "run"), root / "encoder", contract=contract)


@pytest.fixture
def train(bert_folder, tmp_path):
    """Fine-tunes the tiny BERT for two steps, or with other settings, in a folder of a name."""
    defaults = {"encoder": str(bert_folder), "pooling": "mean", "max_steps": 2}
    defaults |= {"per_device_train_batch_size": 4, "use_cpu": True, "disable_tqdm": True}

    def run(name: str = "run", **settings: Any) -> Path:
        return finetune({**defaults, **settings, "output_dir": str(tmp_path / name)})

    return run
