"""The pre-training stage: what it writes, how it continues and resumes, and what it refuses."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining, CondenserTrainer
from modeling_condenser.encoder_files import find_tokenizer
from modeling_condenser.files.settings import parse_settings
from modeling_condenser.pretraining import pretrain as pretrain_module
from modeling_condenser.pretraining.pretrain import (
    PretrainingRecipe,
    open_model,
    pretrain,
)
from modeling_condenser.publishing.provenance import read_provenance
from tests.models import assert_same
from tests.pretraining.short_runs import column, interrupted_at
from tests.run_logs import read_log


def test_a_run_folder_holds_model_recipe_record_and_log_and_is_finished(
    settings, tmp_path, monkeypatch
):
    settings |= {"n_head_layers": 1, "skip_from": 1, "seed": 5}
    settings["corpus"] = [settings["corpus"], {"path": settings["corpus"], "join_rows": 3}]
    run, model = tmp_path / "run", pretrain(**settings)
    assert model == run / "model"
    opened = CondenserForPreTraining.from_pretrained(model)
    assert (opened.config.n_head_layers, opened.config.skip_from) == (1, 1)
    assert "packed" not in (model / "config.json").read_text()
    assert AutoTokenizer.from_pretrained(model).mask_token == "[MASK]"
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    assert recipe["skip_from"] == 1 and "output_dir" not in recipe
    record = json.loads((run / "run.json").read_text())
    assert (record["seed"], record["steps"], record["objective"]) == (5, 3, "condenser")
    assert record["n_documents"] == 51 + 17 and len(record["blocks_sha256"]) == 64
    assert record["tokens_seen"] == read_log(run)[-1]["num_input_tokens_seen"] > 0
    assert record["versions"]["torch"] == torch.__version__ and record["train_seconds"] > 0
    assert record["hardware"]["cores"] >= 1 and record["hardware"]["cpu"]

    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    monkeypatch.setattr(CondenserTrainer, "train", None)  # fails if called
    assert pretrain(**settings) == model
    with pytest.raises(ValueError, match=r"another run \(seed: 5 then, 3 now\)"):
        pretrain(**{**settings, "seed": 3})
    assert {file: file.stat().st_mtime_ns for file in run.rglob("*")} == before


def test_the_learning_rate_follows_the_size_of_the_encoder(settings, bert_folder, monkeypatch):
    def used_rate(settings, make_trainer, *classes):
        return make_trainer(*parse_settings(settings, *classes)).args.learning_rate

    monkeypatch.setattr(pretrain_module, "run_training", used_rate)
    encoder = AutoModel.from_pretrained(bert_folder)
    size = encoder.num_parameters(exclude_embeddings=True)
    given = {**settings, "base_learning_rate": 1e-5}
    del given["learning_rate"]
    assert pretrain(**given) == pytest.approx(1e-5 * (86e6 / size) ** 0.7, rel=0.05)
    assert pretrain(**given, learning_rate=3e-4) == 3e-4


def test_a_pinned_revision_is_the_start(settings, loopback_hub, bert_folder, roberta_folder):
    first = loopback_hub.put(bert_folder, "owner/encoder")
    loopback_hub.put(roberta_folder, "owner/encoder")
    changes = {"encoder": f"owner/encoder@{first}", "max_steps": 1, "learning_rate": 0.0}
    model = CondenserForPreTraining.from_pretrained(pretrain(**{**settings, **changes}))
    opened = CondenserForPreTraining.from_encoder("owner/encoder", revision=first)
    vocabulary = AutoTokenizer.from_pretrained(bert_folder).get_vocab()
    assert find_tokenizer(opened).get_vocab() == vocabulary
    expected = AutoModel.from_pretrained(bert_folder).get_input_embeddings().weight
    for start in (model, opened):
        assert torch.equal(start.get_input_embeddings().weight, expected)


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_corpus_with_other_contents_is_refused(settings, tmp_path, small_corpus, is_finished):
    corpus, run = tmp_path / "corpus.jsonl", tmp_path / "run"
    corpus.write_bytes(text := small_corpus.read_bytes())
    settings |= {"corpus": str(corpus), "save_strategy": "steps", "save_steps": 2}
    model = pretrain(**settings)
    weights, record = (model / "model.safetensors").read_bytes(), (run / "run.json").read_bytes()
    if not is_finished:
        shutil.rmtree(model)
    corpus.write_bytes(text + b'{"text": "A volcano erupts when magma rises."}\n')
    with pytest.raises(ValueError, match="another run .model or data: .{12} then, .{12} now"):
        pretrain(**settings)
    assert model.exists() == is_finished
    corpus.unlink()
    corpus.write_bytes(text)  # another file with the same text
    assert (pretrain(**settings) / "model.safetensors").read_bytes() == weights
    assert column(run, "step") == [[1], [2], [3]]  # no step was trained again
    if is_finished:
        assert (run / "run.json").read_bytes() == record


def test_plain_mlm_sees_the_same_blocks_and_masks_as_the_condenser(settings, tmp_path):
    for name in ("condenser", "mlm"):
        run = {"objective": name, "max_steps": 2, "output_dir": str(tmp_path / name)}
        pretrain(**{**settings, **run})
    first, second = tmp_path / "condenser", tmp_path / "mlm"
    names = ("step", "num_input_tokens_seen")
    assert column(first, *names) == column(second, *names)
    # In the first step all weights are alike.
    losses = [column(run, "late_loss")[0] for run in (first, second)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    records = [json.loads((run / "run.json").read_text()) for run in (first, second)]
    assert records[0]["blocks_sha256"] == records[1]["blocks_sha256"]


def test_without_masks_only_the_tied_weights_of_the_lm_head_are_trained(
    settings, tmp_path, bert_folder
):
    model = pretrain(**{**settings, "objective": "ict", "max_length": 64})
    log, weights = read_log(tmp_path / "run"), load_file(model / "model.safetensors")
    assert len(log) == 3 and not {"late_loss", "late_accuracy", "swap_cost"} & log[0].keys()
    assert log[0]["loss"] == pytest.approx(log[0]["contrastive_loss"])
    assert not any(name.startswith("head.") for name in weights)
    before = AutoModelForMaskedLM.from_pretrained(bert_folder).state_dict()
    after = CondenserForMaskedLM.from_pretrained(model)
    name = "predictions.transform.dense.weight"
    assert torch.equal(after.lm_head.state_dict()[name], before[f"cls.{name}"])
    words = after.get_input_embeddings().weight
    assert not torch.equal(words, before["bert.embeddings.word_embeddings.weight"])


@pytest.mark.parametrize(
    ("split", "other"),
    [
        ({"n_head_layers": 1, "skip_from": 1}, {"skip_from": 3}),
        ({"head_mlm_probability": 0.5, "skip_from": 0}, {"head_mlm_probability": 0.3}),
    ],
)
def test_a_checkpoint_is_continued_with_its_own_head(settings, tmp_path, split, other):
    first, run = pretrain(**{**settings, **split}), settings["output_dir"]
    again = {**settings, "max_steps": 1, "encoder": run, "output_dir": str(tmp_path / "b")}
    config = CondenserForPreTraining.from_pretrained(second := pretrain(**again)).config
    assert {name: getattr(config, name) for name in split} == split
    assert [stage.run["steps"] for stage in read_provenance(second)] == [3, 1]
    before, after = (column(tmp_path / run, "head_loss") for run in ("run", "b"))
    assert after[0] < before[0]
    [(name, value)] = other.items()
    with pytest.raises(ValueError, match=f"{name}: {value}, but the checkpoint"):
        open_model(PretrainingRecipe(encoder=str(first), corpus="", **other))


def test_a_checkpoint_in_half_precision_is_continued_in_float32(bert_run, tmp_path):
    model = CondenserForPreTraining.from_pretrained(bert_run / "model")
    model.bfloat16().save_pretrained(tmp_path)
    assert open_model(PretrainingRecipe(encoder=str(tmp_path), corpus="")).dtype == torch.float32


def test_a_checkpoint_takes_changes_of_its_encoder_and_a_new_head(bert_run):
    changes = {"hidden_dropout_prob": 0.25}
    for n_layers, new in ((1, {}), (3, {"new_head": True, "n_head_layers": 3})):
        start = {"encoder": str(bert_run / "model"), "encoder_changes": changes}
        recipe = PretrainingRecipe(corpus="", **start, **new)
        model = open_model(recipe)
        assert len(model.head) == n_layers
        rates = {layer.output.dropout.p for layer in [*model.condenser.layers, *model.head]}
        assert rates == {0.25}


def test_a_checkpoint_that_never_had_a_head_gets_a_new_one(bert_folder, tmp_path):
    plain = CondenserForMaskedLM.from_encoder(bert_folder)
    plain.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path)
    model = open_model(PretrainingRecipe(encoder=str(tmp_path), corpus=""))
    assert isinstance(model, CondenserForPreTraining)
    weights = model.state_dict()
    assert all(torch.equal(weights[name], each) for name, each in plain.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_dir": "FOLDER"}, "is not empty and holds no run"),
        ({"tokenizer": "FOLDER/larger"}, "resize_token_embeddings"),
        ({"max_length": 100}, "positions for 64 tokens"),
        ({"objective": "ict", "removal_probability": 1.5}, "removal_probability is 1.5"),
        ({"tokens_per_batch": 9}, "tokens_per_batch is 9, but a block has 32 tokens"),
        (
            {"tokens_per_batch": 900, "packed": False},
            "set per_device_train_batch_size, and tokens_per",
        ),
        ({"auto_find_batch_size": True}, "takes no auto_find_batch_size"),
        ({"eval_strategy": "steps"}, "has no text to evaluate on"),
        ({"similarity": "cosine"}, "similarity is only for objective cocondenser, ict"),
        ({"objective": "ict", "mlm_probability": 0.3}, "mlm_probability is only for objective"),
        ({"encoder": "startr"}, "There is no folder 'startr', and it cannot be fetched"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    settings, tmp_path, tokenizer, change, message
):
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.save_pretrained(tmp_path / "larger")
    text = json.dumps({**settings, **change}).replace("FOLDER", str(tmp_path))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain(**json.loads(text))
    assert [file.name for file in tmp_path.iterdir()] == ["larger"]


def test_a_tokenizer_with_other_tokens_of_the_same_number_is_refused(settings, tmp_path):
    folder = Path(shutil.copytree(settings["encoder"], tmp_path / "other"))
    content = json.loads((folder / "tokenizer.json").read_text())
    tokens = content["model"]["vocab"]
    first, second = sorted(tokens, key=tokens.__getitem__)[50:52]
    tokens[first], tokens[second] = tokens[second], tokens[first]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    expected = f"{re.escape(repr(first))} as .* has {re.escape(repr(second))}: use the encoder's"
    with pytest.raises(ValueError, match=expected):
        pretrain(**{**settings, "tokenizer": str(folder)})
    assert not (tmp_path / "run").exists()
    pretrain(**{**settings, "tokenizer": settings["encoder"], "max_steps": 1})


CASES: dict[str, dict[str, Any]] = {
    "accumulation": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2},
    "mlm": {"objective": "mlm"},
    "budget": {"tokens_per_batch": 1600},
    "cocondenser": {
        **{"objective": "cocondenser", "per_device_train_batch_size": 8},
        **{"cache_chunk_size": 3, "temperature": 20.0},
    },
    "mean pooling": {"objective": "ict", "pooling": "mean", "bow_weight": 1.0},
}
# Runs of more than two epochs, with dropout.
RESUMABLE: dict[str, Any] = {"encoder_changes": {}, "save_strategy": "steps", "save_steps": 2}
RESUMABLE |= {"max_length": 64, "per_device_train_batch_size": 32, "max_steps": 8}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_run_resumes_bit_equal_past_a_torn_checkpoint(
    settings, tmp_path, small_corpus, caplog, case
):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(small_corpus.read_text().splitlines(keepends=True)[:30]))
    settings |= {**RESUMABLE, "corpus": str(corpus), **CASES[case]}
    pretrain(**{**settings, "output_dir": str(tmp_path / "whole")})
    n_epochs = read_log(tmp_path / "whole")[-1]["epoch"]
    assert n_epochs > 2

    with interrupted_at(5):
        pretrain(**settings)
    checkpoints = [tmp_path / "run" / f"checkpoint-{step}" for step in (2, 4)]
    (checkpoints[1] / "trainer_state.json").unlink()  # as if killed while it was written
    pretrain(**{**settings, "dataloader_num_workers": 2})
    assert "checkpoint-2, step 2" in caplog.text
    first, second = tmp_path / "run", tmp_path / "whole"
    names = ("step", "loss", "grad_norm")
    assert column(first, *names) == column(second, *names)
    assert_same(*(load_file(run / "model" / "model.safetensors") for run in (first, second)), 0)


@pytest.mark.parametrize("name", ["c.jsonl", "c.csv", "c.parquet", "c.txt"])
def test_a_recipe_trains_on_a_stream_of_files(name, settings, texts, tmp_path):
    rows = Dataset.from_dict({"body": [" ".join(text.split()) for text in texts[:40]]})
    file = str(tmp_path / name)
    match Path(name).suffix:
        case ".jsonl":
            rows.to_json(file)
        case ".csv":
            rows.to_csv(file)
        case ".parquet":
            rows.to_parquet(file)
        case _:
            Path(file).write_text("\n".join(rows["body"]))
    column = "text" if name == "c.txt" else "body"
    corpus = {"path": file, "text_column": column, "streaming": True}
    pretrain(**{**settings, "corpus": corpus, "max_steps": 2})
    assert len(read_log(tmp_path / "run")) == 2
    with pytest.raises(ValueError, match="cannot be prepared"):
        pretrain(**{**settings, "corpus": corpus}, prepare_only=True)
