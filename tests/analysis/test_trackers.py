"""Trackers that `report_to` names: they get every number of the log, in one run."""

import json

import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from modeling_condenser import CondenserTrainer
from modeling_condenser.analysis.callback import pretrain_and_measure
from modeling_condenser.finetuning.finetune import finetune


@pytest.mark.slow
def test_tensorboard_gets_the_whole_log_in_one_run_also_of_a_training_that_ends_early(
    settings, readiness, tmp_path, monkeypatch
):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

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

    (file,) = run.rglob("events.out.tfevents.*")
    events = accumulator.EventAccumulator(str(file), size_guidance={"scalars": 0})
    events.Reload()
    scalars: dict[tuple[str, int], list[float]] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            scalars.setdefault((name, event.step), []).append(event.value)
    log = json.loads((run / "log.json").read_text())
    for entry in log:
        for name in entry.keys() - {"step"}:
            values = scalars[f"train/{name}", entry["step"]]
            assert any(value == pytest.approx(entry[name]) for value in values), name
    expected = "loss head_loss late_loss swap_cost readiness/zero_shot_MRR@10"
    assert set(expected.split()) <= {name for entry in log for name in entry}
    swap_cost = "train/readiness/swap_cost"
    assert {step for name, step in scalars if name == swap_cost} == {0, 2, 3}


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
