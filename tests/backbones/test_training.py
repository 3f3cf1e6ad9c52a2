"""Training on every encoder: losses fall, the gradient cache is exact, lengths are checked."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from modeling_condenser import condenser_from_encoder
from modeling_condenser.positions import n_positions
from modeling_condenser.pretraining.warm_start import check_fit
from tests.backbones.encoders import BACKBONES, POSITIONS, Backbone
from tests.pretraining.contrasting import assert_same_gradients, build_trainer, naive_step, step


def test_as_many_tokens_fit_as_the_encoder_has_positions_for(backbone: Backbone) -> None:
    encoder = AutoModel.from_config(backbone.config()).eval()
    assert n_positions(encoder) == POSITIONS
    assert torch.isfinite(encoder(torch.full((1, POSITIONS), 7)).last_hidden_state).all()
    if backbone.title not in ("DeBERTa-v2", "DeBERTa-v3", "ModernBERT"):  # distances only
        with pytest.raises((IndexError, RuntimeError)):
            encoder(torch.full((1, POSITIONS + 1), 7))


def test_a_tokenizer_with_another_padding_token_is_refused(folder: Path, texts: list[str]) -> None:
    """RoBERTa and its kin pad with 1 and count positions from behind it; BERT's pads with 0."""
    model = condenser_from_encoder(str(folder))
    own = AutoTokenizer.from_pretrained(folder)
    check_fit(own, model, 64)
    with pytest.raises(ValueError, match="max_length is 65"):
        check_fit(own, model, 65)
    other = BACKBONES["BERT" if own.pad_token_id else "RoBERTa"].tokenizer(texts)
    model.resize_token_embeddings(1000)
    with pytest.raises(ValueError, match="pads with"):
        check_fit(other, model, 64)


def test_with_dropout_the_cached_gradient_is_the_uncached_one(
    folder: Path, texts: list[str], tmp_path: Path
) -> None:
    trainer = build_trainer(tmp_path, folder, texts, cache_chunk_size=4)
    loss, found, state = step(trainer)
    expected_loss, expected, expected_state = naive_step(trainer, 4)
    assert abs(loss - expected_loss) < 1e-5 * abs(expected_loss)
    assert_same_gradients(found, expected)
    assert torch.equal(state, expected_state)
