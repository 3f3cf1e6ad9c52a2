"""What is recorded of a model's making, and what stays on this machine."""

import json
from pathlib import Path

import pytest
import yaml

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
        Stage("Fine-tuning", {"temperature": 0.05}, {"versions": {"torch": "2.13.0"}}),
    ]
    write_provenance(tmp_path, stages)
    assert read_provenance(tmp_path) == stages


def test_a_folder_without_provenance_has_no_stages(tmp_path: Path) -> None:
    assert read_provenance(tmp_path) == []
    assert read_stage(tmp_path, "Pre-training") is None


def test_a_stage_is_a_runs_recipe_and_record(tmp_path: Path) -> None:
    claim_run_folder(tmp_path / "run", {"encoder": "owner/name", "output_dir": "/somewhere"})
    (tmp_path / "run" / "run.json").write_text(json.dumps({"seed": 3}))
    stage = read_stage(tmp_path / "run", "Pre-training")
    assert stage == Stage("Pre-training", {"encoder": "owner/name"}, {"seed": 3})


@pytest.mark.parametrize(
    ("given", "published"),
    [
        ("owner/name", "owner/name"),
        ("bert-base-uncased", "bert-base-uncased"),
        ("hf://datasets/owner/name", "hf://datasets/owner/name"),
        ("", ""),
        ("condenser", "condenser"),
        (3, 3),
        ("/home/me/secret/encoder", "local: encoder"),
        ("data/here.txt", "local: here.txt"),  # exists
        ("~/secret/corpus.txt", "local: corpus.txt"),
        ("../secret/corpus.txt", "local: corpus.txt"),
        ("secret/plans/corpus.txt", "local: corpus.txt"),  # moved away since
        ("secret/*.txt", "local: *.txt"),
        ("x" * 5000, "x" * 5000),
    ],
)
def test_a_local_path_is_cut_to_its_last_part(
    given: object, published: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "here.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    recipe = {"encoder": given, "corpus": [{"path": given, "split": "train"}]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    stage = read_stage(tmp_path, "Pre-training")
    assert stage is not None
    assert stage.recipe == {"encoder": published, "corpus": [{"path": published, "split": "train"}]}


def test_a_token_is_never_published(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("hub_token: not-a-real-token\nmax_steps: 5\n")
    stage = read_stage(tmp_path, "Pre-training")
    assert stage is not None
    assert stage.recipe == {"max_steps": 5}


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
