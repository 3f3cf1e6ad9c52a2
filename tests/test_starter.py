"""The encoder that comes with the package: how it is made, and where its name is accepted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from benchmarks import make_starter as making
from benchmarks.make_starter import make_starter
from benchmarks.starter_validation import make_batches, measure
from modeling_condenser import CondenserForMaskedLM, condenser_from_encoder, masked_lm_from_encoder
from modeling_condenser.analysis.models import models_of_run, single_model
from modeling_condenser.biencoder.finetune import finetune
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub import model_folder
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.publishing.contents import find_refusals
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.checks import card_problems
from modeling_condenser.repository.provenance import read_provenance
from modeling_condenser.retrieval.systems import parse_system
from modeling_condenser.runs.recipe import read_recipe
from tests.publishing.making import plain_vectors

TEXT = "The old museum visits Oslo."


def run_recipe(recipe: str, encoder: str, corpus: Path, folder: Path, **changes: Any) -> Path:
    """A shipped recipe at toy size."""
    settings = {
        **read_recipe(recipe),
        "encoder": encoder,
        "corpus": str(corpus),
        "output_dir": str(folder),
        "preprocessing_workers": 1,
        "bf16": False,
        "max_length": 32,
        "tokens_per_batch": 256,
        "max_steps": 4,
        "logging_steps": 1,
        "save_steps": 2,
        "disable_tqdm": True,
        "use_cpu": True,
    }
    pretrain({**settings, **changes})
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


@pytest.fixture(scope="module")
def made(
    runs: list[Path],
    corpus_file: Path,
    validation: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    out = tmp_path_factory.mktemp("made") / "starter"
    return make_starter(runs, out, corpus=corpus_file, validation=validation)


@pytest.fixture
def starter(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The tiny encoder in the place of the bundled one, and a working folder that has another."""
    monkeypatch.setattr(model_folder, "STARTER_FOLDER", made)
    (tmp_path / "starter").mkdir()
    monkeypatch.chdir(tmp_path)
    return made


def test_the_validation_loss_is_the_mean_over_masked_tokens(
    runs: list[Path], corpus_file: Path, validation: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(runs[0] / "model")
    settings, batches = make_batches(str(corpus_file), tokenizer, n_blocks=40)
    model = CondenserForMaskedLM.from_pretrained(runs[0] / "checkpoint-2").eval()
    losses: list[float] = []
    with torch.no_grad():
        for batch in batches:
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            logits = model(**inputs).logits.double().numpy()
            for row, labels in zip(logits, batch["labels"].numpy(), strict=True):
                for scores, label in zip(row[labels >= 0], labels[labels >= 0], strict=True):
                    losses.append(np.log(np.exp(scores).sum()) - scores[label])
    measured = json.loads(validation.read_text())
    assert [(e["run"], e["step"]) for e in measured["measured"]] == [
        ("main", 2),
        ("main", 4),
        ("final", 4),
    ]
    assert measured["measured"][0]["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert measured["settings"] == settings
    assert (settings["n_blocks"], settings["n_masked"]) == (40, len(losses))
    state = json.loads((runs[0] / "checkpoint-2" / "trainer_state.json").read_text())
    assert measured["measured"][0]["tokens_seen"] == state["num_input_tokens_seen"] > 0


def test_figures_of_other_blocks_are_not_mixed(
    runs: list[Path], corpus_file: Path, validation: Path
) -> None:
    before = validation.read_bytes()
    with pytest.raises(ValueError, match="validation.json holds figures measured with"):
        measure([runs[0] / "model"], str(corpus_file), out=validation, n_blocks=8)
    assert validation.read_bytes() == before


def test_a_checkpoint_that_is_being_written_is_left_out(tmp_path: Path, corpus_file: Path) -> None:
    (tmp_path / "checkpoint-3").mkdir()
    file = tmp_path / "validation.json"
    assert measure([tmp_path / "checkpoint-3"], str(corpus_file), out=file, n_blocks=8) == []
    assert not file.exists()


def test_the_folder_is_a_plain_bert_in_float16_that_opens_in_float32(
    runs: list[Path], made: Path
) -> None:
    trained: Any = CondenserForMaskedLM.from_pretrained(runs[1] / "model")
    stored = load_file(made / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    assert not [name for name in stored if "pooler" in name or name.endswith("decoder.weight")]
    model, info = AutoModelForMaskedLM.from_pretrained(made, output_loading_info=True)
    assert type(model).__name__ == "BertForMaskedLM"
    assert not info["missing_keys"] and not info["unexpected_keys"]
    expected = {f"bert.{k}": v for k, v in trained.condenser.encoder.state_dict().items()}
    expected |= {f"cls.{k}": v for k, v in trained.lm_head.state_dict().items()}
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name].half().float()), name
    assert (model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob) == (
        0.1,
        0.1,
    )
    assert AutoModel.from_pretrained(made).dtype == torch.float32


def test_the_tokenizer_does_what_the_runs_did(runs: list[Path], made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made)
    assert dict(tokenizer(TEXT)) == dict(AutoTokenizer.from_pretrained(runs[0] / "model")(TEXT))
    ids = tokenizer(TEXT)["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert tokenizer.model_max_length == 64
    assert "is_local" not in (made / "tokenizer_config.json").read_text()


def test_the_card_is_complete_and_made_from_the_runs(
    runs: list[Path], made: Path, validation: Path, corpus_file: Path
) -> None:
    assert card_problems(made) == []
    card = (made / "README.md").read_text()
    records = [json.loads((run / "run.json").read_text()) for run in runs]
    total = sum(record["tokens_seen"] for record in records)
    entries = json.loads(validation.read_text())["measured"]
    table = [line for line in card.splitlines() if line.startswith("| 0.0 |")]
    assert table == [f"| 0.0 | {entry['loss']:.3f} |" for entry in entries]
    assert f"validation loss is {entries[-1]['loss']:.3f} nats" in card
    assert f"saw {total / 1e6:.1f} million tokens" in card
    n_words = sum(len(json.loads(line)["text"].split()) for line in corpus_file.open())
    assert f"300 articles, {n_words / 1e6:,.1f} million words" in card
    assert "license: cc-by-sa-3.0" in card and "elehman16/boolq" in card
    assert [stage.run["steps"] for stage in read_provenance(made)] == [4, 4]
    assert find_refusals({file.name: file for file in made.iterdir()}) == []  # such as paths


def test_a_run_that_goes_on_is_used_as_far_as_a_checkpoint(
    runs: list[Path], corpus_file: Path, validation: Path, tmp_path: Path
) -> None:
    checkpoint = runs[0] / "checkpoint-2"
    out = make_starter([checkpoint], tmp_path / "x", corpus=corpus_file, validation=validation)
    (stage,) = read_provenance(out)
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert (stage.run["steps"], stage.run["tokens_seen"]) == (2, state["num_input_tokens_seen"])
    assert [entry["step"] for entry in stage.log] == [1, 2]
    assert (out / "README.md").read_text().count("| 0.0 |") == 1  # later steps are left out


def test_what_cannot_become_the_starter_is_refused_and_nothing_is_written(
    runs: list[Path],
    corpus_file: Path,
    validation: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"corpus": corpus_file, "validation": validation}
    with pytest.raises(ValueError, match="final exists: remove it first"):
        make_starter(runs[:1], runs[1], **given)
    with pytest.raises(ValueError, match="run final at step 2 is not measured"):
        make_starter([runs[0], runs[1] / "checkpoint-2"], tmp_path / "x", **given)
    (tmp_path / "other.jsonl").write_text('{"text": "one document"}\n')
    with pytest.raises(ValueError, match="1 documents, but a run was trained on 300"):
        make_starter(runs, tmp_path / "x", **{**given, "corpus": tmp_path / "other.jsonl"})
    monkeypatch.setattr(making, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"bytes, but may have 1,000"):
        make_starter(runs, tmp_path / "x", **given)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("warm_start", [condenser_from_encoder, masked_lm_from_encoder])
def test_models_start_from_it(starter: Path, warm_start: Callable[[str], Any]) -> None:
    plain = AutoModel.from_pretrained(starter).state_dict()
    encoder = warm_start("starter").condenser.encoder.state_dict()
    name = "encoder.layer.3.output.dense.weight"
    assert torch.equal(encoder[name], plain[name])


def test_retrievers_and_systems_encode_with_it(starter: Path) -> None:
    expected = plain_vectors(starter, [TEXT]).numpy()
    system = parse_system("starter,pooling=cls")
    assert system.name == "starter-cls"
    for retriever in (Retriever("starter", pooling="cls"), system.open(device="cpu")):
        np.testing.assert_allclose(retriever.encode_queries([TEXT]), expected, atol=1e-5)
        assert retriever.folder == starter


def test_what_is_pre_trained_from_it_names_it_and_carries_its_provenance(
    starter: Path, corpus_file: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run_recipe("pretrain/starter-final", "starter", corpus_file, run, tokenizer="starter")
    exported = export_encoder(run, tmp_path / "exported")
    for folder in (run / "model", exported):
        stages = read_provenance(folder)
        assert stages[:2] == read_provenance(starter)
        assert stages[2].recipe["encoder"] == model_folder.describe_starter()
        card = (folder / "README.md").read_text()
        assert f"| started from | `{model_folder.describe_starter()}` |" in card
        files = [file for file in folder.iterdir() if file.is_file()]
        assert find_refusals({file.name: file for file in files}) == []
    assert [model.step for model in models_of_run(run)] == [0, 2, 4]
    assert models_of_run(run)[0].open(32).tokenizer(TEXT)["input_ids"][0] == 2


def test_a_retriever_that_is_trained_from_it_does_too(
    starter: Path, collection: Path, tmp_path: Path
) -> None:
    model = finetune(
        {
            "encoder": "starter",
            "pooling": "cls",
            "collection": str(collection),
            "output_dir": str(tmp_path / "retriever"),
            "per_device_train_batch_size": 8,
            "max_steps": 1,
            "disable_tqdm": True,
            "use_cpu": True,
        }
    )
    stages = read_provenance(model)
    assert stages[:2] == read_provenance(starter)
    assert stages[2].recipe["encoder"] == model_folder.describe_starter()
    assert "gao-callan" not in (model / "README.md").read_text()  # nothing was condensed
    assert single_model("starter", "start").open(32).retriever.folder == starter


def test_the_cards_python_runs(starter: Path) -> None:
    blocks = (starter / "README.md").read_text().split("```python\n")[1:]
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block.partition("```")[0], "README.md", "exec"), names)
    assert len(blocks) == 3
    vectors = names["model"].encode([TEXT])  # by sentence-transformers
    np.testing.assert_allclose(vectors, plain_vectors(starter, [TEXT]).numpy(), atol=1e-5)
