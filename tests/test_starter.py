"""The encoder that comes with the package: as stored, and where it is accepted."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM

from modeling_condenser.files.models import resolve_encoder_name
from modeling_condenser.publishing.provenance import read_provenance
from modeling_condenser.publishing.push import find_refusals
from modeling_condenser.retrieval.systems import parse_system
from tests.publishing.making import plain_vectors

FOLDER = Path(resolve_encoder_name("starter"))


@torch.no_grad()
def test_the_stored_encoder_opens_completely_and_predicts_a_word():
    assert (FOLDER / "model.safetensors").stat().st_size <= 14_000_000
    model, info = AutoModelForMaskedLM.from_pretrained(FOLDER, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert (type(model), model.dtype) == (BertForMaskedLM, torch.float32)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (4, 256)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert len(tokenizer) == 12_288 and tokenizer.model_max_length == 512
    text = "He was born in the United [MASK] of America."
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert (ids[0, 0], ids[0, -1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    [place] = (ids[0] == tokenizer.mask_token_id).nonzero()[0].tolist()
    logits = model.eval()(input_ids=ids).logits
    assert tokenizer.decode(logits[0, place].argmax()) == "states"


def test_the_stored_card_names_no_machine_and_its_code_and_name_work_everywhere(
    tmp_path, monkeypatch
):
    assert find_refusals(FOLDER) == []
    card = (FOLDER / "README.md").read_text()
    assert "license: cc-by-sa-3.0" in card
    tokens = sum(stage.run["tokens_seen"] for stage in read_provenance(FOLDER))
    assert f"saw {tokens / 1e6:,.1f} million tokens" in card
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in card.split("```python\n")[1:]:
        exec(compile(block.partition("```")[0], "README.md", "exec"), names)
    text = "what is the capital of Norway"  # of which the code makes `vectors`
    system: Any = parse_system("starter,pooling=cls")
    of_system = system.open().encode_queries([text])
    of_sentence_transformers = names["model"].encode([text])
    for found in (names["vectors"], of_system, of_sentence_transformers):
        np.testing.assert_allclose(found, plain_vectors(FOLDER, [text]).numpy(), atol=1e-4)
