"""Short pre-training runs: their settings, corpus and tokenizer."""

from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed

from modeling_condenser import CondenserForPreTraining, CondenserTrainer
from modeling_condenser.training import trainer
from tests.backbones.encoders import BACKBONES
from tests.pretraining.short_runs import NO_DROPOUT, SETTINGS, arguments


@pytest.fixture(scope="session")
def small_corpus(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = corpus_file.read_text().splitlines(keepends=True)
    file = tmp_path_factory.mktemp("corpus") / "small.jsonl"
    file.write_text("".join([*lines[:50], '{"text": "Why?"}\n']))
    return file


@pytest.fixture(scope="session")
def large_weights(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT without dropout whose weights are so large that the vectors of texts differ."""
    return BACKBONES["BERT"].save(tmp_path_factory.mktemp("large-weights"), texts)


@pytest.fixture(autouse=True)
def quick_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out model cards, and a collection of garbage after each training.

    Both take longer than the steps of a short run.
    """
    monkeypatch.setattr(trainer, "write_card", lambda folder, **how: None)
    monkeypatch.setattr(Accelerator, "free_memory", lambda self, *objects: list(objects))


@pytest.fixture
def settings(tmp_path: Path, bert_folder: Path, small_corpus: Path) -> dict[str, Any]:
    """The settings of a run."""
    return {
        **SETTINGS,
        "encoder": str(bert_folder),
        "encoder_changes": NO_DROPOUT,
        "corpus": str(small_corpus),
        "output_dir": str(tmp_path / "run"),
    }


@pytest.fixture(scope="session", params=["BERT", "RoBERTa", "XLM-RoBERTa"])
def any_tokenizer(request: pytest.FixtureRequest, texts: list[str]) -> PreTrainedTokenizerBase:
    """WordPiece, byte-level BPE and SentencePiece."""
    return BACKBONES[request.param].tokenizer(texts)


@pytest.fixture
def tokenizer(bert_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(bert_folder)


@pytest.fixture
def make_trainer(tmp_path, bert_folder, texts):
    """Makes a trainer, of 50 texts by default, whose other arguments are settings."""

    def make(data=texts[:50], *, name="run", eval_dataset=None, head=None, **settings):
        set_seed(3)
        return CondenserTrainer(
            CondenserForPreTraining.from_encoder(str(bert_folder), **(head or {})),
            arguments(tmp_path / name, **settings),
            train_dataset=data,
            eval_dataset=eval_dataset,
        )

    return make
