"""Run folders: claimed for one recipe, filled whole or not at all."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from modeling_condenser.runs.run_folder import (
    RECIPE_FILE,
    RUN_FILE,
    claim_run_folder,
    describe_machine,
    record_run,
    whole_folder,
)

SETTINGS = {
    "encoder": "bert",
    "corpus": [{"path": "a.txt", "join_rows": 2}],
    "learning_rate": 1e-5,
    "save_steps": 100,
    "output_dir": "runs/a",
}


def contents(folder: Path) -> dict[str, str]:
    files = filter(Path.is_file, folder.rglob("*"))
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def test_a_new_or_empty_folder_gets_the_recipe(tmp_path):
    # Another machine of the same run may be writing it.
    (tmp_path / ".recipe.yaml.other-machine-7.partial").touch()
    for folder in (tmp_path, tmp_path / "runs" / "new"):
        claim_run_folder(folder, SETTINGS)
        written = yaml.safe_load((folder / RECIPE_FILE).read_text())
        assert written == {n: v for n, v in SETTINGS.items() if n != "output_dir"}


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        claim_run_folder(tmp_path, SETTINGS)


def test_a_run_resumes_with_the_same_settings_but_for_those_that_do_not_change_its_result(tmp_path):
    claim_run_folder(tmp_path, SETTINGS)
    before = contents(tmp_path)
    free = {"save_steps": 7, "dataloader_num_workers": 4, "output_dir": "moved/elsewhere"}
    changed = {**SETTINGS, **free}
    claim_run_folder(tmp_path, changed)
    del changed["encoder"]
    with pytest.raises(ValueError, match="another recipe .encoder: 'bert' then, 'not set' now, s"):
        claim_run_folder(tmp_path, {**changed, "seed": 3})
    assert contents(tmp_path) == before


def test_a_record_holds_facts_versions_and_machine(tmp_path):
    record_run(tmp_path, {"seed": 4, "steps": 10})
    record = json.loads((tmp_path / RUN_FILE).read_text())
    assert record == {**describe_machine(), "seed": 4, "steps": 10}
    assert record["versions"]["python"] == platform.python_version()
    assert record["versions"]["torch"] == version("torch")
    assert record["hardware"]["cores"] >= 1 and record["hardware"]["cpu"]


@pytest.mark.parametrize("exists", [False, True])
def test_an_error_leaves_the_old_folder_and_no_partial_one(exists, tmp_path):
    folder = tmp_path / "deep" / "model"
    if exists:
        folder.mkdir(parents=True)
        (folder / "old").write_text("old")
    with pytest.raises(KeyboardInterrupt), whole_folder(folder) as partial:  # noqa: PT012
        (partial / "weights").write_text("half of the wei")
        raise KeyboardInterrupt
    assert contents(tmp_path) == ({"deep/model/old": "old"} if exists else {})
    assert [entry.name for entry in folder.parent.iterdir()] == (["model"] if exists else [])


def test_a_finished_folder_replaces_old_and_partial_ones(tmp_path):
    for name in ("model", ".model.partial", ".model.replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("old")
    with whole_folder(tmp_path / "model") as partial:
        (partial / "weights").write_text("new")
    assert contents(tmp_path) == {"model/weights": "new"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
