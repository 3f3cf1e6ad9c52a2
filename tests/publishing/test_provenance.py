"""Provenance and results of a model: what is recorded, and what stays on this machine."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from modeling_condenser.files import models
from modeling_condenser.files.models import find_model_folder
from modeling_condenser.publishing import provenance
from modeling_condenser.publishing.provenance import (
    EvaluationResult,
    Stage,
    add_result,
    read_provenance,
    read_results,
    read_start,
)


def test_a_stage_holds_recipe_record_and_log_without_paths_and_secrets(tmp_path):
    recipe = {"encoder": "./start", "hub_token": "not-a-real-one", "corpus": "/home/me/notes.txt"}
    log = [
        {"loss": 9.0, "late_loss": 4.0, "head_loss": 5.0, "step": 1, "grad_norm": 3.0},
        {"eval_runtime": 3.0, "step": 1},
        {"loss": float("nan"), "late_loss": 8.0, "step": 2, "num_input_tokens_seen": 77},
        {"train_runtime": 60.0, "train_loss": 8.5, "step": 2},
    ]
    run = {"data": "/home/me/data.json", "steps": 3}
    stage = provenance.describe_stage("Pre-training", recipe, run, log)
    assert stage == Stage(
        "Pre-training",
        recipe={"encoder": "local: start", "corpus": "local: *.txt"},
        run={"data": "local: *.json", "steps": 3},
        log=[
            {"step": 1, "loss": 9.0, "head_loss": 5.0, "late_loss": 4.0, "grad_norm": 3.0},
            {"step": 2, "late_loss": 8.0, "num_input_tokens_seen": 77},
        ],
    )
    provenance.write_provenance(tmp_path, [stage])
    assert provenance.read_provenance(tmp_path) == [stage]


@pytest.mark.parametrize(
    ("given", "published"),
    [
        ("owner/name@refs/pr/1", "owner/name@refs/pr/1"),
        ("bert-base-uncased", "bert-base-uncased"),
        ("data", "local: data"),  # exists
        ("hf://datasets/owner/name", "hf://datasets/owner/name"),
        (True, True),
        ("data/here", "local: here"),  # exists
        ("secret/plans/corpus", "local: corpus"),
        ("data/..", "local: .."),
        (r"C:\Users\me\encoder", "local: encoder"),
        ("file:///home/me/models", "local: models"),
        ("/home/me/hub/models--owner--name/snapshots/86b5e093", "owner/name"),
        ("https://me:pass@example.org/a.txt?sig=1", "https://…example.org/a.txt"),
        ("run --key hf_" + "A" * 34, "run --key …"),
        ("./starter", "local: starter"),
        ("starter", "starter of condenser"),
        (str(models.STARTER_FOLDER), "starter of condenser"),
    ],
)
def test_a_setting_says_nothing_of_this_machine(given, published, tmp_path, monkeypatch):
    (tmp_path / "data" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    recipe = {"encoder": given, "inner": [{"encoder": given, "split": "train"}]}
    expected = {"encoder": published, "inner": [{"encoder": published, "split": "train"}]}
    assert provenance.publishable(recipe) == expected


def test_the_stages_of_a_start_on_the_hub_are_read(bert_run, loopback_hub):
    commit = loopback_hub.put(bert_run / "model", "owner/condenser")
    name = f"owner/condenser@{commit}"
    assert read_start(name) == []  # which no training has fetched
    find_model_folder(name)
    assert [stage.name for stage in read_start(name)] == ["Pre-training"]
    assert read_start("nowhere") == read_start(None) == []


def test_a_file_of_another_kind_is_no_record_of_stages(bert_folder, tmp_path, caplog):
    start = shutil.copytree(bert_folder, tmp_path / "start")
    (start / "provenance.json").write_text('{"source": "of another tool"}')
    with pytest.raises(ValueError, match="does not hold the stages of a training"):
        read_provenance(start)
    assert read_start(str(start)) == [] and "are not recorded" in caplog.text


def test_names_of_processors_versions_and_columns_are_no_paths():
    facts = {
        "hardware": {"cpu": "AMD EPYC / Milan", "cores": 2, "gpus": ["A / B"]},
        "versions": {"torch": "2.13.0+a/b"},
        "columns": {"query": "question / title", "passage": "a/b.c"},
        "text_column": "abstract / title",
    }
    assert provenance.publishable(facts) == facts


def test_the_names_of_documents_are_not_published(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clients").mkdir()
    Path("clients/layoffs.csv").touch()
    recipe = {
        "corpus": ["merger.txt", "./plans/merger.txt", "clients", "wikitext", "owner/texts"],
        "data": {"path": "clients/layoffs.csv", "split": "train"},
        "encoder": "./start-1.5",
        "beside": ["/home/me/a.csv", "https://u:pw99@h/x?t=1"],
    }
    assert provenance.publishable(recipe) == {
        "corpus": ["local: *.txt", "local: *.txt", "local: clients", "wikitext", "owner/texts"],
        "data": {"path": "local: *.csv", "split": "train"},
        "encoder": "local: start-1.5",
        "beside": ["local: *.csv", "https://…h/x"],
    }


def test_secrets_are_left_out_at_any_depth_and_prompts_are_not_paths():
    names = ["hub_token", "push_to_hub_token", "token", "WANDB_API_KEY", "password", "output_dir"]
    secrets = dict.fromkeys(names, "not-a-real-one")
    prompts = {"query_prompt": "and/or/not: ", "passage_prompt": "./", "title_separator": " / / "}
    kept = {"tokens_seen": 1, "tokenizer": "owner/name"}
    settings = {**secrets, "inner": {**secrets, **kept}, **prompts}
    assert provenance.publishable(settings) == {"inner": kept, **prompts}


RESULT = EvaluationResult(
    *("scifact", "test", 100, 300),
    values={"nDCG@10": 0.651234567891, "R@100": 0.9},
    source="BeIR/scifact",
    comparisons=[{"baseline": "bm25", "measure": "nDCG@10", "value": 0.6651, "p_value": 0.31}],
)
LOCAL = EvaluationResult("../my own | docs\n", "dev", 100, 5, {"MRR@10": 0.5})


def test_what_is_written_comes_back(tmp_path):
    for result in (RESULT, LOCAL):
        add_result(tmp_path, result)
    found = read_results(tmp_path)
    assert [replace(result, date=None, versions={}) for result in found] == [RESULT, LOCAL]
    first, second = json.loads((tmp_path / "evaluation_results.json").read_text())
    assert first["values"] == {"nDCG@10": 0.651234567891, "R@100": 0.9}
    assert first["comparisons"] == RESULT.comparisons
    assert "intervals" not in first and second["source"] is None


def test_a_result_replaces_only_that_of_the_same_split_depth_search_and_source(tmp_path):
    add_result(tmp_path, RESULT)
    for other in (
        {"split": "dev"},
        {"depth": 9},
        {"search": {"index": "HNSW32"}},
        {"source": None},
    ):
        add_result(tmp_path, replace(RESULT, **other))
    add_result(tmp_path, replace(RESULT, values={"R@100": 0.25}))
    results = read_results(tmp_path)
    assert [result.values for result in results] == [{"R@100": 0.25}, *[RESULT.values] * 4]
