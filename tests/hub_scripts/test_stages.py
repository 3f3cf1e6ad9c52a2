"""The commands, one after another, as a person types them."""

import json
import re
from pathlib import Path

import pytest
import yaml

from hub_scripts.main import main
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.runs.recipe import read_recipe
from tests.hub.making import N_PASSAGES
from tests.mining.making import make_labelled, make_run_file


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder: the lines that it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.slow
def test_the_demo_starts_from_a_given_encoder_and_its_study_can_be_searched(
    collection, bert_folder, run
):
    recipe = read_recipe("study/from-encoder")
    recipe["pretraining"]["max_length"] = recipe["finetuning"]["passage_max_length"] = 64
    recipe["finetuning"]["num_train_epochs"] = 1
    recipe["fusion"] = "rrf"
    recipe["arms"]["recommended"] |= {"per_device_train_batch_size": 4, "cache_chunk_size": 4}
    Path("small.yaml").write_text(yaml.safe_dump(recipe))
    words = ["--encoder", bert_folder, "--collection", collection, "--output_dir", "out"]
    lines = run("demo", "small.yaml", *words, "--steps", "2", "--labels", "8")
    printed = "\n".join(lines)
    assert "{'" not in printed  # the bar shows the loss in place of log entries
    for arm in ("condenser", "recommended"):
        assert f"\n| {arm} | " in printed
        means = r"\d\.\d{3} in place of \d\.\d{3}"
        gain = (
            rf"{arm} against mlm: MRR@10 {means} with no labels \(p .*, and {means} with 8 labels"
        )
        assert re.search(gain, printed)
    # Three queries, for which BM25 and the encoder put different passages first.
    shown = re.findall(
        r"  (.*)\n    bm25  (right|wrong)  (.*)\n    dense (right|wrong)  (.*)", printed
    )
    assert len(shown) == 3 and all(lexical != dense for _, _, lexical, _, dense in shown)
    assert lines[-1].startswith('  condenser search out "')
    config = json.loads(Path("out/condenser/pretrain/model/config.json").read_text())
    assert (config["skip_from"], config["n_head_layers"]) == (2, 2)
    assert run("search", "out", "one two three")[0].startswith("1. p")


@pytest.mark.slow
def test_encode_writes_vectors_and_a_table(bert_folder, collection, tmp_path, run):
    words = ["--devices", "cpu", "--shard_size", "7", "--table", "table"]
    lines = run("encode", bert_folder, collection, "out", "--pooling", "mean", *words)
    assert lines[:2] == ["embeddings: out", f"  {N_PASSAGES} passages of 32 numbers"]
    assert re.fullmatch(r"  \d+\.\d s, [\d,]+ passages a second, \d\.\d\d GB", lines[2])
    assert lines[-1] == "table: table (1 parquet files)"

    assert Embeddings.open(tmp_path / "out").shard_size == 7
    assert len(list(Path("table").glob("*.parquet"))) == 1


def test_mine_prints_the_result_and_the_next_command(tmp_path, run):
    make_run_file(tmp_path / "run")
    collection = make_labelled(tmp_path / "collection")
    words = ["--first_rank", "3", "--last-rank=40", "--n_negatives", "5", "--answer_filter"]
    printed = "\n".join(run("mine", "run", collection, "out", *words))
    facts = json.loads(Path("out/run.json").read_text())
    assert f"22 queries, {facts['mean_negatives']:.1f} negatives each" in printed
    assert "2 without any, 0 with fewer than asked for, 1 left out without a positive" in printed
    assert f"answer {facts['dropped']['answer']}" in printed
    assert f"--collection {collection} --negatives out/negatives.jsonl" in printed


def test_push_lists_the_files_and_makes_a_branch_and_a_pull_request(
    bert_run, monkeypatch, loopback_hub, run
):
    monkeypatch.setattr("modeling_condenser.hub.push.find_opening_error", lambda _: None)
    encoder = export_encoder(bert_run, "encoder")
    words = ["push", "encoder", "owner/encoder", "--license", "mit", "--private"]
    lines = run(*words, "--dry-run")
    size = (encoder / "model.safetensors").stat().st_size
    assert f"{size:>14,} bytes  model.safetensors" in lines
    assert "license: mit" in lines and lines[-1].startswith("dry run: nothing was sent")
    assert not loopback_hub.repositories
    lines = run(*words, "--revision", "trial", "--message", "As tried")
    repository = loopback_hub.repo("owner/encoder")
    commit = repository.commits("trial")[0]
    assert repository.private and commit.title == "As tried"
    assert lines[-1] == f"pin it: owner/encoder@{commit.sha}"
    assert repository.files("main").keys() == {".gitattributes"}
    assert any("discussions/1" in line for line in run(*words, "--create_pr"))
