"""The pre-training stage: what it writes, how it continues, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from modeling_condenser import CondenserForPreTraining, masked_lm_from_encoder
from modeling_condenser.pretraining.pretrain import PretrainingRecipe, open_model, pretrain
from modeling_condenser.runs.recipe import read_recipe
from modeling_condenser.runs.run_folder import read_log
from tests.pretraining.short_runs import column


def test_a_run_folder_holds_model_recipe_record_and_log(settings, tmp_path):
    model = pretrain({**settings, "n_head_layers": 1, "skip_from": 1, "seed": 5})
    run = tmp_path / "run"
    assert model == run / "model"
    opened = CondenserForPreTraining.from_pretrained(model)
    assert (opened.config.n_head_layers, opened.config.skip_from) == (1, 1)
    assert AutoTokenizer.from_pretrained(model).mask_token == "[MASK]"
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    assert recipe["skip_from"] == 1 and "output_dir" not in recipe
    record = json.loads((run / "run.json").read_text())
    assert (record["seed"], record["steps"], record["objective"]) == (5, 3, "condenser")
    assert record["n_documents"] == 300 and len(record["blocks_sha256"]) == 64
    assert record["tokens_seen"] == read_log(run)[-1]["num_input_tokens_seen"] > 0
    assert record["versions"]["torch"] and record["train_seconds"] > 0


def test_a_finished_run_is_left_as_it_is(settings, monkeypatch):
    model = pretrain(settings)
    before = (model / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr("modeling_condenser.CondenserTrainer.train", None)  # fails if called
    assert pretrain(settings) == model
    assert (model / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("objective", ["mlm", "tsdae"])
def test_other_objectives_see_the_same_blocks_as_the_condenser(settings, tmp_path, objective):
    pretrain(settings)
    pretrain({**settings, "objective": objective, "output_dir": str(tmp_path / "other")})
    names = ("step", "num_input_tokens_seen")
    assert column(tmp_path / "run", *names) == column(tmp_path / "other", *names)
    records = [json.loads((tmp_path / r / "run.json").read_text()) for r in ("run", "other")]
    assert records[0]["blocks_sha256"] == records[1]["blocks_sha256"]


@pytest.mark.parametrize(
    ("split", "other"),
    [
        ({"n_head_layers": 1, "skip_from": 1}, {"skip_from": 3}),
        ({"head_mlm_probability": 0.5, "skip_from": 0}, {"head_mlm_probability": 0.3}),
    ],
)
def test_a_checkpoint_is_continued_with_its_own_head(settings, tmp_path, split, other):
    first = pretrain({**settings, **split})
    again = {**settings, "encoder": str(first), "output_dir": str(tmp_path / "more")}
    config = CondenserForPreTraining.from_pretrained(pretrain(again)).config
    assert {name: getattr(config, name) for name in split} == split
    before, after = (column(tmp_path / run, "head_loss", "swap_cost") for run in ("run", "more"))
    assert after[0] < before[0]
    [(name, value)] = other.items()
    with pytest.raises(ValueError, match=f"{name}: {value}, but the checkpoint"):
        pretrain({**again, **other, "output_dir": str(tmp_path / "other")})
    assert not (tmp_path / "other").exists()


def test_a_continued_checkpoint_is_built_with_the_changes_of_its_encoder(bert_run):
    changes = {"hidden_dropout_prob": 0.25}
    model = open_model(PretrainingRecipe(str(bert_run / "model"), "", encoder_changes=changes))
    rates = {layer.output.dropout.p for layer in [*model.condenser.layers, *model.head]}
    assert rates == {0.25}


def test_a_headless_checkpoint_needs_new_head(tmp_path, bert_folder):
    masked_lm_from_encoder(str(bert_folder)).save_pretrained(tmp_path / "mlm")
    with pytest.raises(ValueError, match="no Condenser head"):
        open_model(PretrainingRecipe(str(tmp_path / "mlm"), ""))
    assert open_model(PretrainingRecipe(str(tmp_path / "mlm"), "", new_head=True)).head


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpus": "/nowhere/text.jsonl"}, "no documents at /nowhere/text.jsonl"),
        ({"corpus": {"path": "CORPUS", "colum": "text"}}, "no field 'colum'"),
        ({"skip_from": 9}, "skip_from is 9"),
        ({"max_length": 2}, "leaves no room for text"),
        ({"max_length": 100}, "positions for 64 tokens"),
        ({"mlm_probability": 1.5}, "mlm_probability is 1.5"),
        ({"learning_rat": 1}, "'learning_rat'.*'learning_rate'"),
        ({"objective": "clm"}, "objective is 'clm'"),
        ({"packed": True, "attn_implementation": "eager"}, "leave one of the two out"),
        ({"bow_weight": -0.1}, "bow_weight is -0.1, expected 0 or more"),
        ({"bow_weight_end": 0.1}, "bow_weight is 0: set bow_weight, too"),
        ({"head_mlm_probability": 0.5, "objective": "mlm"}, "head_mlm_probability is only for"),
        ({"head_mlm_probability": 0.5, "skip_from": 1}, "the rate must lie between"),
        ({"tokens_per_batch": 9}, "tokens_per_batch is 9, but a block has 32 tokens"),
        ({"tokens_per_batch": 99, "streaming": True}, "tokens_per_batch is not for a streamed"),
        ({"similarity": "cosine"}, "similarity is only for objective cocondenser, ict"),
        ({"objective": "cocondenser", "streaming": True}, "streaming is only for"),
        ({"objective": "cocondenser", "span_length": 33}, "span_length is 33, but max_length"),
        ({"objective": "cocondenser", "contrastive_weight": 0.0}, "contrastive_weight is 0.0"),
        ({"objective": "cocondenser", "temperature": 0.0}, "temperature is 0.0, expected above 0"),
        ({"objective": "cocondenser", "cache_chunk_size": 5}, "cache_chunk_size is 5"),
        ({"objective": "ict", "removal_probability": 1.5}, "removal_probability is 1.5"),
        ({"objective": "ict", "query_length": 2}, "query_length is 2, which leaves no room"),
        ({"objective": "tsdae", "bow_weight": 1.0}, "bow_weight is only for objective"),
        ({"objective": "mlm", "deletion_probability": 0.5}, "only for objective tsdae"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    settings, tmp_path, corpus_file, change, message
):
    text = json.dumps({**settings, **change}).replace("CORPUS", str(corpus_file))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain(json.loads(text))
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_does_not_fit_the_model_is_refused(settings, tmp_path, tokenizer):
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(ValueError, match=r"resize_token_embeddings"):
        pretrain({**settings, "tokenizer": str(tmp_path / "tokenizer")})
    assert not (tmp_path / "run").exists()


def test_the_folder_of_another_run_or_of_something_else_is_refused_and_untouched(
    settings, tmp_path
):
    pretrain(settings)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")}
    with pytest.raises(ValueError, match=r"another recipe \(seed: 'not set' then, 3 now\)"):
        pretrain({**settings, "seed": 3})
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")} == before
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        pretrain({**settings, "output_dir": str(tmp_path / "thesis")})
    assert [file.name for file in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


ABLATIONS: dict[str, dict[str, Any]] = {
    "mlm": {"objective": "mlm"},
    "no-skip": {"skip_from": 12},
    "no-late-mlm": {"late_mlm": False},
    "head-1": {"n_head_layers": 1},
    "head-2": {"n_head_layers": 2},
    "head-4": {"n_head_layers": 4},
}


def test_every_ablation_is_the_recipe_for_own_text_with_one_thing_changed():
    base = read_recipe("pretrain/own-text")
    folder = Path(__file__).parents[2] / "configuration" / "pretrain"
    shipped = {file.stem.removeprefix("ablation-") for file in folder.glob("ablation-*.yaml")}
    assert shipped == ABLATIONS.keys()
    for name, change in ABLATIONS.items():
        encoder = {"encoder": "google-bert/bert-base-uncased"}
        assert read_recipe(f"pretrain/ablation-{name}") == {**base, **encoder, **change}, name
