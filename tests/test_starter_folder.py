"""The encoder that comes with the package, as it is stored."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.publishing.contents import find_refusals
from modeling_condenser.repository.checks import card_problems
from modeling_condenser.repository.provenance import read_provenance


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(resolve_encoder_name("starter"))


def test_both_views_open_whole_and_in_float32(folder: Path) -> None:
    views: list[Any] = [
        AutoModel.from_pretrained(folder, add_pooling_layer=False, output_loading_info=True),
        AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True),
    ]
    for model, info in views:
        assert not info["missing_keys"]
        assert model.dtype == torch.float32
        assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())
        assert (model.config.num_hidden_layers, model.config.hidden_size) == (4, 256)
        assert model.config.max_position_embeddings == 512
    assert (folder / "model.safetensors").stat().st_size <= 14_000_000


def test_it_predicts_a_word(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == 12_288 and tokenizer.model_max_length == 512
    text = "He was born in the United [MASK] of America."
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert (ids[0, 0], ids[0, -1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(folder).eval()(input_ids=ids).logits
    position = (ids[0] == tokenizer.mask_token_id).nonzero().item()
    assert tokenizer.decode(logits[0, position].argmax()) == "states"


def test_the_card_is_complete_and_names_no_machine(folder: Path) -> None:
    assert card_problems(folder) == []
    assert find_refusals({file.name: file for file in folder.iterdir()}) == []
    card = (folder / "README.md").read_text()
    assert "license: cc-by-sa-3.0" in card
    stages = read_provenance(folder)
    tokens = sum(stage.run["tokens_seen"] for stage in stages)
    assert f"saw {tokens / 1e6:,.1f} million tokens" in card
    assert all(stage.recipe["objective"] == "mlm" for stage in stages)
