"""Cross-encoders: their log-odds, whatever they were saved to return."""

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder

from modeling_condenser.mining.cross_encoder import RelevanceScorer
from tests.mining.making import make_cross_encoder, plain_logits

PAIRS = [
    ("a short query", "A passage."),
    ("another query about time", "The second passage is quite a bit longer than the first. " * 4),
    ("", "no query"),
]


@pytest.mark.parametrize("max_length", [None, 12])
def test_scores_are_the_logits_of_transformers_alone_whatever_is_applied_to_them(
    bert_folder, tmp_path, max_length
):
    folder = make_cross_encoder(tmp_path / "made", bert_folder)
    model = CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Sigmoid())
    model.save_pretrained(str(tmp_path / "saved"))
    expected = [row[0] for row in plain_logits(folder, PAIRS, max_length=max_length or 64)]
    scores = RelevanceScorer(tmp_path / "saved", max_length=max_length, device="cpu").score(PAIRS)
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
