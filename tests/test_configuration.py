"""CondenserConfig: what it accepts, refuses, and keeps through a file."""

import runpy

import pytest
from transformers import AutoConfig, PreTrainedConfig, RobertaConfig

from modeling_condenser import CondenserConfig, configuration_condenser


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"skip_from": 13}, r"skip_from is 13.*0 .*12"),
        ({"n_head_layers": 0}, "n_head_layers is 0.*at least one"),
        ({"skip_from": 0.5}, "skip_from is 0.5, expected a whole number"),
        ({"head_mlm_probability": 1.5}, "head_mlm_probability is 1.5.*between 0 and 1"),
        ({"head_mlm_probability": 0.5, "skip_from": 3}, "leave skip_from out"),
        ({"skip_form": 2}, "no argument 'skip_form'.*skip_from"),
        ({"hidden_size": 32}, "hidden_size.*encoder_config"),
        ({"encoder_config": {"hidden_size": 8}}, "no model_type"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CondenserConfig(**settings)


def test_transformers_before_5_4_is_refused(monkeypatch):
    monkeypatch.delattr(PreTrainedConfig, "__post_init__")
    with pytest.raises(ImportError, match="a Condenser needs 5.4 or later"):
        runpy.run_path(configuration_condenser.__file__)


@pytest.mark.parametrize("changes", [{"skip_from": 99}, {"pooling": "max"}])
def test_a_change_of_an_opened_file_is_checked(tmp_path, changes):
    CondenserConfig().save_pretrained(tmp_path)
    assert CondenserConfig.from_pretrained(tmp_path, skip_from=3).skip_from == 3
    part = {"hidden_dropout_prob": 0.0}
    encoder = CondenserConfig.from_pretrained(tmp_path, encoder_config=part).encoder_config
    assert (encoder.hidden_dropout_prob, encoder.model_type) == (0.0, "bert")
    with pytest.raises(ValueError, match=next(iter(changes))):
        CondenserConfig.from_pretrained(tmp_path, **changes)


def test_a_file_with_a_misspelt_field_or_of_another_model_is_refused():
    content = CondenserConfig().to_dict()
    CondenserConfig.from_dict({**content, "use_cache": False})  # an attribute of the library
    with pytest.raises(ValueError, match="no argument 'n_head_layer'.*n_head_layers"):
        CondenserConfig.from_dict({**content, "n_head_layer": 4})
    with pytest.raises(ValueError, match="'bert'.*from_encoder"):
        CondenserConfig.from_dict({**content, "model_type": "bert"})
