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
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub import model_folder
from modeling_condenser.hub.export import export_encoder
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


def read_publishable_card(folder: Path) -> str:
    """Read a card that may be published: it names no machine."""
    assert find_refusals({file.name: file for file in folder.iterdir()}) == []
    return (folder / "README.md").read_text()


def test_the_stored_card_is_complete_and_names_no_machine() -> None:
    folder = Path(resolve_encoder_name("starter"))
    card = read_publishable_card(folder)
    assert "license: cc-by-sa-3.0" in card
    tokens = sum(stage.run["tokens_seen"] for stage in read_provenance(folder))
    assert f"saw {tokens / 1e6:,.1f} million tokens" in card
    assert tokens >= 60_000_000


def test_models_retrievers_and_systems_accept_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(resolve_encoder_name("starter"))
    (tmp_path / "starter").mkdir()  # another folder of the name does not matter
    monkeypatch.chdir(tmp_path)
    plain = AutoModel.from_pretrained(folder).state_dict()
    encoder = condenser_from_encoder("starter").condenser.encoder.state_dict()
    name = "encoder.layer.3.output.dense.weight"
    assert torch.equal(encoder[name], plain[name])
    expected = plain_vectors(folder, [TEXT]).numpy()
    system: Any = parse_system("starter,pooling=cls")
    for retriever in (Retriever("starter", pooling="cls"), system.open(device="cpu")):
        np.testing.assert_allclose(retriever.encode_queries([TEXT]), expected, atol=1e-4)


def run_recipe(recipe: str, encoder: str, corpus: Path, folder: Path, **changes: Any) -> Path:
    """A shipped recipe at toy size."""
    places = {"encoder": encoder, "corpus": str(corpus), "output_dir": str(folder)}
    sizes = {"max_length": 32, "tokens_per_batch": 256, "max_steps": 4, "save_steps": 2}
    others = {"preprocessing_workers": 1, "bf16": False, "logging_steps": 1, "use_cpu": True}
    settings = {**places, **sizes, **others, "disable_tqdm": True}
    pretrain({**read_recipe(recipe), **settings, **changes})
    return folder


@pytest.fixture(scope="module")
def runs(
    bert_folder: Path, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """A run, and a second one that started from the first one's model."""
    folder = tmp_path_factory.mktemp("starter-runs")
    main, final = folder / "main", folder / "final"
    run_recipe("pretrain/starter", str(bert_folder), corpus_file, main)
    run_recipe("pretrain/starter-final", str(main / "model"), corpus_file, final, max_length=64)
    return [main, final]


@pytest.fixture(scope="module")
def validation(
    runs: list[Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    file = tmp_path_factory.mktemp("validation") / "validation.json"
    for run, names in zip(runs, (["checkpoint-2", "checkpoint-4"], ["model"]), strict=True):
        measure([run / name for name in names], str(corpus_file), out=file, n_blocks=40)
    return file


@pytest.mark.slow
def test_the_validation_loss_is_the_mean_over_masked_tokens(
    runs: list[Path], corpus_file: Path, validation: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(runs[0] / "model")
    settings, batches = make_batches(str(corpus_file), tokenizer, n_blocks=40)
    model = CondenserForMaskedLM.from_pretrained(runs[0] / "checkpoint-2").eval()
    losses = []
    for batch in batches:
        with torch.no_grad():
            logits = model(batch["input_ids"], batch["attention_mask"]).logits.double()
        places = batch["labels"] >= 0
        log_p = logits.log_softmax(-1)[places]
        losses += (-log_p[torch.arange(len(log_p)), batch["labels"][places]]).tolist()
    measured = json.loads(validation.read_text())
    entries = measured["measured"]
    assert [(e["run"], e["step"]) for e in entries] == [("main", 2), ("main", 4), ("final", 4)]
    assert entries[0]["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert measured["settings"] == settings
    assert (settings["n_blocks"], settings["n_masked"]) == (40, len(losses))
    with pytest.raises(ValueError, match="holds figures measured with"):
        measure([runs[0] / "model"], str(corpus_file), out=validation, n_blocks=8)


@pytest.mark.slow
def test_it_is_made_from_runs_as_a_plain_bert_in_float16_with_a_card(
    runs: list[Path],
    corpus_file: Path,
    validation: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = make_starter(runs, tmp_path / "made", corpus=corpus_file, validation=validation)
    trained: Any = CondenserForMaskedLM.from_pretrained(runs[1] / "model")
    stored = load_file(made / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    model = open_completely(made)
    for name, tensor in trained.condenser.encoder.state_dict().items():
        if not name.startswith("pooler."):
            assert torch.equal(model.bert.state_dict()[name], tensor.half().float()), name
    for name, tensor in trained.lm_head.state_dict().items():
        assert torch.equal(model.cls.state_dict()[name], tensor.half().float()), name
    assert model.config.hidden_dropout_prob == 0.1

    card = read_publishable_card(made)
    entries = json.loads(validation.read_text())["measured"]
    table = [line for line in card.splitlines() if line.startswith("| 0.0 |")]
    assert table == [f"| 0.0 | {entry['loss']:.3f} |" for entry in entries]
    names: dict[str, Any] = {}
    monkeypatch.setattr(model_folder, "STARTER_FOLDER", made)
    for block in card.split("```python\n")[1:]:
        exec(compile(block.partition("```")[0], "README.md", "exec"), names)
    vectors = names["model"].encode([TEXT])  # by sentence-transformers
    np.testing.assert_allclose(vectors, plain_vectors(made, [TEXT]).numpy(), atol=1e-5)

    # What is trained from it names it and carries its provenance.
    run = run_recipe(
        "pretrain/starter-final", "starter", corpus_file, tmp_path / "run", tokenizer="starter"
    )
    stages = read_provenance(export_encoder(run, tmp_path / "exported"))
    assert [stage.run["steps"] for stage in stages] == [4, 4, 4]
    assert stages[2].recipe["encoder"] == model_folder.describe_starter()

    checkpoint = make_starter(
        [runs[0] / "checkpoint-2"], tmp_path / "early", corpus=corpus_file, validation=validation
    )
    (stage,) = read_provenance(checkpoint)
    assert stage.run["steps"] == 2
    unmeasured = [runs[0], runs[1] / "checkpoint-2"]
    with pytest.raises(ValueError, match="run final at step 2 is not measured"):
        make_starter(unmeasured, tmp_path / "x", corpus=corpus_file, validation=validation)
    assert not (tmp_path / "x").exists()
