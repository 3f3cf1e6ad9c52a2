"""CondenserConfig: what it accepts, refuses, and keeps through a file."""

import json

import pytest
from transformers import AutoConfig, BertConfig, RobertaConfig

from modeling_condenser import CondenserConfig


def test_defaults_are_the_papers():
    config = CondenserConfig()
    assert (config.n_head_layers, config.skip_from, config.late_mlm) == (2, 6, True)
    assert config.encoder_config.model_type == "bert"


def test_a_saved_config_comes_back_equal_through_the_auto_class(tmp_path):
    encoder = RobertaConfig(num_hidden_layers=5, vocab_size=77)
    config = CondenserConfig(encoder_config=encoder, n_head_layers=1, late_mlm=False)
    config.save_pretrained(tmp_path)
    opened = AutoConfig.from_pretrained(tmp_path)
    saved, read = config.to_dict(), opened.to_dict()
    del saved["_name_or_path"], read["_name_or_path"]
    assert read == saved
    assert isinstance(opened.encoder_config, RobertaConfig)
    assert (opened.vocab_size, opened.skip_from) == (77, 2)


@pytest.mark.parametrize("skip_from", [-1, 13])
def test_skip_from_outside_the_backbone_is_refused_with_the_range(skip_from):
    with pytest.raises(ValueError, match=rf"skip_from is {skip_from}.*0 .*12"):
        CondenserConfig(skip_from=skip_from)


@pytest.mark.parametrize("depth", [0, -2])
def test_a_head_without_layers_is_refused(depth):
    with pytest.raises(ValueError, match=f"n_head_layers is {depth}.*at least one"):
        CondenserConfig(n_head_layers=depth)


def test_an_unknown_argument_is_refused_and_the_nearest_offered():
    with pytest.raises(ValueError, match=r"'skip_form'.*'skip_from'"):
        CondenserConfig(skip_form=2)
    with pytest.raises(ValueError, match="hidden_size.*encoder_config"):
        CondenserConfig(hidden_size=32)


def test_a_misspelt_field_in_a_file_is_refused_but_a_librarys_attribute_is_kept(tmp_path):
    CondenserConfig(encoder_config=BertConfig(num_hidden_layers=2)).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "use_cache": False}))
    assert CondenserConfig.from_pretrained(tmp_path).use_cache is False
    file.write_text(json.dumps({**content, "n_head_layer": 4}))
    with pytest.raises(ValueError, match=r"'n_head_layer'.*'n_head_layers'"):
        CondenserConfig.from_pretrained(tmp_path)


def test_an_encoder_config_of_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="no model_type"):
        CondenserConfig(encoder_config={"hidden_size": 8})


def test_the_config_of_another_model_is_refused_with_the_remedy(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'bert'.*from_encoder"):
        CondenserConfig.from_pretrained(tmp_path)
