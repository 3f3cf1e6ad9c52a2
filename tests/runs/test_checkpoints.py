"""Checkpoints: complete ones are told from incomplete and damaged ones."""

import json
import logging
from pathlib import Path

import pytest

from modeling_condenser.runs.checkpoints import (
    MANIFEST,
    drop_old_checkpoints,
    find_damage,
    last_whole_checkpoint,
    seal_checkpoint,
    write_json,
)


def make_checkpoint(run_folder: Path, step: int, *, sealed: bool = True) -> Path:
    folder = run_folder / f"checkpoint-{step}"
    (folder / "part").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights %d" % step)
    (folder / "part" / "state.bin").write_bytes(bytes(step % 256 for _ in range(5000)))
    if sealed:
        seal_checkpoint(folder)
    return folder


def test_a_manifest_names_each_file_with_its_size(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, 1)
    assert json.loads((folder / MANIFEST).read_text()) == {
        "model.safetensors": {"size": 9},
        "part/state.bin": {"size": 5000},
    }
    assert find_damage(folder) is None


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, 7)
    weights, state = folder / "model.safetensors", folder / "part" / "state.bin"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert find_damage(folder) == "model.safetensors has 8 bytes instead of 9"
    weights.write_bytes(whole)
    assert find_damage(folder) is None
    state.unlink()
    assert find_damage(folder) == "part/state.bin is missing"


def test_a_manifest_with_checksums_of_an_older_version_is_read(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, 1)
    files = {"model.safetensors": {"size": 9, "sha256": "0" * 64}}
    (folder / MANIFEST).write_text(json.dumps(files))
    assert last_whole_checkpoint(tmp_path) == folder


@pytest.mark.parametrize("content", [b"", b'{"model.safetensors": {"si', b"\xff\xfe\x00"])
def test_a_damaged_manifest_is_a_damage(content: bytes, tmp_path: Path) -> None:
    older = make_checkpoint(tmp_path, 1)
    newer = make_checkpoint(tmp_path, 2)
    (newer / MANIFEST).write_bytes(content)
    assert find_damage(newer) == f"{MANIFEST} cannot be read"
    assert last_whole_checkpoint(tmp_path) == older


def test_a_manifest_that_a_killed_process_left_is_ignored(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, 1, sealed=False)
    (folder / f".{MANIFEST}.partial").write_text('{"model.saf')
    assert last_whole_checkpoint(tmp_path) is None
    seal_checkpoint(folder)  # the run came to this step again
    assert find_damage(folder) is None
    assert last_whole_checkpoint(tmp_path) == folder


def test_the_newest_whole_checkpoint_is_chosen_by_number(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        make_checkpoint(tmp_path, step)
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-100"


def test_incomplete_and_damaged_checkpoints_are_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_checkpoint(tmp_path, 10)
    make_checkpoint(tmp_path, 20)
    (make_checkpoint(tmp_path, 30) / "model.safetensors").unlink()
    make_checkpoint(tmp_path, 40, sealed=False)
    (tmp_path / "checkpoint-final").mkdir()
    with caplog.at_level(logging.WARNING):
        assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-20"
    incomplete, damaged = (record.getMessage() for record in caplog.records)
    assert "checkpoint-40 is incomplete" in incomplete
    assert "checkpoint-30 is damaged (model.safetensors is missing)" in damaged


def test_without_a_complete_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert last_whole_checkpoint(tmp_path / "no such folder") is None
    make_checkpoint(tmp_path, 5, sealed=False)
    assert last_whole_checkpoint(tmp_path) is None  # a run killed in its first save starts again


def test_damaged_checkpoints_alone_are_an_error_that_names_them(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path, 1) / "model.safetensors").write_bytes(b"short")
    (make_checkpoint(tmp_path, 2) / "part" / "state.bin").unlink()
    with pytest.raises(ValueError, match="No checkpoint in .* can be resumed from") as error:
        last_whole_checkpoint(tmp_path)
    assert "checkpoint-1: model.safetensors has 5 bytes instead of 9" in str(error.value)
    assert "checkpoint-2: part/state.bin is missing" in str(error.value)


def steps(run_folder: Path) -> list[int]:
    return sorted(int(folder.name.split("-")[1]) for folder in run_folder.iterdir())


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (2, None, [30, 100]),
        (9, None, [9, 20, 30, 100]),
        (None, None, [9, 20, 30, 100]),
        (1, 9, [9, 100]),
        (2, 20, [20, 30, 100]),
    ],
)
def test_the_newest_and_the_best_are_kept(
    keep: int | None, best: int | None, left: list[int], tmp_path: Path
) -> None:
    for step in (100, 9, 30, 20):
        make_checkpoint(tmp_path, step)
    best_folder = None if best is None else f"{tmp_path}/../{tmp_path.name}/checkpoint-{best}"
    drop_old_checkpoints(tmp_path, keep=keep, best=best_folder)
    assert steps(tmp_path) == left


def test_an_incomplete_checkpoint_does_not_count_as_one_that_is_kept(tmp_path: Path) -> None:
    for step in (10, 20):
        make_checkpoint(tmp_path, step)
    make_checkpoint(tmp_path, 30, sealed=False)
    drop_old_checkpoints(tmp_path, keep=1)
    assert steps(tmp_path) == [20, 30]
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-20"


def test_json_is_written_atomically(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_json(file, {"b": 1, "a": [0.5, None, "é"]})
    assert json.loads(file.read_text()) == {"a": [0.5, None, "é"], "b": 1}
    before = file.read_bytes()
    with pytest.raises(TypeError):
        write_json(file, {"a": 1, "b": object()})
    assert file.read_bytes() == before
    with file.open("rb") as reader:
        write_json(file, [])
        assert reader.read() == before  # who had it open reads the old one, whole
    assert file.read_text() == "[]\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]
