"""Run folders: claimed for one recipe, filled completely or not at all; their checkpoints."""

import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from modeling_condenser.files.run_folder import (
    DATA,
    RECIPE_FILE,
    atomic_folder,
    check_run_folder,
    chosen_checkpoint,
    claim_run_folder,
    hash_data,
    last_checkpoint,
    read_run,
    stored_settings,
)
from tests.publishing.loopback_hub import contents

SETTINGS: dict[str, Any] = {
    "encoder": "bert",
    "learning_rate": 1e-5,
    "save_steps": 100,
    "output_dir": "runs/a",
}
SETTINGS |= {"corpus": [{"path": Path("a.txt"), "join_rows": 2}], "label_names": ("labels",)}


def test_a_new_or_empty_folder_gets_the_recipe(tmp_path):
    # Another machine of the same run may be writing it.
    (tmp_path / ".recipe.yaml.other-machine-7.partial").touch()
    for folder in (tmp_path, tmp_path / "runs" / "new"):
        claim_run_folder(folder, SETTINGS, "a")
        written = yaml.safe_load((folder / RECIPE_FILE).read_text())
        plain = {"corpus": [{"path": "a.txt", "join_rows": 2}], "label_names": ["labels"]}
        assert written == {n: v for n, v in {**SETTINGS, **plain}.items() if n != "output_dir"}


def test_a_run_resumes_with_the_same_settings_but_for_those_that_do_not_change_its_result(tmp_path):
    claim_run_folder(tmp_path, SETTINGS, "a")
    (tmp_path / "checkpoint-1").mkdir()
    before = contents(tmp_path)
    free = {"save_steps": 7, "dataloader_num_workers": 4, "output_dir": "moved/elsewhere"}
    free |= {"activation_checkpointing": True, "gradient_checkpointing": True, "use_cpu": True}
    changed = {**SETTINGS, **free}
    claim_run_folder(tmp_path, changed, "a")
    claim_run_folder(tmp_path, {**changed, "eval_steps": 5, "ddp_timeout": 7200}, "a")
    del changed["encoder"]
    with pytest.raises(ValueError, match="another run .encoder: 'bert' then, 'not set' now, s"):
        claim_run_folder(tmp_path, {**changed, "seed": 3}, "a")
    assert contents(tmp_path) == before


def test_a_run_belongs_to_its_number_of_processes_unless_its_batch_is_compared(
    tmp_path, monkeypatch
):
    for batch in (None, 8):
        folder = tmp_path / str(batch)
        monkeypatch.setenv("WORLD_SIZE", "2")
        claim_run_folder(folder, SETTINGS, "a", batch=batch)
        make_checkpoint(folder, 1)
        claim_run_folder(folder, SETTINGS, "a", batch=batch)
        monkeypatch.delenv("WORLD_SIZE")
        if batch is None:
            with pytest.raises(ValueError, match="another run .processes: 2 then, 1 now"):
                claim_run_folder(folder, SETTINGS, "a")
            (folder / "model").mkdir()  # it is finished
        claim_run_folder(folder, SETTINGS, "a", batch=batch)


def test_evaluations_that_choose_the_model_do_not_change(tmp_path):
    settings = {**SETTINGS, "load_best_model_at_end": True, "eval_steps": 4}
    claim_run_folder(tmp_path, settings, "a")
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(ValueError, match="another run .eval_steps: 4 then, 5 now"):
        claim_run_folder(tmp_path, {**settings, "eval_steps": 5}, "a")


def test_a_run_belongs_to_its_data(tmp_path):
    data, other = hash_data("corpus", 3), hash_data(3, "corpus")
    assert data != other
    claim_run_folder(tmp_path, SETTINGS, data)
    (tmp_path / "model").mkdir()
    check_run_folder(tmp_path, SETTINGS)  # before the data are read
    with pytest.raises(ValueError, match=f"data: {data[:12]} then, {other[:12]} now"):
        claim_run_folder(tmp_path, SETTINGS, other)


def test_a_run_that_stored_nothing_may_begin_anew_with_other_settings(tmp_path):
    for settings, data in ((SETTINGS, "a"), ({**SETTINGS, "seed": 3}, "a"), (SETTINGS, "b")):
        check_run_folder(tmp_path, settings)
        claim_run_folder(tmp_path, settings, data, batch=8)
        assert stored_settings(tmp_path).get("seed") == settings.get("seed")
        assert read_run(tmp_path)[DATA] == data
        (tmp_path / "eval").mkdir(exist_ok=True)  # of sentence-transformers' first evaluation
        (tmp_path / "runs").mkdir(exist_ok=True)  # of TensorBoard
        (tmp_path / "log.json").write_text("[]")
    with subprocess.Popen(["sleep", "60"]) as other:  # a process that has not ended
        (tmp_path / ".process").write_text(f"{platform.node()} {other.pid}")
        with pytest.raises(ValueError, match="another run .seed"):
            check_run_folder(tmp_path, {**SETTINGS, "seed": 4})
        check_run_folder(tmp_path, SETTINGS)
        other.kill()


def test_a_folder_is_replaced_when_it_is_complete(tmp_path):
    for name in ("model", ".model.new", ".model.old"):  # the last two of a killed process
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "model") as partial:  # noqa: PT012
        (partial / "weights").write_text("half of the wei")
        raise KeyboardInterrupt
    assert (tmp_path / "model/old").read_text() == "old"
    with atomic_folder(tmp_path / "model") as partial:
        (partial / "weights").write_text("new")
    assert contents(tmp_path) == {"model/weights": b"new"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_link_to_a_folder_stays_one(tmp_path):
    (tmp_path / "disk/model").mkdir(parents=True)
    (tmp_path / "model").symlink_to(tmp_path / "disk/model")
    for text in ("first", "second"):
        with atomic_folder(tmp_path / "model") as partial:
            (partial / "weights").write_text(text)
    assert (tmp_path / "model").is_symlink()
    assert contents(tmp_path / "disk") == {"model/weights": b"second"}


def test_the_old_folder_is_back_when_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_text("old")
    rename = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if path.name == ".model.new":
            raise OSError("No space left")
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"), atomic_folder(tmp_path / "model"):
        pass
    assert contents(tmp_path) == {"model/weights": b"old"}


@pytest.mark.parametrize("name", [".", "..", "model/..", "/proc"])
def test_the_current_folder_and_a_volume_are_not_replaced(name):
    with pytest.raises(ValueError, match="name a new folder in it"), atomic_folder(Path(name)):
        pass


def make_checkpoint(run_folder, step, *, state='{"global_step": 1}'):
    folder = run_folder / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "trainer_state.json").write_text(state)


def test_the_newest_complete_checkpoint_is_chosen_by_number(tmp_path):
    assert last_checkpoint(tmp_path / "no such folder") is None
    make_checkpoint(tmp_path, 200, state='{"glob')
    assert last_checkpoint(tmp_path) is None  # a run killed in its first save starts again
    for step in (9, 100, 20):
        make_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-final").mkdir()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-100"


def test_an_unfinished_run_is_its_best_checkpoint_if_it_would_end_with_that(tmp_path):
    make_checkpoint(tmp_path, 20)
    make_checkpoint(tmp_path, 40, state='{"best_global_step": 20}')
    for settings, step in (
        ({}, 20),  # as in fine-tuning with dev queries
        ({"load_best_model_at_end": True, "metric_for_best_model": "loss"}, 20),
        ({"metric_for_best_model": "loss"}, 40),
        ({"load_best_model_at_end": False}, 40),
    ):
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))
        assert chosen_checkpoint(tmp_path) == tmp_path / f"checkpoint-{step}"
