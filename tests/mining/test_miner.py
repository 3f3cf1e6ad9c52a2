"""Candidates and a cross-encoder's log-odds beside those of the libraries."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
)

from modeling_condenser.mining.miner import Candidate, RelevanceScorer, draw_order
from modeling_condenser.mining.recipe import MiningRecipe


def test_a_dropped_candidate_does_not_change_the_order_of_the_others():
    candidates = [Candidate(rank, "", 0.0) for rank in range(30, 201)]

    def ranks(query: str = "q1", *, every: int = 1, **changes: Any) -> list[int]:
        recipe = MiningRecipe("bm25", "collection", "out", n_negatives=None, **changes)
        return [drawn.rank for drawn in draw_order(recipe, query, candidates[::every])]

    assert sorted(ranks()) == list(range(30, 201)) == ranks(sampling="top") != ranks()
    assert ranks() != ranks("q2")
    assert ranks()[:5] == [166, 189, 99, 142, 60]  # as in earlier versions
    assert ranks(every=2) == [rank for rank in ranks() if rank % 2 == 0]
    assert ranks(last_rank=10**15) == ranks()  # needs no more memory


def make_cross_encoder(folder: Path, encoder: Path, *, n_labels: int = 1) -> Path:
    """A tiny random cross-encoder whose scores differ."""
    config = BertConfig.from_pretrained(encoder, num_labels=n_labels, initializer_range=0.3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder)
    return folder


def plain_logits(folder: Path, pairs: list[tuple[str, str]]) -> list[list]:
    """Logits of pairs by transformers alone, one pair at a time and so without padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    settings = {"truncation": True, "max_length": 64, "return_tensors": "pt"}
    with torch.no_grad():
        return [model(**tokenizer(*pair, **settings)).logits[0].tolist() for pair in pairs]


PASSAGES = ["A passage.", "The second passage is quite a bit longer than the first. " * 4, "No."]
PAIRS = [("another query about time", passage) for passage in PASSAGES]


def test_scores_are_the_logits_of_transformers_alone_whatever_is_applied_to_them(
    bert_folder, tmp_path
):
    folder = make_cross_encoder(tmp_path / "made", bert_folder)
    model = CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Sigmoid())
    model.save_pretrained(str(tmp_path / "saved"))
    expected = [row[0] for row in plain_logits(folder, PAIRS)]
    scores = RelevanceScorer(tmp_path / "saved", device="cpu").score(PAIRS)
    assert np.ptp(scores) > 0.05
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_two_labels_give_a_difference_of_logits_and_other_models_are_refused(bert_folder, tmp_path):
    folder = make_cross_encoder(tmp_path / "2", bert_folder, n_labels=2)
    expected = [row[1] - row[0] for row in plain_logits(folder, PAIRS)]
    scores = RelevanceScorer(folder, device="cpu").score(PAIRS)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    with pytest.raises(ValueError, match="BertForMaskedLM, .* is not a cross-encoder"):
        RelevanceScorer(bert_folder)
    with pytest.raises(ValueError, match="3 labels"):
        RelevanceScorer(make_cross_encoder(tmp_path / "3", bert_folder, n_labels=3))
