"""Training without padding and within a budget of tokens takes the steps that it should."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, set_seed

from modeling_condenser import CondenserTrainer, CondenserTrainingArguments, condenser_from_encoder
from modeling_condenser.cpu_kernels import Dropout
from modeling_condenser.packing import PACKED
from modeling_condenser.pretraining import examples
from modeling_condenser.pretraining.collator import unpack
from modeling_condenser.pretraining.examples import prepare_model
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.runs.run_folder import read_log


@pytest.mark.parametrize(
    "recipe",
    [
        {"objective": "condenser"},
        {"objective": "mlm", "streaming": True, "bow_weight": 1.0},
        pytest.param({"objective": "cocondenser", "cache_chunk_size": 8}, marks=pytest.mark.slow),
        pytest.param({"objective": "ict", "bow_weight": 1.0}, marks=pytest.mark.slow),
        pytest.param(
            {"objective": "condenser", "bow_weight": 1.0, "head_mlm_probability": 0.5},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_packed_and_padded_batches_take_the_same_steps(recipe, settings, tmp_path):
    logs = []
    for packed in (True, False):
        changes = {"packed": packed, "output_dir": str(tmp_path / str(packed))}
        model = pretrain({**settings, **recipe, **changes})
        assert PACKED not in (model / "config.json").read_text()
        logs.append(read_log(tmp_path / str(packed)))
    own = {"loss", "grad_norm", "num_input_tokens_seen"}
    others = {"late_loss", "late_accuracy", "head_loss", "head_accuracy", "contrastive_loss"}
    names = own | (others | {"bow_loss", "swap_cost"}) & logs[1][0].keys()
    assert len(names) > 4
    for ours, expected in zip(*logs, strict=True):
        for name in names:
            assert ours[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name


def prepare(bert_folder: Path, **changes: Any) -> tuple[bool, Any]:
    """Whether batches are packed, and the model."""
    model = condenser_from_encoder(str(bert_folder))
    arguments = CondenserTrainingArguments("unused", use_cpu=True, max_length=32, **changes)
    packed = prepare_model(model, AutoTokenizer.from_pretrained(bert_folder), arguments)
    assert (model.condenser.encoder.config._attn_implementation == PACKED) == packed
    return packed, model


def test_batches_are_packed_by_default_and_padded_where_a_back_end_is_stated(bert_folder):
    for changes, expected in (
        ({}, True),
        ({"objective": "cocondenser"}, True),
        ({"packed": False}, False),
        ({"attn_implementation": "eager"}, False),
    ):
        packed, model = prepare(bert_folder, **changes)
        assert packed == expected, changes
        kinds = {type(module) for module in model.modules()}
        assert Dropout in kinds and torch.nn.Dropout not in kinds


def test_an_encoder_that_cannot_be_packed_is_padded_or_refused(bert_folder, monkeypatch):
    for module in (examples, "modeling_condenser.packing"):
        name = f"{getattr(module, '__name__', module)}.why_not_packed"
        monkeypatch.setattr(name, lambda encoder: "it reads in circles")
    assert prepare(bert_folder)[0] is False
    with pytest.raises(ValueError, match="it reads in circles. Set packed: false"):
        prepare(bert_folder, packed=True)


@pytest.fixture
def batches(monkeypatch):
    """The batches that training steps are given."""
    given: list[dict[str, Any]] = []
    step = CondenserTrainer.training_step

    def training_step(self: Any, model: Any, inputs: dict[str, Any], *rest: Any) -> torch.Tensor:
        given.append(dict(inputs))
        return step(self, model, inputs, *rest)

    monkeypatch.setattr(CondenserTrainer, "training_step", training_step)
    return given


def test_accumulated_budget_batches_take_the_step_of_their_union(
    settings, tmp_path, bert_folder, batches
):
    """The union is trained on as one padded batch, by the model alone."""
    changes = {"tokens_per_batch": 150, "gradient_accumulation_steps": 3, "max_steps": 1}
    head = {"n_head_layers": 1, "head_mlm_probability": 0.5}
    pretrain({**settings, **changes, **head, "bow_weight": 0.7})
    assert len(batches) == 3
    [entry] = read_log(tmp_path / "run")
    set_seed(42)  # the Trainer's own
    no_dropout = settings["encoder_changes"]
    model = condenser_from_encoder(str(bert_folder), config_changes=no_dropout, **head)
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
    for name in ("head_loss", "late_loss", "bow_loss"):
        assert entry[name] == pytest.approx(output[name].item(), rel=1e-5), name
    assert entry["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
