"""The settings of a short pre-training run, and its tokenizer."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.pretraining.short_runs import NO_DROPOUT, SETTINGS


@pytest.fixture
def settings(tmp_path: Path, bert_folder: Path, corpus_file: Path) -> dict[str, Any]:
    return {
        **SETTINGS,
        "encoder": str(bert_folder),
        "encoder_changes": NO_DROPOUT,
        "corpus": str(corpus_file),
        "output_dir": str(tmp_path / "run"),
    }


@pytest.fixture
def tokenizer(bert_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(bert_folder)
