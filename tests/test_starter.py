"""The encoder that comes with the package: as stored, where it is accepted, how it is made."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM

from benchmarks.make_starter import make_starter
from benchmarks.starter_validation import make_batches, measure
from modeling_condenser import CondenserForMaskedLM, condenser_from_encoder
from modeling_condenser.hub.model_folder import resolve_encoder_name
from modeling_condenser.hub.provenance import read_provenance
from modeling_condenser.hub.refusals import find_refusals
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.retrieval.systems import parse_system
from modeling_condenser.runs.recipe import read_recipe
from tests.hub.making import plain_vectors

TEXT = "The old museum visits Oslo."


@torch.no_grad()
def test_the_stored_encoder_opens_completely_and_predicts_a_word() -> None:
    folder = Path(resolve_encoder_name("starter"))
    assert (folder / "model.safetensors").stat().st_size <= 14_000_000
    model = open_completely(folder)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (4, 256)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == 12_288 and tokenizer.model_max_length == 512
    text = "He was born in the United [MASK] of America."
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert (ids[0, 0], ids[0, -1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    [place] = (ids[0] == tokenizer.mask_token_id).nonzero()[0].tolist()
    logits = model(input_ids=ids).logits
    assert tokenizer.decode(logits[0, place].argmax()) == "states"


def open_completely(folder: Path) -> BertForMaskedLM:
    """Open an encoder in float32, with all weights of its files."""
    model, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert (type(model), model.dtype) == (BertForMaskedLM, torch.float32)
    return model.eval()


def test_the_stored_card_is_complete_names_no_machine_and_its_code_runs() -> None:
    folder = Path(resolve_encoder_name("starter"))
    assert find_refusals({file.name: file for file in folder.iterdir()}) == []
    card = (folder / "README.md").read_text()
    assert "license: cc-by-sa-3.0" in card
    tokens = sum(stage.run["tokens_seen"] for stage in read_provenance(folder))
    assert f"saw {tokens / 1e6:,.1f} million tokens" in card
    names: dict[str, Any] = {}
    for block in card.split("```python\n")[1:]:
        exec(compile(block.partition("```")[0], "README.md", "exec"), names)
    expected = plain_vectors(folder, [TEXT]).numpy()
    vectors = names["model"].encode([TEXT])  # by sentence-transformers
    np.testing.assert_allclose(vectors, expected, atol=1e-4)


def test_models_and_systems_accept_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(resolve_encoder_name("starter"))
    (tmp_path / "starter").mkdir()  # another folder of the name does not matter
    monkeypatch.chdir(tmp_path)
    plain = AutoModel.from_pretrained(folder).state_dict()
    encoder = condenser_from_encoder("starter").condenser.encoder.state_dict()
    name = "encoder.layer.3.output.dense.weight"
    assert torch.equal(encoder[name], plain[name])
    system: Any = parse_system("starter,pooling=cls")
    found = system.open(device="cpu").encode_queries([TEXT])
    np.testing.assert_allclose(found, plain_vectors(folder, [TEXT]).numpy(), atol=1e-4)


def run_recipe(recipe: str, encoder: str, corpus: Path, folder: Path, **changes: Any) -> Path:
    """A shipped recipe at toy size."""
    places = {"encoder": encoder, "corpus": str(corpus), "output_dir": str(folder)}
    sizes = {"max_length": 32, "tokens_per_batch": 256, "max_steps": 4, "save_steps": 2}
    others = {"preprocessing_workers": 1, "bf16": False, "logging_steps": 1, "use_cpu": True}
    settings = {**places, **sizes, **others, "disable_tqdm": True}
    pretrain({**read_recipe(recipe), **settings, **changes})
    return folder


@pytest.mark.slow
def test_it_is_made_from_validated_runs_as_a_plain_bert_in_float16_with_a_card(
    bert_folder: Path, corpus_file: Path, tmp_path: Path
) -> None:
    main = run_recipe("pretrain/starter", str(bert_folder), corpus_file, tmp_path / "main")
    final = tmp_path / "final"
    run_recipe("pretrain/starter-final", str(main / "model"), corpus_file, final, max_length=64)
    validation = tmp_path / "validation.json"
    arguments: dict[str, Any] = {"corpus": corpus_file, "validation": validation}
    measure([main / "checkpoint-2"], str(corpus_file), out=validation, n_blocks=40)
    with pytest.raises(ValueError, match="model of run final is not measured"):
        make_starter([main, final], tmp_path / "made", **arguments)
    with pytest.raises(ValueError, match="holds figures measured with"):
        measure([main / "checkpoint-2"], str(corpus_file), out=validation, n_blocks=8)
    checkpoints = [main / "checkpoint-4", final / "checkpoint-4"]
    measure(checkpoints, str(corpus_file), out=validation, n_blocks=40)
    made = make_starter([main, final], tmp_path / "made", **arguments)

    trained: Any = CondenserForMaskedLM.from_pretrained(final / "model")
    stored = load_file(made / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    model = open_completely(made)
    for ours, theirs in ((trained.condenser.encoder, model.bert), (trained.lm_head, model.cls)):
        for name, tensor in ours.state_dict().items():
            if not name.startswith("pooler."):
                assert torch.equal(theirs.state_dict()[name], tensor.half().float()), name
    assert model.config.hidden_dropout_prob == 0.1

    measured = json.loads(validation.read_text())
    entries = measured["measured"]
    assert [(e["run"], e["step"]) for e in entries] == [("main", 2), ("main", 4), ("final", 4)]
    card = (made / "README.md").read_text()
    table = [line for line in card.splitlines() if line.startswith("| 0.0 |")]
    assert table == [f"| 0.0 | {entry['loss']:.3f} |" for entry in entries]
    losses = masked_losses(main / "checkpoint-2", corpus_file)
    assert entries[0]["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert measured["settings"]["n_masked"] == len(losses)


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
