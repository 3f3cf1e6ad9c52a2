"""The model against a dense implementation of the equations, and its life in the library.

`tests/backbones` tests the same and more on every supported encoder.
"""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import AutoTokenizer, BertForMaskedLM, BertModel

from modeling_condenser import (
    CondenserConfig,
    CondenserForMaskedLM,
    CondenserForPreTraining,
)
from modeling_condenser.encoder_files import find_tokenizer
from tests.backbones.encoders import BACKBONES, LAYERS, VOCABULARY
from tests.models import losses_and_gradients
from tests.models import make_model as make_backbone_model
from tests.naive_condenser import naive_loss

BERT = BACKBONES["BERT"]
make_model = partial(make_backbone_model, "BERT")


@pytest.mark.parametrize(
    ("skip_from", "n_head_layers", "late_mlm", "pooling"),
    [
        (2, 2, True, "cls"),
        (0, 1, True, "cls"),
        (3, 3, False, "cls"),
        (LAYERS, 1, True, "cls"),
        (2, 2, True, "mean"),
        (LAYERS, 1, False, "mean"),
    ],
)
def test_losses_and_every_gradient_equal_the_equations(skip_from, n_head_layers, late_mlm, pooling):
    how = {"skip_from": skip_from, "n_head_layers": n_head_layers, "pooling": pooling}
    model = make_model(**how, late_mlm=late_mlm)
    batch = BERT.batch()
    found = losses_and_gradients(model, batch)
    named = dict(model.named_parameters())
    weights = {n: p.detach().clone().requires_grad_() for n, p in named.items() if n in found}
    expected = naive_loss(weights, model.config, batch)
    expected["loss"].backward()
    assert any(name.startswith("head.") for name in weights)
    for name in ("loss", "head_loss", *(["late_loss"] if late_mlm else [])):
        torch.testing.assert_close(found[name], expected[name].detach(), rtol=0, atol=1e-8)
    assert late_mlm or "late_loss" not in found
    for name, weight in weights.items():
        torch.testing.assert_close(found[name], weight.grad, rtol=0, atol=1e-8, msg=name)
    plain = CondenserForMaskedLM(model.config).double()
    plain.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(plain(**batch).loss, expected["late_loss"], rtol=0, atol=1e-8)


def test_a_batch_without_masked_tokens_has_no_loss_and_no_gradient():
    model = make_model()
    batch = BERT.batch()
    batch["labels"] = torch.full_like(batch["labels"], -100)
    batch["bow_targets"] = batch["labels"]
    assert all(value.abs().sum() == 0 for value in losses_and_gradients(model, batch).values())


def test_logits_without_labels_are_those_that_the_losses_are_made_of():
    model = make_model()
    batch = BERT.batch()
    labels = batch.pop("labels")
    output = model(**batch)
    for logits, loss in ((output.head_logits, "head_loss"), (output.logits, "late_loss")):
        assert logits.shape == (*labels.shape, VOCABULARY)
        expected = F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))
        torch.testing.assert_close(model(**batch, labels=labels)[loss], expected)
    assert torch.equal(model(**batch, return_dict=False)[0], output.head_logits)


def test_hidden_states_and_attentions_come_back_on_request():
    model = make_model()
    model.set_attn_implementation("eager")
    batch = BERT.batch()
    output = model(**batch, output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == LAYERS + 1
    assert len(output.attentions) == LAYERS
    assert output.attentions[0].shape == (5, 2, 12, 12)
    torch.testing.assert_close(output.loss, model(**batch).loss)
    assert "hidden_states" not in model(**batch)


def test_a_checkpoint_opens_with_its_ties_and_a_trained_but_frozen_pooler(tmp_path):
    encoder = BertModel(BERT.config())
    torch.nn.init.normal_(encoder.pooler.dense.bias)
    encoder.save_pretrained(tmp_path / "encoder")
    CondenserForPreTraining.from_encoder(str(tmp_path / "encoder")).save_pretrained(tmp_path)
    opened = CondenserForPreTraining.from_pretrained(tmp_path)
    assert opened.lm_head.predictions.decoder.bias is opened.lm_head.predictions.bias
    pooler = opened.condenser.encoder.pooler.dense
    assert torch.equal(pooler.weight, encoder.pooler.dense.weight)
    assert not (pooler.weight.requires_grad or pooler.bias.requires_grad)


def test_a_checkpoint_with_its_head_opens_wherever_accelerate_would_put_it(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    opened = CondenserForPreTraining.from_pretrained(tmp_path, device_map="auto")
    assert len({weight.device for weight in opened.parameters()}) == 1
    batch = BERT.batch()
    torch.testing.assert_close(opened.train()(**batch).loss, model(**batch).loss)


def test_the_weights_have_one_type_whatever_the_encoders_configuration_says(tmp_path):
    encoder = BERT.config(dtype="bfloat16")
    for model_class in (CondenserForMaskedLM, CondenserForPreTraining):
        made = model_class(CondenserConfig(encoder_config=encoder))
        assert {weight.dtype for weight in made.parameters()} == {torch.float32}
    made.bfloat16().save_pretrained(tmp_path)
    opened = CondenserForPreTraining.from_pretrained(tmp_path)
    assert {weight.dtype for weight in opened.parameters()} == {torch.bfloat16}
    start = CondenserForPreTraining.from_encoder(opened)
    assert {weight.dtype for weight in start.parameters()} == {torch.float32}


def test_the_tokenizer_is_that_of_the_revision(loopback_hub, tmp_path, texts):
    model, commits = make_model().float(), []
    for n_texts in (3, 200):
        model.save_pretrained(tmp_path / "checkpoint")
        BERT.tokenizer(texts[:n_texts]).save_pretrained(tmp_path / "checkpoint")
        commits.append(loopback_hub.put(tmp_path / "checkpoint", "owner/checkpoint"))
    sizes = []
    for revision in (*commits, None):
        opened = CondenserForPreTraining.from_pretrained("owner/checkpoint", revision=revision)
        opened.save_encoder(tmp_path / f"{revision}")
        sizes.append(len(AutoTokenizer.from_pretrained(tmp_path / f"{revision}")))
    assert sizes[0] < sizes[1] == sizes[2]


def test_the_tokenizer_is_that_of_the_subfolder(tmp_path, texts):
    for name, n_texts in (("", 3), ("sub", 200)):
        make_model().float().save_pretrained(tmp_path / name)
        BERT.tokenizer(texts[:n_texts]).save_pretrained(tmp_path / name)
    opened = CondenserForPreTraining.from_pretrained(tmp_path, subfolder="sub")
    assert len(find_tokenizer(opened)) == len(BERT.tokenizer(texts[:200]))


def test_an_output_matrix_of_its_own_is_kept_whatever_the_configuration_says(tmp_path, caplog):
    plain = BertForMaskedLM(BERT.config(tie_word_embeddings=False)).eval()
    torch.nn.init.normal_(plain.cls.predictions.decoder.bias)
    plain.config.tie_word_embeddings = True
    plain.save_pretrained(tmp_path / "plain")
    batch = BERT.batch()
    del batch["labels"]
    expected = plain(**batch).logits
    for start in (str(tmp_path / "plain"), plain):
        model = CondenserForPreTraining.from_encoder(start).eval()
        torch.testing.assert_close(model(**batch).logits, expected)
    assert caplog.text.count("tie_word_embeddings is now false") == 2
    model.save_pretrained(tmp_path / "checkpoint")
    for again in (str(tmp_path / "checkpoint"), model):
        other = CondenserForPreTraining.from_encoder(again).eval()
        torch.testing.assert_close(other(**batch).logits, expected)


def test_weights_of_an_encoder_that_are_not_read_are_named(tmp_path, caplog):
    plain = BertForMaskedLM(BERT.config())
    plain.save_pretrained(tmp_path)
    CondenserForPreTraining.from_encoder(str(tmp_path))
    assert "not read" not in caplog.text
    CondenserForPreTraining.from_encoder(str(tmp_path), config_changes={"num_hidden_layers": 2})
    assert (
        "weights of" in caplog.text and "are not read, such as bert.encoder.layer.2" in caplog.text
    )


@pytest.mark.parametrize("name", ["BERT", "ModernBERT", "DistilBERT", "ELECTRA"])
def test_a_configuration_that_asks_for_tuples_changes_nothing(name):
    config = BACKBONES[name].config(return_dict=False)
    model = CondenserForPreTraining(CondenserConfig(encoder_config=config))
    assert torch.isfinite(model(**BACKBONES[name].batch()).loss)


def test_what_would_go_wrong_in_silence_is_refused(tmp_path):
    model = make_model()
    with pytest.raises(ValueError, match="save first, and use `condenser push`"):
        model.save_pretrained(tmp_path, push_to_hub=True)
    with pytest.raises(ValueError, match="drives several GPUs .*torchrun"):
        model._replicate_for_data_parallel()(**BERT.batch())


def test_a_checkpoint_with_missing_backbone_weights_is_refused(tmp_path):
    make_model().float().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["condenser.encoder.encoder.layer.0.output.dense.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="1 weights are missing.*layer.0.output.dense"):
        CondenserForPreTraining.from_pretrained(tmp_path)


def test_a_head_of_another_length_is_refused(tmp_path):
    make_model(n_head_layers=2).float().save_pretrained(tmp_path)
    for n_layers, message in ((1, "are unexpected .*head.1"), (3, "or a shorter one .*head.2")):
        with pytest.raises(ValueError, match=message):
            CondenserForPreTraining.from_pretrained(tmp_path, n_head_layers=n_layers)
    assert CondenserForMaskedLM.from_pretrained(tmp_path)  # has none


def test_a_condenser_checkpoint_is_a_start_whose_head_is_new(tmp_path):
    model = make_model(n_head_layers=1).float()
    model.save_pretrained(tmp_path)
    other = CondenserForPreTraining.from_encoder(str(tmp_path), n_head_layers=1)
    found = other.state_dict()
    for name, tensor in model.state_dict().items():
        if not name.startswith("head.") or tensor.dim() > 1:
            assert torch.equal(found[name], tensor) != name.startswith("head."), name
    assert type(CondenserForMaskedLM.from_encoder(str(tmp_path))) is CondenserForMaskedLM
