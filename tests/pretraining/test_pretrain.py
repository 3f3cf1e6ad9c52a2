"""The pre-training stage: what it leaves behind, and what it refuses before it writes anything."""

import json

import pytest
import yaml
from transformers import AutoTokenizer

from modeling_condenser import CondenserForPreTraining, masked_lm_from_encoder
from modeling_condenser.pretraining.pretrain import PretrainingRecipe, open_model, pretrain


@pytest.fixture
def settings(tmp_path, bert_folder, corpus_file):
    return {
        "encoder": str(bert_folder),
        "corpus": str(corpus_file),
        "output_dir": str(tmp_path / "run"),
        "max_length": 32,
        "per_device_train_batch_size": 4,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }


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
    assert (record["seed"], record["steps"], record["objective"]) == (5, 2, "condenser")
    assert record["tokens_seen"] > 0 and record["versions"]["torch"]
    log = json.loads((run / "log.json").read_text())
    assert log[1]["num_input_tokens_seen"] == record["tokens_seen"]


def test_the_mlm_objective_sees_the_same_batches_as_the_condenser(settings, tmp_path):
    pretrain({**settings, "max_steps": 4})
    pretrain({**settings, "max_steps": 4, "objective": "mlm", "output_dir": str(tmp_path / "mlm")})
    seen = []
    for name in ("run", "mlm"):
        log = json.loads((tmp_path / name / "log.json").read_text())
        seen.append([e["num_input_tokens_seen"] for e in log if "loss" in e])
    assert seen[0] == seen[1]
    assert len(seen[0]) == 4


def test_a_checkpoint_is_continued_with_its_own_head_and_split(settings, tmp_path):
    first = pretrain({**settings, "n_head_layers": 1, "skip_from": 1})
    again = {**settings, "encoder": str(first), "output_dir": str(tmp_path / "more")}
    model = CondenserForPreTraining.from_pretrained(pretrain(again))
    assert (model.config.n_head_layers, model.config.skip_from) == (1, 1)
    other = {**again, "output_dir": str(tmp_path / "other"), "skip_from": 3}
    with pytest.raises(ValueError, match="skip_from: 3, but the checkpoint .* has 1"):
        pretrain(other)
    assert not (tmp_path / "other").exists()


def test_a_continued_checkpoint_is_built_with_the_changes_of_its_encoder(settings):
    first = pretrain({**settings, "n_head_layers": 1})
    changes = {"hidden_dropout_prob": 0.25}
    model = open_model(PretrainingRecipe(str(first), "", encoder_changes=changes))
    layers = [*model.condenser.layers, *model.head]
    assert [layer.output.dropout.p for layer in layers] == [0.25] * 5


def test_a_headless_checkpoint_needs_new_head(settings, tmp_path, bert_folder):
    masked_lm_from_encoder(str(bert_folder)).save_pretrained(tmp_path / "mlm")
    AutoTokenizer.from_pretrained(bert_folder).save_pretrained(tmp_path / "mlm")
    changed = {**settings, "encoder": str(tmp_path / "mlm")}
    with pytest.raises(ValueError, match="no Condenser head"):
        pretrain(changed)
    assert not (tmp_path / "run").exists()
    assert pretrain({**changed, "new_head": True}).is_dir()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpus": "/nowhere/text.jsonl"}, "text.jsonl does not exist"),
        ({"corpus": {"path": "CORPUS", "text_column": "body"}}, "no column 'body'.*text"),
        ({"corpus": {"path": "CORPUS", "colum": "text"}}, "no field 'colum'"),
        ({"corpus": "EMPTY"}, "empty"),
        ({"skip_from": 9}, "skip_from is 9"),
        ({"n_head_layers": 0}, "n_head_layers is 0"),
        ({"max_length": 2}, "leaves no room for text"),
        ({"max_length": 100}, "positions for 64 tokens"),
        ({"mlm_probability": 1.5}, "mlm_probability is 1.5"),
        ({"learning_rat": 1}, "'learning_rat'.*'learning_rate'"),
        ({"skip_from": "two"}, "skip_from is 'two', of type str; expected int"),
        ({"objective": "clm"}, "objective is 'clm'"),
        ({"streaming": True, "max_steps": -1}, "set max_steps"),
        (
            {"streaming": True, "accelerator_config": {"dispatch_batches": True}},
            "dispatch_batches: true, but batches of a streamed corpus differ in width",
        ),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    settings, tmp_path, corpus_file, change, message
):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    text = json.dumps({**settings, **change}).replace("CORPUS", str(corpus_file))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain(json.loads(text.replace('"EMPTY"', json.dumps(str(empty)))))
    assert not (tmp_path / "run").exists()


def test_blank_documents_are_an_empty_corpus(settings, tmp_path):
    (tmp_path / "blank.jsonl").write_text('{"text": ""}\n{"text": "  "}\n')
    with pytest.raises(ValueError, match="None of the 2 documents has any text"):
        pretrain({**settings, "corpus": str(tmp_path / "blank.jsonl")})


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(settings, tmp_path, bert_folder):
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(ValueError, match=r"resize_token_embeddings"):
        pretrain({**settings, "tokenizer": str(tmp_path / "tokenizer")})
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_without_a_mask_token_is_refused(settings, tmp_path, bert_folder):
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(ValueError, match="no mask token"):
        pretrain({**settings, "tokenizer": str(tmp_path / "tokenizer")})
    assert not (tmp_path / "run").exists()


def test_the_output_folder_of_another_run_is_refused_and_untouched(settings, tmp_path):
    pretrain(settings)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")}
    with pytest.raises(ValueError, match=r"another recipe \(seed: 'not set' then, 3 now\)"):
        pretrain({**settings, "seed": 3})
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")} == before


def test_a_foreign_folder_is_refused_and_untouched(settings, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        pretrain(settings)
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["thesis.txt"]
