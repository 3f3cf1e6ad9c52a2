"""The encoder that comes with the package: as stored, where it is accepted, how it is made."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM

from benchmarks.make_starter import make_starter
from benchmarks.starter_validation import make_batches, measure
from modeling_condenser import CondenserForMaskedLM
from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.hub.provenance import read_provenance
from modeling_condenser.hub.push import find_refusals
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.retrieval.systems import parse_system
from modeling_condenser.runs.recipe import read_recipe
from tests.hub.making import plain_vectors

FOLDER = Path(resolve_encoder_name("starter"))


def open_completely(folder: Path) -> BertForMaskedLM:
    """Open an encoder in float32, with all weights of its files."""
    model, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert (type(model), model.dtype) == (BertForMaskedLM, torch.float32)
    return model.eval()


@torch.no_grad()
def test_the_stored_encoder_opens_completely_and_predicts_a_word() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= 14_000_000
    model = open_completely(FOLDER)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (4, 256)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert len(tokenizer) == 12_288 and tokenizer.model_max_length == 512
    text = "He was born in the United [MASK] of America."
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert (ids[0, 0], ids[0, -1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    [place] = (ids[0] == tokenizer.mask_token_id).nonzero()[0].tolist()
    logits = model(input_ids=ids).logits
    assert tokenizer.decode(logits[0, place].argmax()) == "states"


def test_the_stored_card_names_no_machine_and_its_code_and_name_work_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_refusals({file.name: file for file in FOLDER.iterdir()}) == []
    card = (FOLDER / "README.md").read_text()
    assert "license: cc-by-sa-3.0" in card
    tokens = sum(stage.run["tokens_seen"] for stage in read_provenance(FOLDER))
    assert f"saw {tokens / 1e6:,.1f} million tokens" in card
    (tmp_path / "starter").mkdir()  # another folder of the name does not matter
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in card.split("```python\n")[1:]:
        exec(compile(block.partition("```")[0], "README.md", "exec"), names)
    text = "what is the capital of Norway"  # of which the code makes `vectors`
    system: Any = parse_system("starter,pooling=cls")
    of_system = system.open(device="cpu").encode_queries([text])
    of_sentence_transformers = names["model"].encode([text])
    for found in (names["vectors"], of_system, of_sentence_transformers):
        np.testing.assert_allclose(found, plain_vectors(FOLDER, [text]).numpy(), atol=1e-4)


def run_recipe(name: str, encoder: Path, corpus: Path, folder: Path, max_length: int) -> None:
    """Run a shipped recipe at toy size."""
    sizes = {"max_length": max_length, "tokens_per_batch": 256, "max_steps": 4, "save_steps": 2}
    others = {"preprocessing_workers": 1, "bf16": False, "logging_steps": 1, "use_cpu": True}
    places = {"encoder": str(encoder), "corpus": str(corpus), "output_dir": str(folder)}
    pretrain({**read_recipe(name), **sizes, **others, **places, "disable_tqdm": True})


@torch.no_grad()
def masked_losses(checkpoint: Path, corpus: Path) -> list[float]:
    """-log p of each masked token of the validation blocks, from the logits of all tokens."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = CondenserForMaskedLM.from_pretrained(checkpoint).eval()
    losses: list[float] = []
    for batch in make_batches(str(corpus), tokenizer, n_blocks=40)[1]:
        logits = model(batch["input_ids"], batch["attention_mask"]).logits.double()
        places = batch["labels"] >= 0
        log_p = logits.log_softmax(-1)[places]
        losses += (-log_p[torch.arange(len(log_p)), batch["labels"][places]]).tolist()
    return losses


@pytest.mark.slow
def test_it_is_made_from_validated_runs_as_a_plain_bert_in_float16_with_a_card(
    bert_folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    main, final, validation = tmp_path / "main", tmp_path / "final", tmp_path / "validation.json"
    run_recipe("pretrain/starter", bert_folder, corpus_file, main, 32)
    run_recipe("pretrain/starter-final", main / "model", corpus_file, final, 64)
    paths: dict[str, Any] = {"corpus": corpus_file, "validation": validation}
    measure([main / "checkpoint-2"], str(corpus_file), out=validation, n_blocks=40)
    with pytest.raises(ValueError, match="model of run final is not measured"):
        make_starter([main, final], tmp_path / "made", **paths)
    with pytest.raises(ValueError, match="holds figures measured with"):
        measure([main / "checkpoint-2"], str(corpus_file), out=validation, n_blocks=8)
    last = [main / "checkpoint-4", final / "checkpoint-4"]
    measure(last, str(corpus_file), out=validation, n_blocks=40)
    made = make_starter([main, final], tmp_path / "made", **paths)

    measured = json.loads(validation.read_text())
    entries = measured["measured"]
    assert [(e["run"], e["step"]) for e in entries] == [("main", 2), ("main", 4), ("final", 4)]
    losses = masked_losses(main / "checkpoint-2", corpus_file)
    assert entries[0]["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert measured["settings"]["n_masked"] == len(losses)
    card = (made / "README.md").read_text()
    table = [line for line in card.splitlines() if line.startswith("| 0.0 |")]
    assert table == [f"| 0.0 | {entry['loss']:.3f} |" for entry in entries]

    stored = load_file(made / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    trained: Any = CondenserForMaskedLM.from_pretrained(final / "model")
    model = open_completely(made)
    for ours, theirs in ((trained.condenser.encoder, model.bert), (trained.lm_head, model.cls)):
        for name, tensor in ours.state_dict().items():
            if not name.startswith("pooler."):
                assert torch.equal(theirs.state_dict()[name], tensor.half().float()), name
    assert model.config.hidden_dropout_prob == 0.1
