"""The gradient of a batch in chunks is that of the batch at once, with dropout on."""

import pytest
import torch

from modeling_condenser.pretraining.contrast import Contrast
from modeling_condenser.pretraining.gradient_cache import put_back, split_batch
from modeling_condenser.pretraining.packed_batches import pack
from tests.pretraining.contrasting import (
    N_DOCUMENTS,
    assert_same_gradients,
    make_pairs,
    make_trainer,
    naive_step,
    one_batch,
    step,
)


@pytest.fixture
def pairs(texts, bert_folder):
    return make_pairs(texts, bert_folder)


@pytest.mark.parametrize("contrast", [Contrast("dot"), Contrast("cosine", 0.05)], ids=str)
@pytest.mark.parametrize("chunk_size", [2, 4, 8])
@pytest.mark.parametrize("packed", [False, True])
def test_with_dropout_the_cached_gradient_is_the_uncached_one(
    tmp_path, bert_folder, pairs, chunk_size, contrast, packed
):
    trainer = make_trainer(
        tmp_path,
        bert_folder,
        pairs,
        cache_chunk_size=chunk_size,
        contrast=contrast,
        packed=packed,
    )
    loss, found, state = step(trainer)
    expected_loss, expected, expected_state = naive_step(trainer, chunk_size)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert_same_gradients(found, expected)
    assert torch.equal(state, expected_state)
    assert max(gradient.abs().max() for gradient in found.values()) > 0.1


@pytest.mark.parametrize("chunk_size", [2, 4, 12])
@pytest.mark.parametrize("packed", [False, True])
def test_without_dropout_any_chunk_gives_the_gradient_of_the_padded_batch_at_once(
    tmp_path, bert_folder, pairs, chunk_size, packed
):
    whole = make_trainer(tmp_path / "a", bert_folder, pairs, dropout=False)
    parts = make_trainer(
        tmp_path / "b",
        bert_folder,
        pairs,
        dropout=False,
        packed=packed,
        cache_chunk_size=chunk_size,
    )
    expected_loss, expected, state = step(whole)
    loss, found, state_after = step(parts)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert_same_gradients(found, expected)
    assert torch.equal(state_after, state)  # also the random states, bit for bit


def test_dropout_is_on_and_another_in_each_step(tmp_path, bert_folder, pairs):
    trainer = make_trainer(tmp_path, bert_folder, pairs, cache_chunk_size=4)
    assert step(trainer, seed=5)[0] == step(trainer, seed=5)[0]
    assert step(trainer, seed=5)[0] != step(trainer, seed=6)[0]


def test_with_bfloat16_autocast_the_cached_gradient_is_the_uncached_one(
    tmp_path, bert_folder, pairs
):
    trainer = make_trainer(tmp_path, bert_folder, pairs, cache_chunk_size=4, bf16=True)
    trainer.model_wrapped = trainer.model = trainer.accelerator.prepare_model(trainer.model)
    loss, found, _ = step(trainer)
    expected_loss, expected, _ = naive_step(trainer, 4)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    largest = max(gradient.abs().max() for gradient in expected.values())
    assert_same_gradients(found, expected, tolerance=0.01 * largest.item())


@pytest.mark.gpu
def test_on_a_gpu_with_dropout_the_cached_gradient_is_the_uncached_one(
    tmp_path, bert_folder, pairs
):
    trainer = make_trainer(tmp_path, bert_folder, pairs, cache_chunk_size=4, use_cpu=False)
    assert trainer.args.device.type == "cuda"
    loss, found, _ = step(trainer)
    state = torch.cuda.get_rng_state()
    expected_loss, expected, _ = naive_step(trainer, 4)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert_same_gradients(found, expected, tolerance=1e-4)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_chunks_hold_every_row_once_the_longest_first_and_without_spare_padding():
    lengths = [3, 30, 17, 8, 1, 40]
    mask = (torch.arange(40) < torch.tensor(lengths)[:, None]).long()
    ids = torch.arange(240).reshape(6, 40)
    chunks = split_batch({"input_ids": ids, "attention_mask": mask}, 2, seed=3)
    assert [chunk.rows.tolist() for chunk in chunks] == [[5, 1], [2, 3], [0, 4]]
    assert [chunk.inputs["input_ids"].shape for chunk in chunks] == [(2, 40), (2, 24), (2, 8)]
    assert chunks[1].inputs["input_ids"].equal(ids[[2, 3], :24])
    assert len({chunk.seed for chunk in chunks}) == 3
    vectors = [chunk.rows[:, None].float() for chunk in chunks]
    assert put_back(vectors, chunks).squeeze(1).tolist() == [0, 1, 2, 3, 4, 5]


def test_chunks_of_a_packed_batch_are_packed_chunks_of_its_texts():
    ids = torch.zeros(5, 40, dtype=torch.long)
    for row, length in enumerate([3, 30, 17, 8, 9]):
        ids[row, :length] = torch.arange(length) + 100 * row + 2
        ids[row, 0] = 2  # CLS
    mask = (ids != 0).long()
    padded = {"input_ids": ids, "attention_mask": mask, "labels": ids.where(mask == 1, -100)}
    chunks = split_batch(pack(padded, pad_token_id=0), 2, seed=3, pad_token_id=0)
    expected = split_batch(padded, 2, seed=3)
    for chunk, rows in zip(chunks, expected, strict=True):
        assert chunk.rows.equal(rows.rows) and chunk.seed == rows.seed
        repacked = pack(rows.inputs, pad_token_id=0)
        assert chunk.inputs.keys() == repacked.keys()
        for name, value in repacked.items():
            same = value == chunk.inputs[name]
            assert same.all() if isinstance(value, torch.Tensor) else same, name


def test_a_chunk_replays_its_random_numbers_and_leaves_no_trace():
    chunk = split_batch({"attention_mask": torch.ones(2, 8).long()}, None, seed=4)[0]
    state = torch.get_rng_state()
    draws = []
    for _ in range(2):
        with chunk.replaying():
            draws.append(torch.rand(5))
    assert torch.equal(*draws)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2.*cache_chunk_size"),
        ({"cache_chunk_size": 14}, "cache_chunk_size is 14, but a device's batch is 12 texts"),
        ({"cache_chunk_size": 3}, "cache_chunk_size is 3, but texts come in pairs"),
        ({"cache_chunk_size": 0}, "cache_chunk_size is 0"),
        ({"per_device_train_batch_size": 1}, "The batch is one pair.*to 2 or more"),
        ({"dataloader_drop_last": False}, "dataloader_drop_last is false"),
        ({"per_device_train_batch_size": 999}, "a batch is 999 of them"),
    ],
)
def test_arguments_that_do_not_fit_a_loss_over_the_batch_are_refused(
    tmp_path, bert_folder, pairs, settings, message
):
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, bert_folder, pairs, **settings)


def test_evaluation_is_refused(tmp_path, bert_folder, pairs):
    trainer = make_trainer(tmp_path, bert_folder, pairs)
    trainer.model.eval()
    with pytest.raises(ValueError, match="over training batches only"):
        trainer.compute_loss(trainer.model, one_batch(trainer))


def test_the_probe_takes_one_span_of_each_document_of_a_chunk(tmp_path, bert_folder, pairs):
    trainer = make_trainer(tmp_path, bert_folder, pairs, cache_chunk_size=8)
    batch = one_batch(trainer)
    probed = trainer.choose_probed(batch)
    assert probed["input_ids"].equal(batch["input_ids"][[0, 2, 4, 6]])
    packing = make_trainer(tmp_path, bert_folder, pairs, cache_chunk_size=8, packed=True)
    unpacked = packing.choose_probed(one_batch(packing))
    width = unpacked["input_ids"].shape[1]
    assert unpacked.keys() == probed.keys()
    assert all(unpacked[name].equal(rows[:, :width]) for name, rows in probed.items())
    whole = make_trainer(tmp_path, bert_folder, pairs)
    assert len(whole.choose_probed(batch)["labels"]) == N_DOCUMENTS
