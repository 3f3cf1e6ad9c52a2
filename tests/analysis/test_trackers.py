"""Trackers that `report_to` names: they get every number of the log, in one run."""

import json
from pathlib import Path

import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from modeling_condenser import CondenserTrainer
from modeling_condenser.analysis.callback import pretrain_and_measure
from modeling_condenser.finetuning.finetune import finetune


def reported(run: Path) -> dict[tuple[int, str], list[float]]:
    """Step and name -> values in the one file of events, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = run.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file), size_guidance={"scalars": 0})
    events.Reload()
    scalars: dict[tuple[int, str], list[float]] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            scalars.setdefault((event.step, name), []).append(event.value)
    return scalars


def check_that_the_whole_log_is_reported(run: Path, *expected: str) -> None:
    log, scalars = json.loads((run / "log.json").read_text()), reported(run)
    assert set(expected) <= {name for entry in log for name in entry}
    for entry in log:
        for name in entry.keys() - {"step"}:
            values = scalars[entry["step"], f"train/{name}"]
            assert any(value == pytest.approx(entry[name]) for value in values), name


@pytest.mark.slow
def test_tensorboard_gets_losses_swap_cost_and_readiness(settings, readiness, tmp_path):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    own = {"readiness": readiness, "report_to": "tensorboard", "output_dir": str(run)}
    pretrain_and_measure({**settings, **own})
    names = "loss head_loss late_loss swap_cost readiness/swap_cost readiness/zero_shot_MRR@10"
    check_that_the_whole_log_is_reported(run, *names.split())


@pytest.mark.slow
def test_tensorboard_gets_the_loss_of_finetuning(bert_folder, collection, tmp_path):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    given = {"encoder": str(bert_folder), "pooling": "cls", "collection": str(collection)}
    schedule = {"max_steps": 3, "logging_steps": 1, "per_device_train_batch_size": 4}
    own = {"report_to": "tensorboard", "use_cpu": True, "output_dir": str(run)}
    finetune({**given, **schedule, **own})
    check_that_the_whole_log_is_reported(run, "loss", "learning_rate", "train_loss")


@pytest.mark.slow
def test_a_training_that_ends_early_reports_its_last_readiness_in_the_same_run(
    settings, readiness, tmp_path, monkeypatch
):
    pytest.importorskip("tensorboard")

    class StopAtThree(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop |= state.global_step == 3

    init = CondenserTrainer.__init__
    monkeypatch.setattr(
        CondenserTrainer, "__init__", lambda *a, **k: init(*a, **k, callbacks=[StopAtThree()])
    )
    run = tmp_path / "run"
    own = {"readiness": readiness, "report_to": "tensorboard", "output_dir": str(run)}
    pretrain_and_measure({**settings, **own})
    check_that_the_whole_log_is_reported(run, "readiness/swap_cost")  # in the one file of events
    steps = {step for step, name in reported(run) if name == "train/readiness/swap_cost"}
    assert steps == {0, 2, 3}


@pytest.mark.parametrize("stage", [pretrain_and_measure, finetune])
def test_a_tracker_that_is_not_installed_is_an_error_before_anything_is_written(
    stage, bert_folder, corpus_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(integration_utils, "is_trackio_available", lambda: False)
    text = "corpus" if stage is pretrain_and_measure else "collection"
    given = {"encoder": str(bert_folder), text: str(corpus_file), "report_to": "trackio"}
    with pytest.raises(ValueError, match="report_to names trackio.*pip install trackio"):
        stage({**given, "use_cpu": True, "output_dir": str(tmp_path / "run")})
    assert not (tmp_path / "run").exists()
