"""The trainer: text in Python, its log, exact accumulation, the probe, and what it refuses."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from transformers import (
    AutoModel,
    AutoTokenizer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from modeling_condenser import (
    CondenserConfig,
    CondenserDataCollator,
    CondenserForMaskedLM,
    CondenserForPreTraining,
    CondenserTrainer,
    CondenserTrainingArguments,
    condenser_from_encoder,
)
from modeling_condenser.pretraining.data import BlockBuilder, KeyedBlocks, build_blocks
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.pretraining.probe import probe
from modeling_condenser.runs.run_folder import read_log
from tests.backbones.encoders import BACKBONES
from tests.pretraining.short_runs import NO_DROPOUT, SETTINGS


@pytest.fixture
def blocks(texts, tokenizer) -> Dataset:
    documents = Dataset.from_dict({"text": list(texts)})
    return build_blocks(documents, BlockBuilder(tokenizer, max_length=32))


@pytest.fixture
def make_trainer(tmp_path, bert_folder, tokenizer, blocks):
    """Makes a trainer of blocks with plain `TrainingArguments`."""

    def make(name="run", **settings):
        set_seed(3)
        known = {key: value for key, value in SETTINGS.items() if key != "max_length"}
        settings = {**known, "per_device_train_batch_size": 16, **settings}
        return CondenserTrainer(
            model=condenser_from_encoder(str(bert_folder), config_changes=NO_DROPOUT),
            args=TrainingArguments(str(tmp_path / name), **settings),
            train_dataset=KeyedBlocks(blocks, seed=0),
            data_collator=CondenserDataCollator(tokenizer, max_length=32),
            processing_class=tokenizer,
        )

    return make


@pytest.fixture
def batch(tokenizer, blocks) -> dict[str, torch.Tensor]:
    collator = CondenserDataCollator(tokenizer, max_length=32)
    return collator(KeyedBlocks(blocks, seed=0).__getitems__(list(range(6))))


def steps_of(trainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def test_accumulation_4_by_4_takes_the_same_steps_as_16_by_1(make_trainer):
    whole = make_trainer("a")
    parts = make_trainer("b", per_device_train_batch_size=4, gradient_accumulation_steps=4)
    whole.train()
    parts.train()
    for a, b in zip(steps_of(whole), steps_of(parts), strict=True):
        for name in ("loss", "head_loss", "late_loss", "grad_norm"):
            assert b[name] == pytest.approx(a[name], rel=1e-5), name
    expected = dict(whole.model.named_parameters())
    for name, parameter in parts.model.named_parameters():
        # AdamW's first steps divide by tiny second moments, which magnifies rounding.
        torch.testing.assert_close(parameter, expected[name], rtol=0, atol=2e-4, msg=name)


def test_the_log_holds_both_losses_as_means_over_the_steps_since_the_last_entry(make_trainer):
    each = make_trainer("a", max_steps=4)
    both = make_trainer("b", max_steps=4, logging_steps=2)
    each.train()
    both.train()
    single = [entry["head_loss"] for entry in steps_of(each)]
    double = [entry["head_loss"] for entry in steps_of(both)]
    assert double == pytest.approx([sum(single[:2]) / 2, sum(single[2:]) / 2], rel=1e-6)
    for entry in steps_of(both):
        assert entry["loss"] == pytest.approx(entry["head_loss"] + entry["late_loss"], rel=1e-5)
        assert entry["tokens_per_second"] > 0
        assert 0 <= entry["head_accuracy"] <= 1
        assert isinstance(entry["swap_cost"], float)


def test_seconds_that_are_left_out_are_not_counted_as_training(make_trainer):
    trainer = make_trainer()
    measurer = TrainerCallback()
    measurer.on_step_end = lambda *args, **kwargs: trainer.leave_out(1000)
    trainer.add_callback(measurer)
    trainer.train()
    assert all(-1000 < entry["seconds"] < -900 for entry in steps_of(trainer))


def test_label_smoothing_and_several_gpus_in_one_process_are_refused(make_trainer, monkeypatch):
    with pytest.raises(ValueError, match="label_smoothing_factor is 0.1"):
        make_trainer(label_smoothing_factor=0.1)
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(ValueError, match="One process sees 2 GPUs.*torchrun"):
        make_trainer()


def test_the_probe_measures_what_two_full_evaluations_give(bert_folder, batch):
    """Swap cost and accuracies against the model's own logits, with CLS exchanged by hand."""
    set_seed(0)
    model = condenser_from_encoder(str(bert_folder), skip_from=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # so that the vectors of different blocks differ
                parameter.copy_(0.5 * torch.randn_like(parameter))
    model.train()
    measured = probe(model, batch)
    assert model.training

    model.eval()
    labels = batch.pop("labels")
    masked = labels != -100
    with torch.no_grad():
        output = model(**batch)
        late, early, encoded = model.encode(**batch)
        exchanged = late[[5, 0, 1, 2, 3, 4], :1]
        swapped = model.lm_head(model.run_head(exchanged, early, encoded.layer_call))

    def loss(logits):
        return torch.nn.functional.cross_entropy(logits[masked], labels[masked]).item()

    def accuracy(logits):
        return (logits.argmax(-1)[masked] == labels[masked]).float().mean().item()

    expected = loss(swapped) - loss(output.head_logits)
    assert measured["swap_cost"] == pytest.approx(expected, abs=1e-5)
    assert abs(measured["swap_cost"]) > 1e-4
    assert measured["head_accuracy"] == pytest.approx(accuracy(output.head_logits))
    assert measured["late_accuracy"] == pytest.approx(accuracy(output.logits))
    one = probe(model, {name: rows[:1] for name, rows in {**batch, "labels": labels}.items()})
    assert one.keys() == {"head_accuracy", "late_accuracy"}


def test_probing_changes_neither_weights_nor_random_states(make_trainer):
    often, never = make_trainer("a", logging_steps=1), make_trainer("b", logging_steps=100)
    for trainer in (often, never):
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.1
        set_seed(7)
        trainer.train()
    for a, b in zip(often.model.parameters(), never.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_model_of_remote_code_is_probed_as_the_package_s_own(tmp_path, bert_folder, batch):
    own = condenser_from_encoder(str(bert_folder))
    own.save_pretrained(tmp_path)
    name = "modeling_condenser.CondenserForPreTraining"
    remote = get_class_from_dynamic_module(name, str(tmp_path)).from_pretrained(tmp_path)
    assert not isinstance(remote, type(own))
    assert probe(remote, batch) == probe(own, batch)
    assert "swap_cost" in probe(remote, batch)


def arguments(folder: Path, **changes: Any) -> CondenserTrainingArguments:
    return CondenserTrainingArguments(str(folder), **{**SETTINGS, **changes})


def test_a_trainer_that_is_given_text_takes_the_steps_of_the_command(
    settings, tmp_path, bert_folder, corpus_file
):
    changes = {"bow_weight": 1.0, "tokens_per_batch": 200}
    pretrain({**settings, **changes, "output_dir": str(tmp_path / "command")})
    texts = [{"text": json.loads(line)["text"]} for line in corpus_file.read_text().splitlines()]
    set_seed(42)
    model = CondenserForPreTraining.from_encoder(str(bert_folder), config_changes=NO_DROPOUT)
    trainer = CondenserTrainer(model, arguments(tmp_path / "a", **changes), train_dataset=texts)
    trainer.train()
    assert trainer.data_collator.packed
    names = ("loss", "head_loss", "late_loss", "bow_loss", "num_input_tokens_seen")
    for ours, expected in zip(steps_of(trainer), read_log(tmp_path / "command"), strict=True):
        for name in names:
            assert ours[name] == pytest.approx(expected[name], rel=1e-6), name


def test_the_weight_goes_from_first_to_last_on_a_cosine_and_the_loss_is_the_weighted_sum(
    settings, tmp_path
):
    changes = {"objective": "mlm", "bow_weight": 1.0, "bow_weight_end": 0.2, "max_steps": 4}
    pretrain({**settings, **changes})
    log = read_log(tmp_path / "run")
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
    assert [entry["bow_weight"] for entry in log] == pytest.approx(expected)
    for entry in log:
        total = entry["late_loss"] + entry["bow_weight"] * entry["bow_loss"]
        assert entry["loss"] == pytest.approx(total, rel=1e-5)
    assert "bag-of-words" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_the_encoder_that_is_saved_opens_in_both_libraries_with_the_same_vectors(
    tmp_path, bert_folder
):
    model = CondenserForPreTraining.from_encoder(str(bert_folder)).eval()
    folder = model.save_encoder(tmp_path / "encoder")
    text = "The river left."
    with torch.no_grad():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        expected = model(**inputs).cls_late[0]
        found = AutoModel.from_pretrained(folder)(**inputs).last_hidden_state[0, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    encoded = SentenceTransformer(str(folder)).encode(text, convert_to_tensor=True)
    torch.testing.assert_close(encoded, expected, rtol=0, atol=1e-6)


def test_an_objective_that_is_not_the_model_s_or_the_trainer_s_is_refused(
    tmp_path, bert_folder, texts
):
    data = [{"text": text} for text in texts]
    plain = CondenserForMaskedLM.from_encoder(str(bert_folder))
    with pytest.raises(ValueError, match="trains a CondenserForPreTraining, but the model is"):
        CondenserTrainer(plain, arguments(tmp_path), train_dataset=data)
    with pytest.raises(ValueError, match="objective is 'ict', but this .* use ContrastiveTrainer"):
        CondenserTrainer(plain, arguments(tmp_path, objective="ict"), train_dataset=data)


def test_a_model_without_a_checkpoint_needs_a_tokenizer(tmp_path):
    model = CondenserForPreTraining(CondenserConfig(encoder_config=BACKBONES["BERT"].config()))
    with pytest.raises(ValueError, match="pass processing_class=tokenizer"):
        CondenserTrainer(model, arguments(tmp_path), train_dataset=[{"text": "The river left."}])
