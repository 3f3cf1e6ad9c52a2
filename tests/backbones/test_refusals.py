"""What no Condenser can be built on is refused, with the reason, before weights are loaded."""

from pathlib import Path

import pytest
from transformers import (
    BartConfig,
    BertConfig,
    ConvNextConfig,
    DebertaV2ForMaskedLM,
    FNetConfig,
    GPT2Config,
    PreTrainedConfig,
    T5Config,
    ViTConfig,
)

from modeling_condenser import (
    CondenserConfig,
    condenser_from_encoder,
    masked_lm_from_encoder,
)
from tests.backbones.encoders import BACKBONES

LOCAL = ["sliding_attention"] * 4
MISFITS = {
    "an encoder-decoder": (T5Config(), "'t5': it is an encoder-decoder"),
    "an encoder-decoder with a masked-LM class": (BartConfig(), "'bart': it is an encoder-decoder"),
    "a decoder": (GPT2Config(), "'gpt2': it has no masked-LM class; decoders"),
    "an encoder set to decode": (
        BertConfig(is_decoder=True),
        "'bert': is_decoder=True, but a Condenser attends to both sides: set is_decoder=False",
    ),
    "a vision model": (ViTConfig(), "'vit': it has no vocabulary"),
    "a convolutional network": (ConvNextConfig(), "'convnext': it has no vocabulary"),
    "an encoder that was not proven": (
        FNetConfig(),
        "'fnet': it is not among the encoders that were proven, albert, bert, .*SUPPORTED_ENCODERS",
    ),
    "a backbone without layers": (
        BertConfig(num_hidden_layers=0),
        "'bert': it has no layers to split .num_hidden_layers is 0",
    ),
    "layers that are several": (
        BACKBONES["ALBERT"].config(inner_group_num=2),
        "'albert': each of its layers is 2 .inner_group_num.*must be 1",
    ),
    "local attention alone": (
        BACKBONES["ModernBERT"].config(layer_types=LOCAL),
        "'modernbert': none of its layers .layer_types. attends to a whole block",
    ),
    "an LM head that is no layer": (
        BACKBONES["DeBERTa-v3"].config(legacy=False),
        "'deberta-v2': its LM head with legacy=False .*legacy=True",
    ),
}


@pytest.mark.parametrize(("config", "message"), MISFITS.values(), ids=MISFITS)
def test_an_encoder_that_does_not_fit_is_refused_with_the_reason(
    config: PreTrainedConfig, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"Cannot build a Condenser .*{message}"):
        CondenserConfig(encoder_config=config)
    config.save_pretrained(tmp_path)  # without weights, which nobody asks for
    for start in (condenser_from_encoder, masked_lm_from_encoder):
        with pytest.raises(ValueError, match=message):
            start(str(tmp_path))


def test_the_remedy_of_a_refusal_works(tmp_path: Path) -> None:
    DebertaV2ForMaskedLM(BACKBONES["DeBERTa-v3"].config(legacy=False)).save_pretrained(tmp_path)
    model = condenser_from_encoder(str(tmp_path), config_changes={"legacy": True})
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_a_change_of_what_an_encoder_does_not_have_is_refused(tmp_path: Path) -> None:
    BACKBONES["DistilBERT"].config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'hidden_dropout_prob', which .* distilbert .*not have"):
        condenser_from_encoder(str(tmp_path), config_changes={"hidden_dropout_prob": 0.0})


@pytest.mark.parametrize("title", BACKBONES)
def test_a_split_outside_the_backbone_is_refused(title: str) -> None:
    with pytest.raises(ValueError, match="skip_from is 5, but the backbone has 4 layers"):
        CondenserConfig(encoder_config=BACKBONES[title].config(), skip_from=5)
