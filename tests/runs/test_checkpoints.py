"""Complete checkpoints are told from incomplete ones by their marker."""

import pytest

from modeling_condenser.runs.checkpoints import (
    drop_old_checkpoints,
    last_whole_checkpoint,
    seal_checkpoint,
)


def make_checkpoint(run_folder, step, *, sealed=True):
    folder = run_folder / f"checkpoint-{step}"
    folder.mkdir()
    if sealed:
        seal_checkpoint(folder)


def test_the_newest_complete_checkpoint_is_chosen_by_number(tmp_path, caplog):
    assert last_whole_checkpoint(tmp_path / "no such folder") is None
    make_checkpoint(tmp_path, 200, sealed=False)
    assert last_whole_checkpoint(tmp_path) is None  # a run killed in its first save starts again
    for step in (9, 100, 20):
        make_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-final").mkdir()
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-100"
    assert "checkpoint-200 is incomplete" in caplog.text


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [(2, None, [30, 100, 200]), (None, None, [9, 20, 30, 100, 200]), (1, 9, [9, 100, 200])],
)
def test_the_newest_the_best_and_incomplete_ones_are_kept(keep, best, left, tmp_path):
    for step in (100, 9, 30, 20):
        make_checkpoint(tmp_path, step)
    make_checkpoint(tmp_path, 200, sealed=False)
    best_folder = None if best is None else f"{tmp_path}/../{tmp_path.name}/checkpoint-{best}"
    drop_old_checkpoints(tmp_path, keep=keep, best=best_folder)
    assert sorted(int(folder.name.split("-")[1]) for folder in tmp_path.iterdir()) == left
