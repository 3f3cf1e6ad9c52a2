"""What is recorded of a model's making, and what stays on this machine."""

import json
from pathlib import Path

from modeling_condenser.repository.provenance import (
    Stage,
    read_pretraining,
    read_provenance,
    read_stage,
    write_provenance,
)
from modeling_condenser.runs.run_folder import claim_run_folder


def test_written_stages_come_back_in_order(tmp_path: Path) -> None:
    stages = [
        Stage("Pre-training", {"encoder": "owner/name", "max_steps": 5}, {"seed": 1}),
        Stage(
            "Fine-tuning",
            {"temperature": 0.05},
            {"versions": {"torch": "2.13.0"}},
            ({"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}),
        ),
    ]
    write_provenance(tmp_path, stages)
    assert read_provenance(tmp_path) == stages


def test_a_stage_holds_the_log_of_its_losses(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("max_steps: 2\n")
    log = [
        {"loss": 9.0, "late_loss": 4.0, "head_loss": 5.0, "step": 1, "grad_norm": 3.0},
        {"eval_runtime": 3.0, "step": 1},
        {"loss": 8.0, "step": 2, "num_input_tokens_seen": 77},
        {"train_runtime": 60.0, "train_loss": 8.5, "step": 2},
    ]
    (tmp_path / "log.json").write_text(json.dumps(log))
    stage = read_stage(tmp_path, "Pre-training")
    assert stage is not None
    assert stage.log == (
        {"step": 1, "loss": 9.0, "head_loss": 5.0, "late_loss": 4.0},
        {"step": 2, "loss": 8.0, "num_input_tokens_seen": 77},
    )


def test_a_provenance_of_before_there_were_logs_is_read(tmp_path: Path) -> None:
    old = [{"name": "Pre-training", "recipe": {"max_steps": 5}, "run": {"seed": 1}}]
    (tmp_path / "provenance.json").write_text(json.dumps(old))
    assert read_provenance(tmp_path) == [Stage("Pre-training", {"max_steps": 5}, {"seed": 1}, ())]


def test_neither_recipe_nor_record_gives_this_machine_away(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine"
    (tmp_path / "start" / "x").mkdir(parents=True)
    recipe = {"encoder": "start/x", "hub_token": "not-a-real-one", "corpus": "/home/me/notes.txt"}
    claim_run_folder(run, recipe)
    (run / "run.json").write_text(json.dumps({"data": "/home/me/data.json", "steps": 3}))
    stage = read_stage(run, "Pre-training")
    assert stage is not None
    assert stage.recipe == {"encoder": "local: x", "corpus": "local: notes.txt"}
    assert stage.run == {"data": "local: data.json", "steps": 3}


def test_a_runs_provenance_begins_with_the_run_that_it_started_from(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, encoder in ((first, "owner/base"), (second, str(first / "model"))):
        (folder / "model").mkdir(parents=True)
        (folder / "recipe.yaml").write_text(f"encoder: {encoder}\nseed: {len(folder.name)}\n")
        (folder / "run.json").write_text('{"steps": 3}')
    stages = read_pretraining(second)
    assert [stage.recipe for stage in stages] == [
        {"encoder": "owner/base", "seed": 5},
        {"encoder": "local: model", "seed": 6},
    ]
    assert read_pretraining(tmp_path) == []
