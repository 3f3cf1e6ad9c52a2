"""How often a run logs and saves, if its settings do not say so."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.training import trainer
from modeling_condenser.training.run import Pace
from tests.pretraining.short_runs import SETTINGS, interrupted_at
from tests.run_logs import read_log


@pytest.fixture
def train(tmp_path, bert_folder, texts, monkeypatch):
    """Pre-trains without stated intervals, at forty seconds a step."""
    clock = iter(range(0, 10**6, 40))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(trainer, "write_card", lambda folder, **_: None)  # it takes seconds
    monkeypatch.setattr("modeling_condenser.training.run._LOG_SECONDS", 0)

    def run(**changes) -> Path:
        (tmp_path / "corpus.txt").write_text("\n".join(texts[:20]))
        settings = {
            **SETTINGS,
            "objective": "mlm",
            "encoder": str(bert_folder),
            "corpus": str(tmp_path / "corpus.txt"),
            "output_dir": str(tmp_path / "run"),
            "per_device_train_batch_size": 1,
        }
        for name in ("logging_steps", "save_strategy"):
            del settings[name]
        return pretrain(**settings | changes)

    return run


def steps_of(run: Path) -> list[int]:
    return sorted(int(folder.name.split("-")[1]) for folder in run.glob("checkpoint-*"))


def test_twenty_log_entries_and_a_checkpoint_every_five_minutes_and_at_the_end(
    train, tmp_path, caplog
):
    caplog.set_level("INFO", "modeling_condenser")
    train(max_steps=21, save_total_limit=9)
    assert [entry["step"] for entry in read_log(tmp_path / "run")] == [*range(2, 21, 2)]
    checkpoints = steps_of(tmp_path / "run")
    assert checkpoints[-1] == 21 and 3 <= len(checkpoints) <= 5
    assert "21 steps: a log entry every 2, a checkpoint every 5 minutes and" in caplog.text


def test_several_processes_ask_for_the_time_every_five_steps(monkeypatch):
    asked = []
    broadcast = "modeling_condenser.training.run.broadcast_object_list"
    monkeypatch.setattr(broadcast, lambda values: asked.append(step) or values)
    monkeypatch.setattr(time, "monotonic", lambda: 10**6)
    control = SimpleNamespace(should_save=False)
    for n_processes, expected in ((2, [20, 25, 30, 35, 40]), (1, [*range(20, 42)])):
        asked.clear()
        pace = Pace(is_timed=True)
        for step in range(20, 42):
            arguments = SimpleNamespace(world_size=n_processes)
            pace.on_step_end(arguments, SimpleNamespace(global_step=step), control)
        assert asked == expected and control.should_save


def test_stated_intervals_are_kept(train, tmp_path):
    train(max_steps=4, logging_steps=2, save_steps=3)
    assert [entry["step"] for entry in read_log(tmp_path / "run")] == [2, 4]
    assert steps_of(tmp_path / "run") == [3, 4]


def test_a_resumed_run_takes_other_intervals(train, tmp_path):
    with interrupted_at(9):
        train(max_steps=16)
    assert [entry["step"] for entry in read_log(tmp_path / "run")] == [*range(1, 10)]
    assert max(steps_of(tmp_path / "run")) < 9
    train(max_steps=16, save_steps=3, save_total_limit=9, logging_steps=4)
    assert {9, 12, 15, 16} <= {*steps_of(tmp_path / "run")}
    assert [entry["step"] for entry in read_log(tmp_path / "run") if entry["step"] > 9] == [12, 16]
