"""Which encoders a Condenser can be built on, and what is said about the others."""

import re
from pathlib import Path

import pytest
from transformers import BertConfig, DebertaV2ForMaskedLM, FNetConfig, PreTrainedConfig

from modeling_condenser import CondenserConfig, condenser_from_encoder
from modeling_condenser.configuration_condenser import SUPPORTED_ENCODERS
from tests.backbones.encoders import BACKBONES

DOCS = Path(__file__).parents[2] / "docs" / "pretraining.md"


def test_the_encoders_of_these_tests_are_those_that_are_accepted_and_those_of_the_docs() -> None:
    [table] = re.findall(r"<!-- encoders -->\n(.*?)\n<!-- /encoders -->", DOCS.read_text(), re.S)
    rows = [[cell.strip(" `") for cell in row.split("|")[1:3]] for row in table.splitlines()[2:]]
    assert rows == [[b.title, b.config_class.model_type] for b in BACKBONES.values()]
    assert sorted({model_type for _, model_type in rows}) == list(SUPPORTED_ENCODERS)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (FNetConfig(), "'fnet': it is not supported; supported: albert, bert, "),
        (BertConfig(is_decoder=True), "set is_decoder=False"),
        (BACKBONES["DeBERTa-v3"].config(legacy=False), "legacy=True"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused_before_its_weights_are_loaded(
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
    with pytest.raises(ValueError, match="'hidden_dropout'.*deberta-v2"):
        condenser_from_encoder(str(tmp_path), config_changes={"hidden_dropout": 0.0})
