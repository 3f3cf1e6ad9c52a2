"""coCondenser on every encoder: the gradient cache is exact, with dropout."""

import torch

from tests.pretraining.contrasting import (
    assert_same_gradients,
    build_trainer,
    naive_step,
    step,
)


def test_with_dropout_the_cached_gradient_is_the_uncached_one(folder, texts, tmp_path):
    trainer = build_trainer(tmp_path, folder, texts, cache_chunk_size=4)
    loss, found, state = step(trainer)
    expected_loss, expected, expected_state = naive_step(trainer, 4)
    assert abs(loss - expected_loss) < 1e-5 * abs(expected_loss)
    assert_same_gradients(found, expected)
    assert torch.equal(state, expected_state)
