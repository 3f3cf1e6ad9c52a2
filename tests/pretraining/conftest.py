"""The settings of a short pre-training run, and what such runs leave behind."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase


@pytest.fixture
def settings(tmp_path: Path, bert_folder: Path, corpus_file: Path) -> dict[str, Any]:
    return {
        "encoder": str(bert_folder),
        "encoder_changes": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "corpus": str(corpus_file),
        "output_dir": str(tmp_path / "run"),
        "max_length": 32,
        "per_device_train_batch_size": 8,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }


@pytest.fixture
def tokenizer(bert_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(bert_folder)
