"""The settings of a short pre-training run, and its tokenizer."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from modeling_condenser.pretraining import pretrain
from tests.pretraining.short_runs import NO_DROPOUT, SETTINGS


@pytest.fixture(scope="session")
def small_corpus(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = corpus_file.read_text().splitlines(keepends=True)
    file = tmp_path_factory.mktemp("corpus") / "small.jsonl"
    file.write_text("".join([*lines[:50], '{"text": "Why?"}\n']))
    return file


@pytest.fixture
def settings(
    tmp_path: Path, bert_folder: Path, small_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The settings of a run without a model card, whose pictures take longer than the steps."""
    monkeypatch.setattr(pretrain, "write_card", lambda folder: None)
    return {
        **SETTINGS,
        "encoder": str(bert_folder),
        "encoder_changes": NO_DROPOUT,
        "corpus": str(small_corpus),
        "output_dir": str(tmp_path / "run"),
    }


@pytest.fixture
def tokenizer(bert_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(bert_folder)
