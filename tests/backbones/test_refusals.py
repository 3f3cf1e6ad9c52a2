"""An encoder that no Condenser can be built on is refused before its weights are loaded."""

from pathlib import Path

import pytest
from transformers import (
    BartConfig,
    BertConfig,
    DebertaV2ForMaskedLM,
    FNetConfig,
    GPT2Config,
    PreTrainedConfig,
    ViTConfig,
)

from modeling_condenser import CondenserConfig, condenser_from_encoder
from tests.backbones.encoders import BACKBONES

MISFITS = {
    "an encoder-decoder": (BartConfig(), "encoder-decoder"),
    "a decoder": (GPT2Config(), "no masked-LM class"),
    "an encoder set to decode": (BertConfig(is_decoder=True), "set is_decoder=False"),
    "a vision model": (ViTConfig(), "'vit'"),
    "an unsupported encoder": (FNetConfig(), "not supported; supported: albert, bert, "),
    "a backbone without layers": (BertConfig(num_hidden_layers=0), "num_hidden_layers is 0"),
    "several layers in one": (BACKBONES["ALBERT"].config(inner_group_num=2), "must be 1"),
    "local attention alone": (
        BACKBONES["ModernBERT"].config(layer_types=["sliding_attention"] * 4),
        "layer_types",
    ),
    "an LM head of another kind": (BACKBONES["DeBERTa-v3"].config(legacy=False), "legacy=True"),
}


@pytest.mark.parametrize(("config", "message"), MISFITS.values(), ids=MISFITS)
def test_an_encoder_that_does_not_fit_is_refused_with_the_reason(
    config: PreTrainedConfig, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"Cannot build a Condenser .*{message}"):
        CondenserConfig(encoder_config=config)
    config.save_pretrained(tmp_path)  # without weights, which are not looked for
    with pytest.raises(ValueError, match=message):
        condenser_from_encoder(str(tmp_path))


def test_the_remedy_of_a_refusal_works(tmp_path: Path) -> None:
    DebertaV2ForMaskedLM(BACKBONES["DeBERTa-v3"].config(legacy=False)).save_pretrained(tmp_path)
    model = condenser_from_encoder(str(tmp_path), config_changes={"legacy": True})
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_a_change_of_an_attribute_that_the_encoder_does_not_have_is_refused(tmp_path: Path) -> None:
    BACKBONES["DistilBERT"].config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'hidden_dropout_prob'.*distilbert"):
        condenser_from_encoder(str(tmp_path), config_changes={"hidden_dropout_prob": 0.0})
