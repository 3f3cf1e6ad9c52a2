"""Losses and gradients of a Condenser on every backbone against the same thing done by hand."""

from pathlib import Path

import pytest
import torch
from transformers import set_seed

from modeling_condenser import CondenserConfig, CondenserForPreTraining
from tests.backbones.by_hand import CondenserByHand
from tests.backbones.encoders import BACKBONES, LAYERS, Backbone


def make_model(backbone: Backbone, **settings) -> CondenserForPreTraining:
    set_seed(1)
    config = CondenserConfig(encoder_config=backbone.config(), **settings)
    model = CondenserForPreTraining(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)  # biases and norms away from 0 and 1
    return model.double().train()


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By name; a weight that is tied is there under each of its names."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


@pytest.mark.parametrize("late_mlm", [True, False])
@pytest.mark.parametrize(("skip_from", "n_head_layers"), [(2, 2), (0, 1), (LAYERS, 2), (1, 1)])
def test_losses_and_every_gradient_are_those_of_layers_called_by_hand(
    backbone: Backbone, skip_from: int, n_head_layers: int, late_mlm: bool
) -> None:
    model = make_model(
        backbone, skip_from=skip_from, n_head_layers=n_head_layers, late_mlm=late_mlm
    )
    batch = backbone.batch()
    output = model(**batch)
    output.loss.backward()

    by_hand = CondenserByHand(model.state_dict(), model.config)
    expected = by_hand.losses(batch)
    expected["loss"].backward()

    for name in ("loss", "head_loss", "late_loss") if late_mlm else ("loss", "head_loss"):
        torch.testing.assert_close(output[name], expected[name], rtol=0, atol=1e-8, msg=name)
    assert late_mlm or output.late_loss is None
    found, gradient = gradients(model), by_hand.gradients()
    assert found.keys() == gradient.keys()
    assert any(name.startswith("head.") for name in found)
    for name in gradient:
        torch.testing.assert_close(found[name], gradient[name], rtol=0, atol=1e-8, msg=name)


def test_every_weight_that_is_trained_is_in_the_loss(backbone: Backbone) -> None:
    """Data parallelism would otherwise wait for gradients that never come."""
    model = make_model(backbone)
    model(**backbone.batch()).loss.backward()
    named = model.named_parameters(remove_duplicate=False)
    trained = {name for name, p in named if p.requires_grad}
    assert gradients(model).keys() == trained
    assert all(".pooler" in n for n, p in model.named_parameters() if not p.requires_grad)


def test_the_head_alone_gives_what_the_whole_model_gives(backbone: Backbone) -> None:
    model = make_model(backbone)
    batch = backbone.batch()
    labels = batch.pop("labels")
    late, early, output = model.encode(**batch)
    cd = model.run_head(late[:, :1], early, output.layer_call)
    chosen = labels != -100
    logits = model(**batch).head_logits
    torch.testing.assert_close(model.lm_head(cd[chosen]), logits[chosen])


def test_nothing_is_kept_between_calls(backbone: Backbone) -> None:
    model = make_model(backbone)
    batch = backbone.batch()
    first = model(**batch).loss.item()
    before = {id(m): dict(vars(m)) for m in model.modules()}
    model(**backbone.batch(3, 8))
    assert not any(m._forward_pre_hooks for m in model.modules())
    after = {id(m): dict(vars(m)) for m in model.modules()}
    assert before.keys() == after.keys()
    assert all(before[m].keys() == after[m].keys() for m in before)
    assert model(**batch).loss.item() == first


def test_padding_does_not_change_the_losses(backbone: Backbone) -> None:
    model = make_model(backbone)
    batch = backbone.batch()
    wider = {
        name: torch.nn.functional.pad(batch[name], (0, 8), value=value)
        for name, value in (
            ("input_ids", backbone.padding),
            ("attention_mask", 0),
            ("labels", -100),
        )
    }
    torch.testing.assert_close(model(**wider).loss, model(**batch).loss, rtol=0, atol=1e-7)


def test_micro_batches_of_unequal_masks_add_up_to_the_gradient_of_the_whole_batch(
    backbone: Backbone,
) -> None:
    model = make_model(backbone)
    batch = backbone.batch(8)
    n_items = (batch["labels"] != -100).sum()
    assert len({int((row != -100).sum()) for row in batch["labels"].split(4)}) > 1

    model(**batch).loss.backward()
    whole = gradients(model)
    model.zero_grad()
    for start in (0, 4):
        part = {name: tensor[start : start + 4] for name, tensor in batch.items()}
        model(**part, num_items_in_batch=n_items).loss.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, whole[name], rtol=0, atol=1e-10, msg=name)


def test_attention_back_ends_agree_or_are_refused(backbone: Backbone) -> None:
    model = make_model(backbone).float()  # ModernBERT's eager attention knows no other precision
    batch = backbone.batch()
    expected = model(**batch).loss
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        torch.testing.assert_close(model(**batch).loss, expected, rtol=1e-5, atol=0)
    if not model.condenser.encoder._supports_sdpa:
        config = CondenserConfig(encoder_config=backbone.config(), attn_implementation="sdpa")
        with pytest.raises(ValueError, match="sdpa|scaled_dot_product_attention"):
            CondenserForPreTraining(config)


def test_bfloat16_weights_and_autocast_stay_near_float32(backbone: Backbone) -> None:
    model = make_model(backbone).float()
    batch = backbone.batch()
    expected = model(**batch).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0.1, atol=0)
    torch.testing.assert_close(model.bfloat16()(**batch).loss, expected, rtol=0.1, atol=0)


def test_gradient_checkpointing_gives_the_same_gradients_or_is_refused(backbone: Backbone) -> None:
    model = make_model(backbone)
    batch = backbone.batch()
    model(**batch).loss.backward()
    expected = gradients(model)
    model.zero_grad()
    if not model.condenser.encoder.supports_gradient_checkpointing:
        with pytest.raises(ValueError, match="not compatible with gradient checkpointing"):
            model.gradient_checkpointing_enable()
        return
    model.gradient_checkpointing_enable()
    assert all(layer.gradient_checkpointing for layer in (*model.condenser.layers, *model.head))
    model(**batch).loss.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-12, msg=name)


@pytest.mark.slow
def test_a_compiled_model_sees_each_batch_anew(backbone: Backbone) -> None:
    compare_compiled(make_model(backbone), backbone.batch())


def test_a_small_compiled_model_sees_each_batch_anew() -> None:
    """On the backbone whose layers share a table of position biases."""
    backbone = BACKBONES["MPNet"]
    config = CondenserConfig(encoder_config=backbone.config(num_hidden_layers=1), n_head_layers=1)
    compare_compiled(CondenserForPreTraining(config).double(), backbone.batch())


def compare_compiled(model: CondenserForPreTraining, batch: dict[str, torch.Tensor]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", dynamic=False)
    try:
        for kept in (12, 7, 9):  # other masks must not be met by those of the first call
            changed = dict(batch)
            changed["attention_mask"] = batch["attention_mask"] * (torch.arange(12) < kept)
            loss = compiled(**changed).loss
            torch.testing.assert_close(loss, model(**changed).loss, rtol=0, atol=1e-10)
        model.zero_grad()
        compiled(**batch).loss.backward()
        found = gradients(model)
    finally:
        torch.compiler.reset()
    model.zero_grad()
    model(**batch).loss.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-10, msg=name)


def test_data_parallel_training_goes_on_after_the_first_step(
    backbone: Backbone, tmp_path: Path
) -> None:
    """A weight without a gradient would stop it at the second."""
    distributed = torch.distributed
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1
    )
    try:
        model = make_model(backbone)
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        for _ in range(2):
            model.zero_grad()
            parallel(**backbone.batch()).loss.backward()
        found = gradients(model)
    finally:
        distributed.destroy_process_group()
    model.zero_grad()
    model(**backbone.batch()).loss.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-12, msg=name)
