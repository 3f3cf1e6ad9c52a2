"""The commands, one after another, as a person types them."""

import json
import re
from pathlib import Path

import pytest
import yaml

from hub_scripts.demo import against_bm25, with_untouched
from hub_scripts.main import main
from modeling_condenser.evaluation.measures import Evaluation, make_evaluation
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.runs.recipe import fill, read_recipe
from modeling_condenser.study.recipe import StudyRecipe
from modeling_condenser.study.results import StudyResults


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder: the lines that it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_the_demo_compares_its_best_arm_with_bm25():
    def evaluation(mrr: float) -> Evaluation:
        return make_evaluation({"MRR@10": {f"q{i}": mrr for i in range(10)}})

    arms = {"mlm": evaluation(0.25), "recommended": evaluation(0.75)}
    results = StudyResults(evaluation(0.5), {"8 labels": arms}, dict.fromkeys(arms, "mlm"), {})
    # Three tests, all with p = 2/1024.
    expected = "recommended with 8 labels: MRR@10 0.750; bm25: 0.500 (p = 0.006)."
    assert against_bm25(results) == expected


def test_the_demo_of_a_published_encoder_has_the_untouched_one_as_its_control():
    recipe = with_untouched(read_recipe("study/demo"))
    (study,) = fill({**recipe, "encoder": "owner/model", "output_dir": "out"}, StudyRecipe)
    assert (study.control, study.arms["untouched"]) == ("untouched", None)
    assert study.finetuning["learning_rate"] == 5e-5  # that of starter is 1e-3


@pytest.mark.slow
def test_the_demo_starts_from_a_given_encoder_and_its_study_can_be_searched(
    collection, bert_folder, run
):
    recipe = read_recipe("study/from-encoder")
    recipe["pretraining"]["max_length"] = recipe["finetuning"]["passage_max_length"] = 64
    recipe["finetuning"]["num_train_epochs"] = 1
    recipe["fusion"] = "rrf"
    recipe["pretraining"]["max_steps"], recipe["train_sizes"] = 2, [8]
    sizes = {"per_device_train_batch_size": 4, "cache_chunk_size": 4, "max_steps": 1}
    recipe["arms"]["recommended"] |= sizes
    Path("small.yaml").write_text(yaml.safe_dump(recipe))
    words = ["--encoder", bert_folder, "--collection", collection, "--output_dir", "out"]
    lines = run("demo", "small.yaml", *words)
    printed = "\n".join(lines)
    assert "{'" not in printed  # the bar shows the loss in place of log entries
    for arm in ("condenser", "recommended"):
        assert f"\n{arm} " in printed
        cells = r"\d\.\d{3} \([+-]\d\.\d{3} [▲▼○], p .*\)"
        assert re.search(rf"\n{arm} +{cells} .*{cells}", printed)
    assert re.search(r"with 8 labels: MRR@10 0\.\d{3}; bm25: 0\.\d{3} \(p ", printed)
    # Three queries, for which BM25 and the encoder put different passages first.
    shown = re.findall(
        r"  (.*)\n    bm25  (right|wrong)  (.*)\n    dense (right|wrong)  (.*)", printed
    )
    assert len(shown) == 3 and all(lexical != dense for _, _, lexical, _, dense in shown)
    assert lines[-1].startswith('  condenser search out "')
    config = json.loads(Path("out/condenser/pretrain/model/config.json").read_text())
    assert (config["skip_from"], config["n_head_layers"]) == (2, 2)
    assert run("search", "out", "one two three")[0].startswith("1. p")


def test_the_demo_shows_searches_of_an_encoder_that_nothing_has_trained(collection, exported, run):
    recipe = {"arms": {"start": None}, "control": "start", "pretraining": {}, "finetuning": {}}
    Path("untrained.yaml").write_text(yaml.safe_dump({**recipe, "train_sizes": []}))
    words = ["--encoder", exported, "--collection", collection, "--output_dir", "out"]
    lines = run("demo", "untrained.yaml", *words)
    assert any(line.startswith("    dense ") for line in lines)


def test_push_lists_the_files_and_makes_a_branch_and_a_pull_request(
    bert_run, monkeypatch, loopback_hub, run
):
    monkeypatch.setattr("modeling_condenser.publishing.push.find_opening_error", lambda _: None)
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
