"""A Condenser on every encoder: started from it, saved, opened, resized, exported."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, set_seed

from modeling_condenser import (
    CondenserConfig,
    CondenserForMaskedLM,
    CondenserForPreTraining,
)
from modeling_condenser.configuration_condenser import SUPPORTED_ENCODERS
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.pretraining.examples import check_fit
from modeling_condenser.pretraining.trainer import CondenserTrainer
from modeling_condenser.publishing.export import export_encoder
from tests.backbones.encoders import BACKBONES, VOCABULARY
from tests.backbones.two_encoders import our_name

DOCS = Path(__file__).parents[2] / "docs" / "pretraining.md"
SENTENCES = ["The glacier visits Oslo.", "Why?", "A violin measures the old orchard near Kyoto."]


def tokenized(folder: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer(SENTENCES, padding=True, return_tensors="pt", return_token_type_ids=False)


def test_new_heads_are_drawn_as_the_encoders_own_classes_draw_them(backbone):
    """The same biases and norms, and weights of the same spread."""
    set_seed(0)
    config = backbone.config(hidden_size=64)
    model = CondenserForPreTraining(CondenserConfig(encoder_config=config, n_head_layers=3))
    like = dict(model.condenser.global_layer.named_parameters())
    for layer in model.head:
        assert type(layer) is type(model.condenser.layers[-1])
        assert_drawn_alike(dict(layer.named_parameters()), like)
    # ALBERT's are apart from each other, unlike those of its backbone.
    assert len({p.data_ptr() for p in model.head.parameters()}) == 3 * len(like)

    plain = AutoModelForMaskedLM.from_config(config)
    expected = {
        our_name(plain, name): parameter
        for name, parameter in plain.named_parameters(remove_duplicate=False)
    }
    lm_head = {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name.startswith("lm_head.")
    }
    assert_drawn_alike(lm_head, {name: expected[name] for name in lm_head})


def assert_tied(model: Any) -> None:
    """That the LM head projects to the embeddings, unless the configuration says otherwise."""
    output, embeddings = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert (output is embeddings) == model.config.tie_word_embeddings


def assert_drawn_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        if parameter.std() == 0:
            assert torch.equal(found[name], parameter), name
        else:
            assert 0.9 < found[name].std() / parameter.std() < 1.1, name
            assert not torch.equal(found[name], parameter), name


def test_a_checkpoint_has_the_models_own_names_as_a_resumed_training_reads_it(backbone, tmp_path):
    model = CondenserForPreTraining(CondenserConfig(encoder_config=backbone.config()))
    model.save_pretrained(tmp_path)
    result = model.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    CondenserTrainer._issue_warnings_after_load(SimpleNamespace(model=model), result)  # type: ignore[arg-type]


@torch.no_grad()
def test_a_model_starts_as_the_encoder_and_keeps_every_weight_and_tie_when_saved(folder, tmp_path):
    plain = AutoModelForMaskedLM.from_pretrained(folder).eval()
    model = CondenserForPreTraining.from_encoder(str(folder), n_head_layers=3, skip_from=1).eval()
    batch = tokenized(folder)
    expected, found = plain(**batch, output_hidden_states=True), model(**batch)
    late, early, output = model.encode(**batch, output_hidden_states=True)
    assert len(output.hidden_states) == plain.config.num_hidden_layers + 1
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-5)
    for one, other in ((early, expected.hidden_states[1]), (late, expected.hidden_states[-1])):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)

    model.save_pretrained(tmp_path)
    opened, info = CondenserForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    state = opened.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, state[n]) for n, tensor in model.state_dict().items())
    assert_tied(opened)
    assert torch.equal(opened.eval()(**batch).head_logits, found.head_logits)
    masked_lm = CondenserForMaskedLM.from_pretrained(tmp_path).eval()
    assert torch.equal(masked_lm(**batch).logits, found.logits)


def test_a_checkpoint_without_a_head_is_refused_unless_a_new_one_is_asked_for(folder, tmp_path):
    CondenserForMaskedLM.from_encoder(str(folder)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no Condenser head.*new_head=True"):
        CondenserForPreTraining.from_pretrained(tmp_path)
    model = CondenserForPreTraining.from_pretrained(tmp_path, new_head=True)
    assert torch.isfinite(model(**tokenized(folder)).head_logits).all()
    for name, parameter in model.named_parameters():
        if name.startswith("head") and parameter.dim() == 1:
            assert parameter.eq(1.0 if name.endswith("weight") else 0.0).all(), name


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}])
def test_resizing_the_vocabulary_keeps_ties_and_old_predictions(backbone, changes, tmp_path):
    set_seed(0)
    encoder = backbone.config(**changes)
    model = CondenserForPreTraining(CondenserConfig(encoder_config=encoder)).eval()
    batch = backbone.batch()
    model(**batch).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    batch["input_ids"] = batch["input_ids"].clamp(max=VOCABULARY - 9)
    del batch["labels"]
    before, kept = model(**batch), VOCABULARY - 8
    for size in (VOCABULARY + 8, kept):
        model.resize_token_embeddings(size)
        after = model(**batch)
        assert model.config.vocab_size == model.config.encoder_config.vocab_size == size
        for name in ("head_logits", "logits"):
            assert after[name].shape[-1] == size
            torch.testing.assert_close(after[name][..., :kept], before[name][..., :kept])
        assert_tied(model)
        sizes = {len(p) for name, p in model.state_dict().items() if name.endswith("bias")}
        assert VOCABULARY not in sizes and (size in sizes or not sizes)
    model.save_pretrained(tmp_path)
    opened = CondenserForPreTraining.from_pretrained(tmp_path).eval()
    assert torch.equal(opened(**batch).head_logits, after["head_logits"])


@torch.no_grad()
def test_the_export_is_the_plain_encoder_bit_for_bit_and_all_ways_to_encode_give_its_cls_vectors(
    backbone, folder, tmp_path
):
    set_seed(0)
    model = CondenserForPreTraining.from_encoder(str(folder), n_head_layers=1).eval()
    for name, parameter in model.named_parameters():
        if "pooler" not in name:
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "checkpoint")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "checkpoint")
    exported = export_encoder(tmp_path / "checkpoint", tmp_path / "exported")
    config = json.loads((exported / "config.json").read_text())
    assert config["model_type"] == backbone.model_type
    assert "auto_map" not in config
    plain, info = AutoModel.from_pretrained(exported, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    batch = tokenized(exported)
    late, _, output = model.encode(**batch, output_hidden_states=True)
    found = plain.eval()(**batch, output_hidden_states=True)
    assert torch.equal(found.last_hidden_state, late)
    pairs = zip(found.hidden_states, output.hidden_states, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    # An untrained pooler is the identity, and none is added.
    has_pooler = getattr(AutoModel.from_config(plain.config), "pooler", None) is not None
    assert ("pooler_output" in found) == has_pooler
    if has_pooler:
        torch.testing.assert_close(found.pooler_output, torch.tanh(late[:, 0]), rtol=0, atol=1e-6)

    sentences = SentenceTransformer(str(exported), device="cpu")
    retriever = Retriever(str(exported), device="cpu")
    passages = Dataset.from_dict({"title": [""] * 3, "text": SENTENCES})
    for vectors in (
        sentences.encode(SENTENCES),
        retriever.encode_queries(SENTENCES),
        retriever.encode_passages(passages),
    ):
        np.testing.assert_allclose(vectors, late[:, 0].numpy(), rtol=0, atol=1e-5)


def test_the_encoders_of_these_tests_are_those_that_are_accepted_and_those_of_the_docs():
    [table] = re.findall(r"<!-- encoders -->\n(.*?)\n<!-- /encoders -->", DOCS.read_text(), re.S)
    rows = [[cell.strip(" `") for cell in row.split("|")[1:3]] for row in table.splitlines()[2:]]
    assert rows == [[b.title, b.model_type] for b in BACKBONES.values()]
    assert sorted({model_type for _, model_type in rows}) == list(SUPPORTED_ENCODERS)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.FNetConfig(), "'fnet': it is not supported; supported: albert, bert, "),
        (transformers.GPT2Config(), "'gpt2': it is a decoder"),
        (transformers.BertConfig(is_decoder=True), "set is_decoder=False"),
        (BACKBONES["DeBERTa-v3"].config(legacy=False), "legacy=True"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused_before_its_weights_are_loaded(
    config, message, tmp_path
):
    with pytest.raises(ValueError, match=f"Cannot build a Condenser .*{message}"):
        CondenserConfig(encoder_config=config)
    config.save_pretrained(tmp_path)  # without weights, which are not looked for
    with pytest.raises(ValueError, match=f"Cannot build a Condenser .*{message}"):
        CondenserForPreTraining.from_encoder(str(tmp_path))


@pytest.mark.parametrize(
    ("title", "model_class", "changes"),
    [
        ("ELECTRA", transformers.ElectraForPreTraining, {}),
        # Its LM head reads embeddings and is untrained; a new one starts, as the refusal says.
        ("DeBERTa-v3", transformers.DebertaV2ForMaskedLM, {"legacy": True}),
    ],
)
def test_a_discriminator_gets_an_lm_head_tied_to_its_embeddings(
    title, model_class, changes, tmp_path
):
    plain = model_class(BACKBONES[title].config(**dict.fromkeys(changes, False)))
    plain.save_pretrained(tmp_path)
    model = CondenserForPreTraining.from_encoder(str(tmp_path), config_changes=changes)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert all(p.eq(0).all() for n, p in model.lm_head.named_parameters() if n.endswith("bias"))
    state = model.condenser.encoder.state_dict()
    weights = plain.base_model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in weights.items())
    with pytest.raises(ValueError, match="'hidden_drop'.*"):
        CondenserForPreTraining.from_encoder(str(tmp_path), config_changes={"hidden_drop": 0.0})


def test_a_tokenizer_with_another_padding_token_is_refused(folder, texts):
    """RoBERTa and its kin pad with 1 and count positions from behind it; BERT's pads with 0."""
    model = CondenserForPreTraining.from_encoder(str(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    check_fit(tokenizer, model, 64)
    with pytest.raises(ValueError, match="max_length is 65"):
        check_fit(tokenizer, model, 65)
    other = BACKBONES["BERT" if tokenizer.pad_token_id else "RoBERTa"].tokenizer(texts)
    model.resize_token_embeddings(1000)
    with pytest.raises(ValueError, match="pads with"):
        check_fit(other, model, 64)
