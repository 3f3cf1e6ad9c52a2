"""Which checkpoints a script continues, what it refuses, and the figures of a resumed run."""

import copy
from typing import Any

import pytest
import torch
import transformers
import yaml
from transformers import EarlyStoppingCallback, TrainerCallback, set_seed

from modeling_condenser import (
    CondenserForPreTraining,
    CondenserTrainer,
    CondenserTrainingArguments,
)
from tests.models import assert_same
from tests.pretraining.short_runs import SETTINGS, interrupted_at
from tests.publishing.loopback_hub import contents

SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}


@pytest.fixture(scope="module")
def start(bert_folder):
    """A model to train copies of."""
    set_seed(3)
    return CondenserForPreTraining.from_encoder(str(bert_folder))


@pytest.fixture
def make(tmp_path, start, texts):
    """Makes the trainer of a script, in the folder `run` or another one, with other settings."""

    def make_trainer(
        data: Any = None,
        *,
        name="run",
        model: Any = None,
        eval_dataset: Any = None,
        **settings: Any,
    ):
        set_seed(3)
        return CondenserTrainer(
            copy.deepcopy(start) if model is None else model,
            CondenserTrainingArguments(str(tmp_path / name), **{**SETTINGS, **SAVING, **settings}),
            train_dataset=texts[:20] if data is None else data,
            eval_dataset=eval_dataset,
        )

    return make_trainer


def test_a_folder_without_checkpoint_or_model_takes_other_settings(make, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")  # such as a tokenizer that was saved there
    for rate in (0.001, 0.05):
        make(max_steps=1, save_strategy="no", learning_rate=rate).train()
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert recipe["learning_rate"] == 0.05
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_resumed_run_stops_early_where_an_uninterrupted_one_does(make, caplog):
    """By a patience of 2 evaluations, none of which is better than the first."""

    class Losses(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
            metrics["eval_loss"] = 1.0

    def make_stopping(**settings: Any) -> CondenserTrainer:
        stopping: Any = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
        stopping |= {"eval_dataset": ["The river ran."], "greater_is_better": False}
        trainer = make(max_steps=6, **stopping, **settings)
        trainer.add_callback(Losses())
        trainer.add_callback(EarlyStoppingCallback(2))
        return trainer

    whole = make_stopping(name="whole")
    whole.train()
    assert whole.state.global_step == 3
    with interrupted_at(2):
        make_stopping().train()
    resumed = make_stopping()
    resumed.train()
    assert_same(resumed.model.state_dict(), whole.model.state_dict(), 0)
    again = make_stopping()  # as by running the script again
    again.train()
    assert (resumed.state.global_step, again.state.global_step) == (3, 3)
    assert_same(again.model.state_dict(), whole.model.state_dict(), 0)
    assert "Checkpoint included callbacks" not in caplog.text
    longer = make_stopping()
    longer.train(resume_from_checkpoint=True)
    assert longer.state.global_step > 3


def test_a_run_that_a_callback_interrupted_is_continued(make):
    class TimeLimit(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = control.should_training_stop = True

    limited = make(max_steps=2)
    limited.add_callback(TimeLimit())
    limited.train()
    resumed = make(max_steps=2)
    resumed.train()
    assert (limited.state.global_step, resumed.state.global_step) == (1, 2)


def test_another_run_in_the_folder_is_refused_and_named(make, start, tmp_path, texts, bert_folder):
    make(max_steps=1).train()
    before = contents(tmp_path)
    other_start = copy.deepcopy(start)
    with torch.no_grad():
        other_start.condenser.layers[1].output.dense.bias += 1
    other_head = CondenserForPreTraining.from_encoder(bert_folder, n_head_layers=1)
    for trainer, message in (
        (make(max_steps=1, learning_rate=0.05), "learning_rate: 0.001 then, 0.05 now"),
        (make(texts[20:40], max_steps=1), "data: .{12} then, .{12} now"),
        (make(model=other_start, max_steps=1), "data: .{12} then, .{12} now"),
        (make(model=other_head, max_steps=1), "n_head_layers: 2 then, 1 now"),
    ):
        with pytest.raises(ValueError, match=f"holds another run .*{message}"):
            trainer.train()
    assert contents(tmp_path) == before


def test_a_run_is_continued_by_other_processes_only_with_the_batch_of_its_steps(make):
    whole = make(name="whole", max_steps=3)
    whole.train()
    with interrupted_at(1):
        make(max_steps=3).train()
    with pytest.raises(ValueError, match="processes: 8 then, 4 now"):
        make(max_steps=3, per_device_train_batch_size=4).train()
    with pytest.raises(ValueError, match="processes: 8 then, 9 now\\)"):
        make(max_steps=3, per_device_train_batch_size=9).train()
    halves = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    trainer = make(max_steps=3, **halves)
    assert trainer.train().global_step == 3
    counts = [
        [entry["num_input_tokens_seen"] for entry in each.state.log_history if "loss" in entry]
        for each in (whole, trainer)
    ]
    assert counts[0] == counts[1]


def test_the_same_run_is_continued_and_false_loses_no_checkpoint(make, tmp_path):
    first = make()
    first.train()
    finished = make()
    assert finished.train().global_step == 2
    assert_same(finished.model.state_dict(), first.model.state_dict(), 0)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="checkpoint-2 would be lost: leave resume_from_checkpoi"):
        make(max_steps=1, learning_rate=0.05).train(resume_from_checkpoint=False)
    assert contents(tmp_path) == before
    assert make(name="new").train(resume_from_checkpoint=False).global_step == 2


def test_a_run_that_begins_at_the_checkpoint_of_another_is_continued_in_its_own_folder(
    make, tmp_path, caplog
):
    make().train()
    first = str(tmp_path / "run/checkpoint-1")
    settings = {"name": "branch", "max_steps": 4, "gradient_checkpointing": True}
    with interrupted_at(3):
        make(**settings).train(resume_from_checkpoint=first)
    for resume in (first, None):  # the same call again, and a plain one
        caplog.clear()
        assert make(**settings).train(resume_from_checkpoint=resume).global_step == 4
        assert f"Resuming from {tmp_path / 'branch'}" in caplog.text
    assert make(**settings).train(resume_from_checkpoint=str(tmp_path / "branch/checkpoint-2"))
    make(name="other", learning_rate=0.05).train()
    with pytest.raises(ValueError, match="holds another run .learning_rate"):
        make(**settings | {"name": "other"}).train(resume_from_checkpoint=first)


def test_true_and_a_named_checkpoint_may_have_other_settings_but_not_other_data(
    make, tmp_path, texts
):
    with pytest.raises(FileNotFoundError, match="no complete checkpoint to resume"):
        make(name="new").train(resume_from_checkpoint=True)
    make().train()
    for name in ("checkpoint-9", ""):  # not there, and the folder of the run
        with pytest.raises(FileNotFoundError, match="is no complete checkpoint"):
            make(name="b").train(resume_from_checkpoint=str(tmp_path / "run" / name))
    first = str(tmp_path / "run/checkpoint-1")
    for name, resume in (("run", True), ("b", first)):
        with pytest.raises(ValueError, match="is of a run on other data .*data: .{12} then"):
            make(texts[20:40], name=name).train(resume_from_checkpoint=resume)
    assert make(max_steps=3).train(resume_from_checkpoint=True).global_step == 3
    assert make(name="b", max_steps=3).train(resume_from_checkpoint=first).global_step == 3


def test_the_seconds_of_a_resumed_run_are_those_of_all_its_steps(make, monkeypatch):
    warnings: list[str] = []
    monkeypatch.setattr(
        transformers.trainer.logger, "warning", lambda text, *_: warnings.append(text)
    )
    with interrupted_at(3):
        make(max_steps=4, save_steps=2).train()
    trainer = make(max_steps=4, save_steps=2)
    output = trainer.train()
    assert len([entry for entry in trainer.state.log_history if "loss" in entry]) == 4
    assert trainer.run_record()["train_seconds"] > output.metrics["train_runtime"]
    assert not warnings  # of missing keys, which are tied weights


def test_a_checkpoint_of_the_model_only_is_not_continued(make):
    with interrupted_at(1):
        make(save_only_model=True).train()
    with pytest.raises(ValueError, match="checkpoint-1 holds only a model"):
        make(save_only_model=True).train()


def test_a_checkpoint_that_does_not_fit_the_model_is_refused(make, bert_folder):
    make().train()
    larger = CondenserForPreTraining.from_encoder(bert_folder, n_head_layers=3)
    with pytest.raises(ValueError, match=r"does not fit the model: weights are missing .*head\.2"):
        make(model=larger).train(resume_from_checkpoint=True)
