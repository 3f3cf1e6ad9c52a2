"""Readiness while training: measured, logged, and without effect on the training."""

import json
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoTokenizer, TrainerCallback

from modeling_condenser import CondenserForMaskedLM, CondenserForPreTraining, CondenserTrainer
from modeling_condenser.analysis.callback import ReadinessCallback, readiness_callbacks
from modeling_condenser.analysis.readiness import measure_checkpoint
from modeling_condenser.analysis.recipe import Measuring
from modeling_condenser.analysis.sample import Sample
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.publishing.export import export_encoder
from tests.evaluation.making import evaluate_system
from tests.run_logs import read_log


def readiness_of(run):
    return read_log(run, measure="readiness/swap_cost")


@pytest.mark.slow
def test_training_is_bit_equal_to_a_run_that_was_not_measured(measured, settings, tmp_path):
    plain = tmp_path / "run"
    pretrain(**{**settings, "output_dir": str(plain)})
    check_equal(measured, plain)


def check_equal(*runs):
    for folder in ("model", "checkpoint-4"):
        ours, theirs = (load_file(run / folder / "model.safetensors") for run in runs)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    ours, theirs = (torch.load(r / "checkpoint-4/rng_state.pth", weights_only=False) for r in runs)
    assert torch.equal(ours["cpu"], theirs["cpu"]) and ours["python"] == theirs["python"]
    for name in ("late_loss", "head_loss", "swap_cost", "grad_norm", "learning_rate"):
        ours, theirs = ([(e["step"], e[name]) for e in read_log(r, measure=name)] for r in runs)
        assert ours == theirs and [step for step, _ in ours] == [2, 4], name


@pytest.mark.slow
def test_log_checkpoint_and_record_hold_readiness_as_the_export_has_it(
    measured, readiness, collection, tmp_path
):
    entries = readiness_of(measured)
    assert [e["step"] for e in entries] == [0, 2, 4, 5]
    saved = json.loads((measured / "checkpoint-4" / "trainer_state.json").read_text())
    kept = [e["step"] for e in saved["log_history"] if "readiness/swap_cost" in e]
    assert kept == [0, 2, 4]
    facts = json.loads((measured / "run.json").read_text())["readiness"]
    assert facts["texts"] == 6 and facts["collection"]["queries"] == 20

    export = export_encoder(measured, tmp_path / "export")
    system = f"{export},query_max_length=32,passage_max_length=32"
    result = evaluate_system(system, readiness["collection"], tmp_path / "evaluation")
    expected = result.evaluation.means
    means = {measure: entries[-1][f"readiness/zero_shot_{measure}"] for measure in expected}
    assert means == pytest.approx(expected) and means["MRR@10"] < 1


@pytest.mark.slow
def test_a_killed_run_continues_with_its_whole_log(
    settings, readiness, measured, tmp_path, monkeypatch
):
    step = CondenserTrainer.training_step

    def killed(self, *args, **kwargs):
        if self.state.global_step == 3:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    run = tmp_path / "run"
    given = {**settings, "readiness": readiness, "output_dir": str(run)}
    monkeypatch.setattr(CondenserTrainer, "training_step", killed)
    with pytest.raises(KeyboardInterrupt):
        pretrain(**given, callbacks=readiness_callbacks(given))
    monkeypatch.undo()
    pretrain(**given, callbacks=readiness_callbacks(given))
    ours, theirs = pd.DataFrame(readiness_of(run)), pd.DataFrame(readiness_of(measured))
    times = [name for name in ours if "second" in name]
    assert ours.drop(columns=times).equals(theirs.drop(columns=times)) and len(ours) == 4


@pytest.mark.parametrize("cls", [CondenserForPreTraining, CondenserForMaskedLM])
def test_measuring_leaves_no_trace(bert_run, texts, cls):
    model = cls.from_pretrained(bert_run / "model").train()
    tokenizer = AutoTokenizer.from_pretrained(bert_run / "model")
    sample = Sample.choose(Measuring(texts=4, max_length=32), Dataset.from_dict({"text": texts}))

    def state():
        modes = [module.training for module in model.modules()]
        grads = [parameter.grad is None for parameter in model.parameters()]
        back_end = model.condenser.encoder.config._attn_implementation
        draws = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()
        return modes, grads, back_end, draws, model.config.to_dict(), tokenizer.model_max_length

    before = state()
    entry = measure_checkpoint(model, tokenizer, sample)
    assert state() == before
    assert ("readiness/swap_cost" in entry) == (cls is CondenserForPreTraining)
    assert "readiness/entropy_layer_4" in entry and "readiness/zero_shot_MRR@10" not in entry


def test_what_cannot_be_measured_while_training_is_refused():
    sample = Sample(Measuring(), [], Dataset.from_dict({}))
    for trainer, every, message in (
        (SimpleNamespace(processing_class=None), 1, "no tokenizer"),
        (SimpleNamespace(processing_class="t"), 0, "every is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            ReadinessCallback(trainer, sample, every=every)


@pytest.mark.slow
def test_trackers_get_the_last_measures_before_they_close_also_if_a_training_ends_early(
    settings, readiness, tmp_path, monkeypatch
):
    events: list[Any] = []

    class StopsAtThree(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop |= state.global_step == 3

        def on_log(self, args, state, control, logs=None, **kwargs):
            if "readiness/swap_cost" in logs:
                events.append(state.global_step)

        def on_train_end(self, *args, **kwargs):
            events.append("end")

    init = CondenserTrainer.__init__
    monkeypatch.setattr(
        CondenserTrainer, "__init__", lambda *a, **k: init(*a, **k, callbacks=[StopsAtThree()])
    )
    run = {"save_strategy": "no", "readiness": readiness, "output_dir": str(tmp_path / "run")}
    pretrain(**{**settings, **run}, callbacks=readiness_callbacks({**settings, **run}))
    assert events == [0, 2, 3, "end"]
