"""Losses and gradients of a Condenser on every encoder, against two encoders of the library."""

from typing import Any

import pytest
import torch
from transformers import AutoModel

from modeling_condenser.encoder_parts import n_positions
from modeling_condenser.packing import pack, use_packing
from tests.backbones.encoders import BACKBONES, LAYERS, POSITIONS, VOCABULARY, Backbone
from tests.backbones.two_encoders import TwoEncoders, our_name
from tests.models import assert_same, losses_and_gradients, make_model
from tests.pretraining.test_contrast import build_trainer, naive_step, step

WEIGHT = 0.3  # of the bag-of-words loss
SETTINGS: dict[str, dict[str, Any]] = {
    "as published": {"skip_from": 2, "n_head_layers": 2},
    "no skip, no late MLM": {"skip_from": LAYERS, "n_head_layers": 1, "late_mlm": False},
    "a second masking": {"head_mlm_probability": 0.5, "n_head_layers": 1},
    "mean pooling": {"n_head_layers": 1, "pooling": "mean"},
}


def make_batch(backbone: Backbone, *, twice_masked: bool = False) -> dict[str, torch.Tensor]:
    """Five blocks with bags of words; one has special tokens only."""
    batch = backbone.batch()
    batch["input_ids"][1, batch["attention_mask"][1] == 1] = 2
    batch["labels"][1] = -100
    original = batch["input_ids"].where(batch["labels"] == -100, batch["labels"])
    is_token = batch["attention_mask"] == 1
    batch["bow_targets"] = torch.full_like(original, -100)
    for row, (tokens, is_kept) in enumerate(zip(original, is_token, strict=True)):
        bag = sorted(set(tokens[is_kept].tolist()) - {0, 1, 2}, reverse=True)
        batch["bow_targets"][row, : len(bag)] = torch.tensor(bag, dtype=torch.long)
    if twice_masked:
        chosen = torch.rand(original.shape, generator=torch.Generator().manual_seed(9)) < 0.5
        chosen &= is_token
        chosen[:, 0] = False
        batch["head_targets"] = original.where(chosen, -100)
        batch["head_input_ids"] = original.where(~chosen, 4)
    return batch


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_losses_and_every_gradient_are_those_of_two_encoders_of_the_library(backbone, settings):
    model = make_model(backbone.title, **settings)
    padded = make_batch(backbone, twice_masked="head_mlm_probability" in settings)
    oracle = TwoEncoders(model)
    losses = oracle.losses(padded, bow_weight=WEIGHT)
    losses["loss"].backward()
    gradients = oracle.gradients()
    expected = gradients | {name: loss.detach() for name, loss in losses.items()}
    for batch in (padded, pack(padded)) if backbone.packed else (padded,):
        if batch is not padded:
            use_packing(model)
        assert_same(
            losses_and_gradients(model, batch, bow_weight=WEIGHT), expected, backbone.tolerance
        )
    assert any(name.startswith("head.") for name in gradients)
    # Data parallelism would wait for the gradients of other trained weights.
    named = dict(model.named_parameters(remove_duplicate=False))
    assert gradients.keys() == {name for name, weight in named.items() if weight.requires_grad}
    theirs = oracle.masked_lm.named_parameters()
    fixed = {our_name(oracle.masked_lm, n) for n, weight in theirs if not weight.requires_grad}
    assert all(".pooler." in name or name in fixed for name in named.keys() - gradients.keys())


def test_nothing_is_kept_between_calls(backbone):
    model = make_model(backbone.title)
    first = model(**backbone.batch()).loss.item()
    before = {id(m): vars(m).keys() for m in model.modules()}
    hooks = {id(m): list(m._forward_pre_hooks) for m in model.modules()}
    model(**backbone.batch(3, 8))
    assert {id(m): list(m._forward_pre_hooks) for m in model.modules()} == hooks
    assert model.recorder.recording is None
    assert {id(m): vars(m).keys() for m in model.modules()} == before
    assert model(**backbone.batch()).loss.item() == first


def test_micro_batches_add_up_to_the_gradient_of_the_whole_batch(backbone):
    model = make_model(backbone.title, pooling="mean", n_head_layers=1, head_mlm_probability=0.5)
    batch = make_batch(backbone, twice_masked=True)
    counts = {
        "num_items_in_batch": (batch["labels"] != -100).sum(),
        "num_head_items_in_batch": (batch["head_targets"] != -100).sum(),
        "num_bags_in_batch": 4,
    }
    parts = [  # of 1 and 3 bags
        {name: column[rows] for name, column in batch.items()} | counts
        for rows in (slice(0, 2), slice(2, 5))
    ]
    found = losses_and_gradients(model, *parts)
    assert_same(found, losses_and_gradients(model, batch))


def test_without_counts_the_share_of_masked_tokens_scales_the_other_losses():
    """As in a plain Trainer, which counts only labels."""
    model = make_model("BERT", n_head_layers=1, head_mlm_probability=0.5)
    batch = make_batch(BACKBONES["BERT"], twice_masked=True)
    whole = model(**batch)
    part = model(**batch, num_items_in_batch=4 * (batch["labels"] != -100).sum())
    for name in ("bow_loss", "head_loss", "late_loss"):
        assert part[name].item() == pytest.approx(whole[name].item() / 4, rel=1e-12), name


def test_attention_back_ends_and_bfloat16_stay_near_float32(backbone):
    model, batch = make_model(backbone.title).float(), backbone.batch()
    expected = model(**batch).loss
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        torch.testing.assert_close(model(**batch).loss, expected, rtol=1e-5, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
    torch.testing.assert_close(loss, expected, rtol=0.1, atol=0)  # in float32, too
    torch.testing.assert_close(model.bfloat16()(**batch).loss, expected, rtol=0.1, atol=0)


def test_gradient_checkpointing_gives_the_same_gradients_or_is_refused(backbone):
    model = make_model(backbone.title, **SETTINGS["a second masking"])
    batch = make_batch(backbone, twice_masked=True)
    if not model.condenser.encoder.supports_gradient_checkpointing:
        with pytest.raises(ValueError, match="not compatible with gradient checkpointing"):
            model.gradient_checkpointing_enable()
        return
    expected = losses_and_gradients(model, batch)
    model.gradient_checkpointing_enable()
    assert all(layer.gradient_checkpointing for layer in (*model.condenser.layers, *model.head))
    assert_same(losses_and_gradients(model, batch), expected)
    if backbone.packed:  # in which all rows are then computed
        use_packing(model)
        assert_same(losses_and_gradients(model, pack(batch)), expected)


def test_a_missing_or_unwanted_second_masking_is_refused():
    once, twice = (make_batch(BACKBONES["BERT"], twice_masked=flag) for flag in (False, True))
    with pytest.raises(ValueError, match=r"made for another value.*\(head_mlm_probability=0.5\)"):
        make_model("BERT", head_mlm_probability=0.5)(**once)
    with pytest.raises(ValueError, match="of this model is None"):
        make_model("BERT")(**twice)
    # Without labels the head reads the block itself.
    model, ids = make_model("BERT", head_mlm_probability=0.5), once["input_ids"]
    embedded = model.recorder.embed(model.condenser.encoder, input_ids=ids)
    assert torch.equal(model.encode(ids)[1], embedded)
    assert model(input_ids=ids).head_logits.shape == (*ids.shape, VOCABULARY)


def test_as_many_tokens_fit_as_the_encoder_has_positions_for(backbone):
    encoder = AutoModel.from_config(backbone.config()).eval()
    assert n_positions(encoder) == POSITIONS
    assert torch.isfinite(encoder(torch.full((1, POSITIONS), 7)).last_hidden_state).all()
    tables = [module for module in encoder.modules() if isinstance(module, torch.nn.Embedding)]
    if POSITIONS + backbone.offset in map(len, (table.weight for table in tables)):
        with pytest.raises((IndexError, RuntimeError)):
            encoder(torch.full((1, POSITIONS + 1), 7))


def test_with_dropout_the_cached_gradient_is_the_uncached_one(folder, texts, tmp_path):
    trainer = build_trainer(tmp_path, folder, texts, cache_chunk_size=4)
    found, state = step(trainer)
    expected, expected_state = naive_step(trainer, 4)
    assert_same(found, expected, 1e-5)
    assert torch.equal(state, expected_state)
