"""Training without padding and within a budget of tokens takes the steps that it should."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import set_seed

from modeling_condenser.cpu_kernels import Dropout
from modeling_condenser.packing import PACKED
from modeling_condenser.pretraining import examples
from modeling_condenser.pretraining import trainer as trainer_module
from modeling_condenser.pretraining.objectives import open_model
from modeling_condenser.pretraining.packed_batches import unpack
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.pretraining.recipe import PretrainingRecipe
from tests.pretraining.test_resume import Interruption, assert_same_weights, interrupt_at, losses


@pytest.fixture
def settings(tmp_path: Path, bert_folder: Path, corpus_file: Path) -> dict[str, Any]:
    return {
        "encoder": str(bert_folder),
        "encoder_changes": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "corpus": str(corpus_file),
        "output_dir": str(tmp_path / "run"),
        "max_length": 32,
        "per_device_train_batch_size": 12,
        "max_steps": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "learning_rate": 1e-3,
        "disable_tqdm": True,
        "use_cpu": True,
    }


def steps_of(folder: Path) -> list[dict[str, float]]:
    return [e for e in json.loads((folder / "log.json").read_text()) if "loss" in e]


@pytest.mark.parametrize(
    "recipe",
    [
        {"objective": "condenser"},
        {"objective": "condenser", "streaming": True},
        {"objective": "mlm"},
        {"objective": "cocondenser", "cache_chunk_size": 8},
        {"objective": "ict"},
        {"objective": "mlm", "bow_weight": 1.0},
        {"objective": "condenser", "bow_weight": 1.0, "head_mlm_probability": 0.5},
        {"objective": "cocondenser", "bow_weight": 1.0, "cache_chunk_size": 8},
        {"objective": "ict", "bow_weight": 1.0},
    ],
    ids=str,
)
def test_packed_and_padded_batches_take_the_same_steps(
    recipe: dict[str, Any], settings: dict, tmp_path: Path
) -> None:
    settings |= recipe
    logs = []
    for packed in (True, False):
        changes = {"packed": packed, "output_dir": str(tmp_path / str(packed))}
        pretrain({**settings, **changes})
        logs.append(steps_of(tmp_path / str(packed)))
    names = {"loss", "grad_norm", "num_input_tokens_seen"}
    if recipe["objective"] != "ict":
        names |= {"late_loss", "late_accuracy"}
    if recipe["objective"] in ("condenser", "cocondenser"):
        names |= {"head_loss", "head_accuracy"}
    if recipe["objective"] in ("cocondenser", "ict"):
        names |= {"contrastive_loss", "contrastive_accuracy"}
    if "bow_weight" in recipe:
        names = names - {"contrastive_accuracy"} | {"bow_loss"}  # its ties go by rounding
    for ours, expected in zip(*logs, strict=True):
        for name in names:
            assert ours[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name
        if "head_loss" in names:
            assert ours["swap_cost"] == pytest.approx(expected["swap_cost"], abs=1e-5)
    seen = [entry["num_input_tokens_seen"] for entry in logs[0]]
    assert seen == [entry["num_input_tokens_seen"] for entry in logs[1]]
    assert seen[0] > 100 and len(set(seen)) == 4


def test_batches_are_packed_by_default_and_padded_where_a_back_end_is_stated(
    bert_folder: Path,
) -> None:
    for changes, is_packed in (
        ({}, True),
        ({"objective": "cocondenser"}, True),
        ({"objective": "ict"}, True),
        ({"streaming": True}, True),
        ({"packed": False}, False),
        ({"attn_implementation": "eager"}, False),
    ):
        model = open_model(PretrainingRecipe(str(bert_folder), "", **changes))
        back_end = model.condenser.encoder.config._attn_implementation
        assert (back_end == PACKED) == is_packed, changes


@pytest.mark.parametrize(
    "changes", [{}, {"packed": False}, {"objective": "mlm"}, {"objective": "ict"}]
)
def test_every_model_that_is_trained_drops_cheaply(
    changes: dict[str, Any], bert_folder: Path
) -> None:
    model = open_model(PretrainingRecipe(str(bert_folder), "", **changes))
    kinds = {type(module) for module in model.modules()}
    assert Dropout in kinds and torch.nn.Dropout not in kinds


def test_an_encoder_that_cannot_be_packed_is_padded_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bert_folder: Path
) -> None:
    monkeypatch.setattr(examples, "why_not_packed", lambda encoder: "it reads in circles")
    model = open_model(PretrainingRecipe(str(bert_folder), ""))
    assert model.condenser.encoder.config._attn_implementation != PACKED
    with pytest.raises(ValueError, match="it reads in circles. Leave packed out"):
        open_model(PretrainingRecipe(str(bert_folder), "", packed=True))


def keep_batches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The batches that training steps are given from now on."""
    batches: list[dict[str, Any]] = []
    step = trainer_module.CondenserTrainer.training_step

    def training_step(self: Any, model: Any, inputs: dict[str, Any], *rest: Any) -> torch.Tensor:
        batches.append(dict(inputs))
        return step(self, model, inputs, *rest)

    monkeypatch.setattr(trainer_module.CondenserTrainer, "training_step", training_step)
    return batches


@pytest.mark.parametrize("packed", [True, False])
def test_an_epoch_of_budget_batches_trains_on_each_block_once(
    packed: bool, settings: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = keep_batches(monkeypatch)
    changes = {"tokens_per_batch": 1000, "packed": packed, "max_steps": -1, "num_train_epochs": 1}
    pretrain({**settings, **changes})
    tokens = [
        batch["attention_mask"].sum().item()
        if not packed
        else (batch["input_ids"] != 0).sum().item()
        for batch in batches
    ]
    assert max(tokens) <= 1000 and min(tokens[:-1]) > 1000 - 32
    [entry] = steps_of(tmp_path / "run")[-1:]
    assert entry["step"] == len(batches)
    assert entry["num_input_tokens_seen"] == sum(tokens)
    n_cls = sum(int((batch["input_ids"] == 2).sum()) for batch in batches)
    assert n_cls == json.loads((tmp_path / "run" / "run.json").read_text())["n_blocks"]


def test_accumulated_budget_batches_take_the_step_of_their_union(
    settings: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The union is trained on as one padded batch, by the model alone."""
    batches = keep_batches(monkeypatch)
    changes = {"tokens_per_batch": 150, "gradient_accumulation_steps": 3, "max_steps": 1}
    changes |= {"n_head_layers": 1, "head_mlm_probability": 0.5, "bow_weight": 0.7}
    pretrain({**settings, **changes})
    assert len(batches) == 3
    [entry] = steps_of(tmp_path / "run")
    set_seed(42)  # the Trainer's own
    recipe = PretrainingRecipe(
        settings["encoder"],
        "",
        encoder_changes=settings["encoder_changes"],
        packed=False,
        n_head_layers=1,
        head_mlm_probability=0.5,
    )
    model = open_model(recipe)
    columns: dict[str, list[torch.Tensor]] = {}
    for batch in batches:
        for name, rows in unpack(batch, pad_token_id=0).items():
            columns.setdefault(name, []).extend(rows)
    fill = {"input_ids": 0, "attention_mask": 0, "head_input_ids": 0}
    union = {
        name: pad_sequence(rows, batch_first=True, padding_value=fill.get(name, -100))
        for name, rows in columns.items()
    }
    output = model(**union, bow_weight=0.7)
    output.loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    assert entry["head_loss"] == pytest.approx(output.head_loss.item(), rel=1e-5)
    assert entry["late_loss"] == pytest.approx(output.late_loss.item(), rel=1e-5)
    assert entry["bow_loss"] == pytest.approx(output.bow_loss.item(), rel=1e-5)
    assert entry["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_a_run_within_a_budget_goes_on_bit_equal_in_a_later_epoch(
    settings: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = tmp_path / "some.jsonl"
    some.write_text("\n".join(Path(settings["corpus"]).read_text().split("\n")[:50]) + "\n")
    settings |= {"corpus": str(some), "tokens_per_batch": 800, "gradient_accumulation_steps": 2}
    settings |= {"encoder_changes": {}}
    settings |= {"save_strategy": "steps", "save_steps": 5, "max_steps": 9}
    pretrain({**settings, "output_dir": str(tmp_path / "whole")})
    n_epochs = json.loads((tmp_path / "whole" / "log.json").read_text())[-1]["epoch"]
    assert n_epochs > 2  # so that orders of several epochs are taken up
    with monkeypatch.context() as patch:
        interrupt_at(patch, 7)
        with pytest.raises(Interruption):
            pretrain(settings)
    pretrain(settings)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_a_model_trained_packed_is_saved_as_one_trained_padded(
    settings: dict, tmp_path: Path
) -> None:
    folders = [
        pretrain({**settings, "packed": packed, "output_dir": str(tmp_path / str(packed))})
        for packed in (True, False)
    ]
    configs = [(folder / "config.json").read_text() for folder in folders]
    assert configs[0] == configs[1] and PACKED not in configs[0]
    ours, expected = (load_file(folder / "model.safetensors") for folder in folders)
    assert ours.keys() == expected.keys()
