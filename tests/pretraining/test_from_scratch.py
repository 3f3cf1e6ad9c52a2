"""Encoders with random weights: what `encoder_config` of a recipe and scripts start from."""

import json

import pytest
import torch
from transformers import AutoModel, AutoTokenizer, BertModel, set_seed

from modeling_condenser import (
    CondenserForMaskedLM,
    CondenserForPreTraining,
    CondenserTrainer,
    CondenserTrainingArguments,
    analyze,
)
from modeling_condenser.analysis.callback import readiness_callbacks
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.publishing.card import write_card
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.publishing.provenance import read_provenance
from modeling_condenser.warm_start import new_encoder
from tests.backbones.encoders import BACKBONES
from tests.pretraining.short_runs import SETTINGS

SMALL = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}


@pytest.fixture
def scratch(settings, bert_folder, tmp_path):
    """The settings of a run from random weights, with the tokenizer in a folder of its own."""
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path / "tokenizer")
    del settings["encoder"], settings["encoder_changes"]
    changes = {"encoder_config": SMALL, "tokenizer": str(tmp_path / "tokenizer"), "seed": 7}
    return {**settings, **changes, "objective": "mlm"}


def test_an_encoder_config_starts_from_the_random_weights_of_the_seed(scratch, tmp_path):
    file = tmp_path / "small.json"
    file.write_text(json.dumps(SMALL))
    measured = {**scratch, "encoder_config": str(file), "max_steps": 1, "readiness": {"texts": 4}}
    model = pretrain(**measured, language="fr", callbacks=readiness_callbacks(measured))
    untrained = {**scratch, "max_steps": 1, "learning_rate": 0.0, "output_dir": str(tmp_path / "0")}
    start = CondenserForMaskedLM.from_pretrained(pretrain(**untrained))
    set_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(scratch["tokenizer"])
    expected = new_encoder(SMALL, tokenizer)
    assert start.config.encoder_config.vocab_size == len(tokenizer)
    for name, weight in expected.bert.named_parameters():
        assert torch.equal(start.condenser.encoder.get_parameter(name), weight)
    for name, weight in expected.cls.named_parameters():
        assert torch.equal(start.lm_head.get_parameter(name), weight)
    [stage] = read_provenance(model)
    table = analyze(models=[str(tmp_path / "run")], out=str(tmp_path / "analysis"), texts=4)
    assert str(model) in table.columns  # its corpus is known
    assert stage.recipe["encoder_config"] == SMALL and "encoder" not in stage.recipe
    encoder = export_encoder(tmp_path / "run", tmp_path / "encoder")
    assert isinstance(AutoModel.from_pretrained(encoder), BertModel)
    write_card(encoder)
    card = (encoder / "README.md").read_text()
    assert "\nlanguage: fr\n" in card or "\nlanguage:\n- fr\n" in card
    assert "trained from random weights" in card and "| started from | random weights |" in card


def test_a_script_that_starts_from_a_model_in_memory_records_no_origin(texts, tmp_path):
    tokenizer = BACKBONES["BERT"].tokenizer(texts)
    in_memory = new_encoder(SMALL, tokenizer)
    in_memory.config.name_or_path = "owner/name"  # as of `from_config` of a published configuration
    model = CondenserForPreTraining.from_encoder(in_memory)
    arguments = CondenserTrainingArguments(
        tmp_path / "run", **{**SETTINGS, "save_strategy": "steps"}
    )
    CondenserTrainer(model, arguments, train_dataset=texts, processing_class=tokenizer).train()
    encoder = export_encoder(tmp_path / "run", tmp_path / "encoder")
    [stage] = read_provenance(encoder)
    assert stage.recipe["encoder"] == "a model in memory"
    assert "encoder_config" not in stage.recipe
    card = (encoder / "README.md").read_text()
    assert "started from a model in memory (its origin is not recorded) and pre-trained" in card
    assert "owner/name" not in card and "random weights" not in card


def test_special_tokens_of_a_new_encoder_are_those_of_its_tokenizer(texts):
    tokenizer = BACKBONES["BERT"].tokenizer(texts)
    settings = {**SMALL, "model_type": "modernbert", "vocab_size": 1024}
    config = new_encoder(settings, tokenizer).config
    assert (config.vocab_size, config.pad_token_id) == (1024, tokenizer.pad_token_id)
    assert config.cls_token_id == tokenizer.cls_token_id != 50281
    assert config.bos_token_id is None and tokenizer.bos_token_id is None


def test_a_published_configuration_is_taken_without_what_is_no_more(texts, caplog):
    tokenizer = BACKBONES["BERT"].tokenizer(texts)
    file = {**SMALL, "gradient_checkpointing": False, "architectures": ["BertForMaskedLM"]}
    with pytest.raises(ValueError, match="no attribute 'gradient_checkpointing'"):
        new_encoder(file, tokenizer)
    config = new_encoder({**file, "transformers_version": "4.6.0"}, tokenizer).config
    assert config.hidden_size == SMALL["hidden_size"]
    rotary = {**SMALL, "model_type": "modernbert", "global_rope_theta": 7e4}
    parameters = new_encoder(rotary, tokenizer).config.rope_parameters
    assert parameters["full_attention"]["rope_theta"] == 7e4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "starter"}, "Set encoder, .* or encoder_config"),
        ({"tokenizer": None}, "encoder_config needs a tokenizer"),
        ({"encoder_changes": {"hidden_dropout_prob": 0.0}}, "in encoder_config, and leave it out"),
        ({"encoder_config": {"hidden_size": 16}}, "model_type None; supported: albert, bert"),
        ({"encoder_config": {**SMALL, "hiden_size": 8}}, "no attribute 'hiden_size'. Did you mean"),
        ({"encoder_config": "missing.json"}, "'missing.json', expected a mapping or a JSON file"),
        ({"base_learning_rate": 5e-5}, "base_learning_rate is for a trained encoder"),
    ],
)
def test_what_does_not_fit_an_encoder_config_is_refused(scratch, tmp_path, changes, message):
    if "base_learning_rate" in changes:
        del scratch["learning_rate"]
    with pytest.raises(ValueError, match=message):
        pretrain(**{**scratch, **changes})
    assert not (tmp_path / "run").exists()
