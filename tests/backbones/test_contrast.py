"""coCondenser on every backbone: the vectors are the exported ones, and the cache is exact."""

import torch
from tests.pretraining.contrasting import (
    assert_same_gradients,
    make_pairs,
    make_trainer,
    naive_step,
    one_batch,
    step,
)


def test_with_dropout_the_cached_gradient_is_the_uncached_one(folder, texts, tmp_path):
    pairs = make_pairs(texts, folder)
    trainer = make_trainer(tmp_path, folder, pairs, cache_chunk_size=4)
    loss, found, state = step(trainer)
    expected_loss, expected, expected_state = naive_step(trainer, 4)
    assert abs(loss - expected_loss) < 1e-5 * abs(expected_loss)
    assert_same_gradients(found, expected)
    assert torch.equal(state, expected_state)


def test_the_vectors_that_are_contrasted_are_those_of_the_encoder(folder, texts, tmp_path):
    trainer = make_trainer(tmp_path, folder, make_pairs(texts, folder))
    model = trainer.model.eval()
    batch = one_batch(trainer)
    with torch.no_grad():
        contrasted = model(**batch, output_hidden_states=True)["hidden_states"][-1][:, 0]
        ids, mask = batch["input_ids"], batch["attention_mask"]
        encoded = model.condenser(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
    assert torch.equal(contrasted, encoded)
