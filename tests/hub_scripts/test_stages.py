"""The commands, one after another, as a person types them."""

import json
import re
from pathlib import Path

import pytest
import yaml
from datasets import Dataset

from hub_scripts.main import main
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.evaluation.system_results import evaluate_system
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.runs.recipe import read_recipe
from tests.hub.making import N_PASSAGES
from tests.mining.making import make_labelled, make_run_file


@pytest.mark.slow
def test_the_commands_lead_from_text_to_an_evaluated_retriever(
    bert_folder, collection, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        """What a command prints beside the training log."""
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]

    shared = {"use_cpu": True, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "seed": 1}
    own = {"encoder": str(bert_folder), "max_length": 32, "max_steps": 50, **shared}
    (tmp_path / "pretrain.yaml").write_text(json.dumps(own))
    changes = ["--corpus", collection / "corpus.jsonl", "--output_dir=runs/cd", "--max-steps", 3]
    lines = run("pretrain", "pretrain.yaml", *changes)
    assert lines == ["checkpoint: runs/cd/model", "next: condenser export runs/cd ENCODER_FOLDER"]
    assert json.loads(Path("runs/cd/run.json").read_text())["steps"] == 3

    assert run("export", "runs/cd", "encoder") == ["encoder: encoder"]

    own = {"encoder": "encoder", "num_train_epochs": 1, **shared}
    (tmp_path / "finetune.yaml").write_text(json.dumps(own))
    lines = run("finetune", "finetune.yaml", "--collection", collection, "--output_dir", "runs/ft")
    next_command = f"next: condenser evaluate runs/ft/model {collection}"
    assert lines == ["retriever: runs/ft/model", next_command]

    lines = run("evaluate", "--baseline", "bm25", "runs/ft/model", collection)
    folder = Path("runs/evaluation/small/test")
    own_result = evaluate_system("runs/ft/model", collection, folder / "ft", progress=False)
    assert lines[:2] == ["small, test: 2 systems on 20 queries", "bm25:"]
    for name, mean in own_result.evaluation.means.items():
        assert any(line.startswith(f"  {name:<7}  {mean:.4f}   ") for line in lines), name
    assert lines[-1] == f"report: {folder}/report.md"


@pytest.mark.slow
def test_the_demo_starts_from_a_given_encoder_and_its_study_can_be_searched(
    collection, bert_folder, tmp_path, capsys
):
    out = tmp_path / "demo"
    recipe = read_recipe("study/from-encoder")
    recipe["pretraining"]["max_length"] = recipe["finetuning"]["passage_max_length"] = 64
    recipe["finetuning"]["num_train_epochs"] = 1
    recipe["arms"]["cocondenser"] |= {"per_device_train_batch_size": 4, "cache_chunk_size": 4}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(recipe))
    words = ["demo", str(tmp_path / "small.yaml"), "--encoder", str(bert_folder)]
    words += ["--collection", str(collection), "--output_dir", str(out)]
    assert main([*words, "--steps", "2", "--labels", "8"]) == 0
    printed = capsys.readouterr().out
    for arm in ("condenser", "cocondenser"):
        assert f"| {arm}, 8 labels | " in printed
    assert f'condenser search {out} "' in printed
    config = json.loads((out / "condenser/pretrain/model/config.json").read_text())
    assert (config["skip_from"], config["n_head_layers"]) == (2, 2)
    assert not (out / "start").exists()
    assert main(["search", str(out), "one two three"]) == 0
    assert "1. p" in capsys.readouterr().out


@pytest.mark.slow
def test_encode_writes_vectors_and_a_table(bert_folder, collection, tmp_path, capsys):
    out, table = tmp_path / "embeddings", tmp_path / "table"
    words = ["encode", str(bert_folder), str(collection), str(out), "--pooling", "mean"]
    words += ["--devices", "cpu", "--shard_size", "7", "--table", str(table)]
    assert main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"embeddings: {out}"
    assert printed[1] == f"  {N_PASSAGES} passages of 32 numbers"
    assert re.fullmatch(r"  \d+\.\d s, [\d,]+ passages a second, \d\.\d\d GB", printed[2])
    assert printed[-1] == f"table: {table} (1 parquet files)"

    assert Embeddings.open(out).shard_size == 7
    [parquet] = table.glob("*.parquet")
    read = Dataset.from_parquet(str(parquet), cache_dir=str(tmp_path / "cache"))
    assert read["id"][:] == [f"p{i:02d}" for i in range(N_PASSAGES)]
    # Vectors of another pooling are refused in the same folder.
    assert main(["encode", f"{bert_folder},pooling=max", str(collection), str(out)]) == 2
    assert "pooling" in capsys.readouterr().err


def test_mine_prints_the_result_and_the_next_command(tmp_path, capsys):
    make_run_file(tmp_path / "run")
    collection, out = make_labelled(tmp_path / "collection"), tmp_path / "out"
    words = ["mine", str(tmp_path / "run"), str(collection), str(out)]
    changes = ["--first_rank", "3", "--last-rank=40", "--n_negatives", "5", "--answer_filter"]
    assert main([*words, *changes]) == 0
    printed = capsys.readouterr().out
    facts = json.loads((out / "run.json").read_text())
    assert f"22 queries, {facts['mean_negatives']:.1f} negatives each" in printed
    assert "2 without any, 0 with fewer than asked for, 1 left out without a positive" in printed
    assert f"answer {facts['dropped']['answer']}" in printed
    assert f"--collection {collection} --negatives {out / 'negatives.jsonl'}" in printed


def test_push_lists_the_files_and_makes_a_branch_and_a_pull_request(
    bert_run, tmp_path, monkeypatch, capsys, loopback_hub
):
    monkeypatch.setattr("modeling_condenser.hub.push.opening_problems", lambda *_: [])
    encoder = export_encoder(bert_run, tmp_path / "encoder")
    words = ["push", str(encoder), "owner/encoder", "--license", "mit", "--private"]
    assert main([*words, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    size = (encoder / "model.safetensors").stat().st_size
    assert f"{size:>14,} bytes  model.safetensors" in lines
    n_files = sum(file.is_file() for file in encoder.rglob("*"))
    assert lines[-2].endswith(f"bytes in {n_files} files")
    assert lines[-1] == "dry run: nothing was sent to owner/encoder"
    assert not loopback_hub.has_repo("owner/encoder")

    assert main([*words, "--revision", "trial", "--message", "As tried"]) == 0
    repository = loopback_hub.repo("owner/encoder")
    commit = repository.commits("trial")[0]
    assert repository.private and commit.title == "As tried"
    assert f"pin it: owner/encoder@{commit.sha}" in capsys.readouterr().out
    assert repository.files("main").keys() == {".gitattributes"}
    assert main([*words, "--create_pr"]) == 0
    assert "discussions/1" in capsys.readouterr().out
