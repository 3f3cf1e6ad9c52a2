"""The model against a dense implementation of the equations, and its life in the library."""

import copy
import shutil

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    set_seed,
)

from modeling_condenser import (
    CondenserConfig,
    CondenserForMaskedLM,
    CondenserForPreTraining,
    CondenserModel,
    condenser_from_encoder,
    masked_lm_from_encoder,
    modeling_condenser,
)
from tests.naive_condenser import naive_loss

VOCABULARY, LAYERS = 60, 4


def encoder_config(**changes) -> BertConfig:
    return BertConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 16,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "max_position_embeddings": 32,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "initializer_range": 0.3,  # so large that no part of the model is near linear
            **changes,
        }
    )


def make_model(**settings) -> CondenserForPreTraining:
    set_seed(1)
    model = CondenserForPreTraining(CondenserConfig(encoder_config=encoder_config(), **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)  # biases and norms away from 0 and 1
    return model.double().train()


def make_batch(n_blocks: int = 5, width: int = 12, *, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (n_blocks, width), generator=generator)
    lengths = torch.randint(4, width + 1, (n_blocks, 1), generator=generator)
    lengths[0] = width
    mask = (torch.arange(width) < lengths).long()
    chosen = (torch.rand(n_blocks, width, generator=generator) < 0.3) & (mask == 1)
    chosen[:, 0] = False
    chosen[0, 2] = True
    labels = torch.where(chosen, torch.randint(5, VOCABULARY, ids.shape, generator=generator), -100)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("late_mlm", [True, False])
@pytest.mark.parametrize(
    ("skip_from", "n_head_layers"), [(2, 2), (0, 1), (1, 3), (3, 2), (LAYERS, 1)]
)
def test_losses_and_every_gradient_equal_the_equations(skip_from, n_head_layers, late_mlm):
    model = make_model(skip_from=skip_from, n_head_layers=n_head_layers, late_mlm=late_mlm)
    batch = make_batch()
    output = model(**batch)
    output.loss.backward()
    found = gradients(model)

    weights = {
        name: p.detach().clone().requires_grad_(True)
        for name, p in model.named_parameters()
        if "pooler" not in name
    }
    expected = naive_loss(weights, model.config, batch)
    expected["loss"].backward()

    torch.testing.assert_close(output.loss, expected["loss"], rtol=0, atol=1e-8)
    torch.testing.assert_close(output.head_loss, expected["head_loss"], rtol=0, atol=1e-8)
    if late_mlm:
        torch.testing.assert_close(output.late_loss, expected["late_loss"], rtol=0, atol=1e-8)
    else:
        assert output.late_loss is None
    with_gradient = {name: w.grad for name, w in weights.items() if w.grad is not None}
    assert found.keys() == with_gradient.keys()
    assert any(name.startswith("head.") for name in found)
    for name, gradient in with_gradient.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-8, msg=name)


def test_the_late_token_vectors_reach_the_head_only_through_cls():
    """The point of the architecture: without late MLM, late tokens matter to nothing but CLS."""
    model = make_model(skip_from=LAYERS - 1, n_head_layers=1, late_mlm=False)
    batch = make_batch()
    late, early, output = model.encode(batch["input_ids"], batch["attention_mask"])
    late.retain_grad()
    model.run_head(late[:, :1], early, output.layer_call).square().sum().backward()
    assert late.grad[:, 0].abs().sum() > 0
    assert late.grad[:, 1:].abs().sum() == 0


def test_padding_does_not_change_the_losses():
    model = make_model()
    batch = make_batch()
    wider = {
        "input_ids": torch.nn.functional.pad(batch["input_ids"], (0, 8), value=7),
        "attention_mask": torch.nn.functional.pad(batch["attention_mask"], (0, 8)),
        "labels": torch.nn.functional.pad(batch["labels"], (0, 8), value=-100),
    }
    torch.testing.assert_close(model(**wider).loss, model(**batch).loss, rtol=0, atol=1e-10)


def test_micro_batches_of_unequal_masks_add_up_to_the_gradient_of_the_whole_batch():
    model = make_model()
    batch = make_batch(16)
    n_items = (batch["labels"] != -100).sum()
    counts = (batch["labels"].reshape(4, -1) != -100).sum(1)
    assert len(counts.unique()) > 1

    model(**batch).loss.backward()
    whole = gradients(model)
    model.zero_grad()
    for start in range(0, 16, 4):
        part = {name: tensor[start : start + 4] for name, tensor in batch.items()}
        model(**part, num_items_in_batch=n_items).loss.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, whole[name], rtol=0, atol=1e-10, msg=name)


def test_a_batch_without_masked_tokens_has_no_loss_and_no_gradient():
    model = make_model()
    batch = make_batch()
    batch["labels"] = torch.full_like(batch["labels"], -100)
    output = model(**batch)
    output.loss.backward()
    assert output.loss.item() == 0.0
    assert all(g.abs().sum() == 0 for g in gradients(model).values())


def test_logits_without_labels_are_those_that_the_losses_are_made_of():
    model = make_model()
    batch = make_batch()
    labels = batch.pop("labels")
    output = model(**batch)
    for logits, loss in ((output.head_logits, "head_loss"), (output.logits, "late_loss")):
        assert logits.shape == (*labels.shape, VOCABULARY)
        expected = torch.nn.functional.cross_entropy(
            logits.reshape(-1, VOCABULARY), labels.reshape(-1)
        )
        torch.testing.assert_close(model(**batch, labels=labels)[loss], expected)
    assert torch.equal(model(**batch, return_dict=False)[0], output.head_logits)


def test_hidden_states_and_attentions_come_back_on_request():
    model = make_model()
    model.set_attn_implementation("eager")
    batch = make_batch()
    output = model(**batch, output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == LAYERS + 1
    assert len(output.attentions) == LAYERS
    assert output.attentions[0].shape == (5, 2, 12, 12)
    torch.testing.assert_close(output.loss, model(**batch).loss)
    assert model(**batch).hidden_states is None


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_back_ends_agree(implementation):
    model = make_model()
    batch = make_batch()
    expected = naive_loss(dict(model.named_parameters()), model.config, batch)["loss"]
    model.set_attn_implementation(implementation)
    assert model.head[0].attention.self.config._attn_implementation == implementation
    torch.testing.assert_close(model(**batch).loss, expected, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="flex attention is compiled on a CPU")
def test_flex_attention_agrees_without_gradient():
    model = make_model().float().eval().requires_grad_(False)  # CPU flex attention is forward only
    batch = make_batch()
    expected = model(**batch).loss
    model.set_attn_implementation("flex_attention")
    torch.testing.assert_close(model(**batch).loss, expected, rtol=0, atol=1e-5)


def test_gradient_checkpointing_gives_the_same_gradients():
    model = make_model()
    batch = make_batch()
    model(**batch).loss.backward()
    expected = gradients(model)
    model.zero_grad()
    model.gradient_checkpointing_enable()
    assert all(layer.gradient_checkpointing for layer in (*model.condenser.layers, *model.head))
    model(**batch).loss.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-12, msg=name)


def test_bfloat16_weights_and_autocast_stay_near_float32():
    model = make_model().float()
    batch = make_batch()
    expected = model(**batch).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0.05, atol=0)
    torch.testing.assert_close(model.bfloat16()(**batch).loss, expected, rtol=0.05, atol=0)


def test_saving_and_opening_keeps_every_weight_and_every_tie(tmp_path):
    model = make_model(skip_from=1, n_head_layers=3).float()
    model.save_pretrained(tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "configuration_condenser.py",
        "modeling_condenser.py",
    }
    opened, info = CondenserForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert (opened.config.skip_from, opened.config.n_head_layers) == (1, 3)
    for name, tensor in model.state_dict().items():
        assert torch.equal(opened.state_dict()[name], tensor), name
    assert opened.get_output_embeddings().weight is opened.get_input_embeddings().weight
    assert opened.lm_head.predictions.decoder.bias is opened.lm_head.predictions.bias
    assert not any(p.requires_grad for p in opened.condenser.encoder.pooler.parameters())


@pytest.mark.parametrize("size", [VOCABULARY + 8, VOCABULARY - 8])
def test_resizing_the_vocabulary_keeps_ties_and_old_predictions(size):
    model = make_model().float()
    batch = make_batch()
    batch["input_ids"] = batch["input_ids"].clamp(max=VOCABULARY - 9)
    del batch["labels"]
    before = model(**batch).head_logits
    model.resize_token_embeddings(size)
    after = model(**batch).head_logits
    assert model.config.vocab_size == model.config.encoder_config.vocab_size == size
    assert after.shape[-1] == size
    torch.testing.assert_close(after[..., : VOCABULARY - 8], before[..., : VOCABULARY - 8])
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.lm_head.predictions.bias is model.get_output_embeddings().bias


def test_from_encoder_takes_backbone_and_lm_head_and_draws_the_head_like_the_encoder(bert_folder):
    plain = BertForMaskedLM.from_pretrained(bert_folder).eval()
    set_seed(0)
    model = condenser_from_encoder(str(bert_folder), n_head_layers=3, skip_from=1)
    assert (len(model.head), model.config.skip_from, model.config.late_mlm) == (3, 1, True)
    batch = make_batch()
    del batch["labels"]
    torch.testing.assert_close(model.eval()(**batch).logits, plain(**batch).logits)
    weights = torch.cat(
        [p.flatten() for n, p in model.head.named_parameters() if "dense.weight" in n]
    )
    assert weights.std().item() == pytest.approx(plain.config.initializer_range, rel=0.05)
    assert all(p.eq(0).all() for n, p in model.head.named_parameters() if n.endswith("bias"))


def test_skip_from_defaults_to_half_of_the_layers(bert_folder):
    assert condenser_from_encoder(str(bert_folder)).config.skip_from == 2


def test_from_encoder_works_for_roberta_with_its_own_layers_and_lm_head(roberta_folder):
    plain = AutoModelForMaskedLM.from_pretrained(roberta_folder).eval()
    model = condenser_from_encoder(str(roberta_folder)).eval()
    assert type(model.head[0]) is type(model.condenser.layers[0])
    assert type(model.head[0]).__name__ == "RobertaLayer"
    batch = make_batch()
    del batch["labels"]
    torch.testing.assert_close(model(**batch).logits, plain(**batch).logits)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_an_encoder_without_an_lm_head_gets_one_tied_to_its_embeddings(tmp_path, caplog):
    BertModel(encoder_config()).save_pretrained(tmp_path)
    model = condenser_from_encoder(str(tmp_path))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.lm_head.predictions.bias.eq(0).all()


def test_the_pooler_is_kept_or_made_plain_but_never_random(tmp_path, bert_folder):
    with_pooler = BertModel(encoder_config())
    with_pooler.save_pretrained(tmp_path)
    kept = condenser_from_encoder(str(tmp_path)).condenser.encoder.pooler
    assert torch.equal(kept.dense.weight, with_pooler.pooler.dense.weight)
    made = condenser_from_encoder(str(bert_folder)).condenser.encoder.pooler
    assert torch.equal(made.dense.weight, torch.eye(32))


def test_a_checkpoint_without_a_head_is_refused_unless_a_new_one_is_asked_for(
    tmp_path, bert_folder
):
    masked_lm_from_encoder(str(bert_folder)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no Condenser head.*new_head=True"):
        CondenserForPreTraining.from_pretrained(tmp_path)
    model = CondenserForPreTraining.from_pretrained(tmp_path, new_head=True)
    assert all(torch.isfinite(p).all() for p in model.head.parameters())


def test_a_checkpoint_with_missing_backbone_weights_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    make_model().float().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["condenser.encoder.encoder.layer.0.output.dense.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="1 weights are missing.*layer.0.output.dense"):
        CondenserForPreTraining.from_pretrained(tmp_path)


def test_a_plain_encoder_opened_as_a_checkpoint_is_refused_with_the_remedy(bert_folder):
    with pytest.raises(ValueError, match="from_encoder"):
        CondenserForPreTraining.from_pretrained(bert_folder)


def test_the_encoders_view_and_the_masked_lm_view_read_the_same_checkpoint(tmp_path):
    model = make_model().float().eval()
    model.save_pretrained(tmp_path)
    batch = make_batch()
    labels = batch.pop("labels")
    late = CondenserModel.from_pretrained(tmp_path)(**batch).last_hidden_state
    assert torch.equal(late, model.encode(**batch)[0])
    masked_lm = CondenserForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(masked_lm(**batch).logits, model(**batch).logits)
    own = masked_lm(**batch, labels=labels).loss
    assert torch.equal(own, model(**batch, labels=labels).late_loss)


def test_from_encoder_accepts_a_condenser_checkpoint_and_leaves_its_head_behind(tmp_path):
    model = make_model(n_head_layers=1).float()
    model.save_pretrained(tmp_path)
    other = condenser_from_encoder(str(tmp_path), n_head_layers=1)
    same = copy.deepcopy(model.condenser.state_dict())
    assert all(torch.equal(t, same[n]) for n, t in other.condenser.state_dict().items())
    assert not torch.equal(other.head[0].output.dense.weight, model.head[0].output.dense.weight)


def test_a_hundred_steps_lower_both_losses():
    set_seed(0)
    model = CondenserForPreTraining(
        CondenserConfig(encoder_config=encoder_config(initializer_range=0.02))
    )
    batch = make_batch(8)
    first = model(**batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(100):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    last = model(**batch)
    assert last.head_loss < first.head_loss / 2
    assert last.late_loss < first.late_loss / 2


@pytest.mark.parametrize("at_once", [1, 40, 10**6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_losses_in_parts_are_those_of_torch(
    at_once: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modeling_condenser, "_WIDENED_AT_ONCE", at_once)
    torch.manual_seed(0)
    logits = (3 * torch.randn(9, 20)).to(dtype).requires_grad_()
    targets = torch.randint(0, 20, (9,))
    targets[[2, 8]] = -100
    factors = torch.rand(9, dtype=torch.promote_types(dtype, torch.float32))
    found = modeling_condenser._cross_entropy(logits, targets)
    (found * factors).sum().backward()
    plain = logits.detach().to(factors.dtype).requires_grad_()
    expected = F.cross_entropy(plain, targets, reduction="none")
    (expected * factors).sum().backward()
    assert found.dtype == factors.dtype
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(logits.grad, plain.grad.to(dtype))
