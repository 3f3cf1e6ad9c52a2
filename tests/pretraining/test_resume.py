"""Which checkpoints a script continues, what it refuses, and the figures of a resumed run."""

import copy
from typing import Any

import pytest
import torch
import transformers
from transformers import set_seed

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

    def make_trainer(data: Any = None, *, name: str = "run", model: Any = None, **settings: Any):
        set_seed(3)
        return CondenserTrainer(
            copy.deepcopy(start) if model is None else model,
            CondenserTrainingArguments(str(tmp_path / name), **{**SETTINGS, **SAVING, **settings}),
            train_dataset=texts[:20] if data is None else data,
        )

    return make_trainer


def test_another_run_in_the_folder_is_refused_and_named(make, start, tmp_path, texts, bert_folder):
    make(max_steps=1).train()
    before = contents(tmp_path)
    other_start = copy.deepcopy(start)
    with torch.no_grad():
        other_start.condenser.layers[1].output.dense.bias += 1
    other_head = CondenserForPreTraining.from_encoder(str(bert_folder), n_head_layers=1)
    for trainer, message in (
        (make(max_steps=1, learning_rate=0.05), "learning_rate: 0.001 then, 0.05 now"),
        (make(texts[20:40], max_steps=1), "blocks_sha256: '.{12}' then, '.{12}' now"),
        (make(model=other_start, max_steps=1), "start_fingerprint: "),
        (make(model=other_head, max_steps=1), "n_head_layers: 2 then, 1 now"),
    ):
        with pytest.raises(ValueError, match=message):
            trainer.train()
    assert contents(tmp_path) == before
    (tmp_path / "run/recipe.yaml").unlink()
    with pytest.raises(ValueError, match="holds no run .recipe.yaml is missing"):
        make().train()


def test_the_same_run_is_continued_and_false_starts_again(make, tmp_path, texts, caplog):
    first = make()
    first.train()
    finished = make()
    assert finished.train().global_step == 2
    assert_same(finished.model.state_dict(), first.model.state_dict(), 0)
    assert "no step was trained" in caplog.text
    make(name="elsewhere", max_steps=1, learning_rate=0.05).train()
    other = make(max_steps=1, learning_rate=0.05)
    other.train(resume_from_checkpoint=False)
    assert [folder.name for folder in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-1"]
    ours, expected = (
        (tmp_path / run / "checkpoint-1/model.safetensors").read_bytes()
        for run in ("run", "elsewhere")
    )
    assert ours == expected
    make(max_steps=1, learning_rate=0.05).train()  # the folder now belongs to this run


def test_without_a_checkpoint_there_is_nothing_to_continue(make):
    with interrupted_at(1):
        make(save_steps=99).train()
    make(learning_rate=0.05).train()
    with pytest.raises(FileNotFoundError, match="no complete checkpoint to resume"):
        make(name="new").train(resume_from_checkpoint=True)


def test_a_named_checkpoint_may_have_other_settings_but_not_other_data(make, tmp_path, texts):
    make().train()
    last, first = (tmp_path / f"run/checkpoint-{step}" for step in (2, 1))
    with pytest.raises(ValueError, match="was trained on other data .blocks_sha256"):
        make(texts[20:40]).train(resume_from_checkpoint=str(last))
    with pytest.raises(ValueError, match="checkpoint-2 is newer than .*checkpoint-1"):
        make().train(resume_from_checkpoint=first)
    model = CondenserForPreTraining.from_pretrained(last)
    longer = make(model=model, max_steps=3)
    assert longer.train(resume_from_checkpoint=True).global_step == 3
    assert make(name="b").train(resume_from_checkpoint=first).global_step == 2


def test_loss_and_seconds_of_a_resumed_run_are_those_of_all_its_steps(make, monkeypatch):
    warnings: list[str] = []
    monkeypatch.setattr(
        transformers.trainer.logger, "warning", lambda text, *_: warnings.append(text)
    )
    with interrupted_at(3):
        make(max_steps=4, save_steps=2).train()
    trainer = make(max_steps=4, save_steps=2)
    output = trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 4
    mean = sum(losses) / 4
    assert output.training_loss == pytest.approx(mean, rel=1e-5)
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(mean, rel=1e-5)
    assert trainer.run_facts()["train_seconds"] > output.metrics["train_runtime"]
    assert not warnings  # of missing keys, which are tied weights


def test_a_checkpoint_without_the_state_of_the_training_is_not_continued(make):
    with interrupted_at(1):
        make(save_only_model=True).train()
    with pytest.raises(ValueError, match="checkpoint-1 holds no state of a training"):
        make(save_only_model=True).train()


def test_the_loss_of_a_run_is_that_of_all_its_steps_also_after_its_last_log_entry(make):
    def train(name: str, every: int) -> float:
        trainer = make(name=name, max_steps=5, save_steps=3, logging_steps=every)
        return trainer.train().training_loss

    mean = train("each", 1)
    assert train("whole", 2) == pytest.approx(mean, rel=1e-5)
    with interrupted_at(3):
        train("resumed", 3)
    assert train("resumed", 3) == pytest.approx(mean, rel=1e-5)


def test_a_checkpoint_that_does_not_fit_the_model_is_refused(make, bert_folder):
    make().train()
    larger = CondenserForPreTraining.from_encoder(str(bert_folder), n_head_layers=3)
    with pytest.raises(ValueError, match=r"does not fit the model: weights are missing .*head\.2"):
        make(model=larger).train(resume_from_checkpoint=True)
