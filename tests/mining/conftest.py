"""A tiny random cross-encoder, and the scores that transformers alone gives with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerBase,
)


@pytest.fixture(scope="session")
def make_cross_encoder(
    wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """Writes a cross-encoder with so many labels, whose scores differ."""

    def make(n_labels: int) -> Path:
        folder = tmp_path_factory.mktemp(f"cross-encoder-{n_labels}")
        config = BertConfig(
            vocab_size=len(wordpiece_tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            initializer_range=0.3,
            num_labels=n_labels,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            BertForSequenceClassification(config).save_pretrained(folder)
        wordpiece_tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def cross_encoder(make_cross_encoder: Callable[[int], Path]) -> Path:
    return make_cross_encoder(1)


@pytest.fixture(scope="session")
def plain_logits() -> Callable[..., list[Any]]:
    """Logits of pairs by transformers alone, one pair at a time and so without padding."""

    def score(
        folder: Path, pairs: list[tuple[str, str]], max_length: int = 64
    ) -> list[list[float]]:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        settings = {"truncation": True, "max_length": max_length, "return_tensors": "pt"}
        with torch.no_grad():
            return [model(**tokenizer(*pair, **settings)).logits[0].tolist() for pair in pairs]

    return score
