"""What the trainer logs, and that its steps do not depend on how a batch is divided."""

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback, TrainingArguments, set_seed
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from modeling_condenser import (
    CondenserDataCollator,
    CondenserTrainer,
    condenser_from_encoder,
    masked_lm_from_encoder,
)
from modeling_condenser.pretraining.blocks import BlockBuilder, KeyedBlocks, build_blocks
from modeling_condenser.pretraining.probe import probe


@pytest.fixture
def blocks(texts, bert_folder):
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    documents = Dataset.from_dict({"text": list(texts)})
    return build_blocks(documents, BlockBuilder(tokenizer, max_length=32))


def make_trainer(folder, bert_folder, blocks, *, start=condenser_from_encoder, **settings):
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    set_seed(3)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = start(str(bert_folder), config_changes=no_dropout)
    arguments = TrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 16,
            "max_steps": 3,
            "logging_steps": 1,
            "save_strategy": "no",
            "learning_rate": 1e-3,
            "remove_unused_columns": False,
            "include_num_input_tokens_seen": "non_padding",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            **settings,
        }
    )
    return CondenserTrainer(
        model=model,
        args=arguments,
        train_dataset=KeyedBlocks(blocks, seed=0),
        data_collator=CondenserDataCollator(tokenizer, max_length=32),
        processing_class=tokenizer,
    )


def steps_of(trainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def test_accumulation_4_by_4_takes_the_same_steps_as_16_by_1(tmp_path, bert_folder, blocks):
    whole = make_trainer(tmp_path / "a", bert_folder, blocks)
    parts = make_trainer(
        tmp_path / "b",
        bert_folder,
        blocks,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
    )
    whole.train()
    parts.train()
    for a, b in zip(steps_of(whole), steps_of(parts), strict=True):
        for name in ("loss", "head_loss", "late_loss", "grad_norm", "num_input_tokens_seen"):
            assert b[name] == pytest.approx(a[name], rel=1e-5), name
    expected = dict(whole.model.named_parameters())
    for name, parameter in parts.model.named_parameters():
        # AdamW's first steps divide by tiny second moments, which magnifies rounding.
        torch.testing.assert_close(parameter, expected[name], rtol=0, atol=2e-4, msg=name)


def test_the_log_holds_both_losses_whose_sum_is_the_loss(tmp_path, bert_folder, blocks):
    trainer = make_trainer(tmp_path, bert_folder, blocks, logging_steps=2, max_steps=4)
    trainer.train()
    entries = steps_of(trainer)
    assert [entry["step"] for entry in entries] == [2, 4]
    for entry in entries:
        assert entry["loss"] == pytest.approx(entry["head_loss"] + entry["late_loss"], rel=1e-5)
        assert entry["tokens_per_second"] > 0
        assert 0 <= entry["head_accuracy"] <= 1
        assert 0 <= entry["late_accuracy"] <= 1
        assert isinstance(entry["swap_cost"], float)


def test_the_logged_losses_are_means_over_the_steps_since_the_last_entry(
    tmp_path, bert_folder, blocks
):
    each = make_trainer(tmp_path / "a", bert_folder, blocks, max_steps=4)
    both = make_trainer(tmp_path / "b", bert_folder, blocks, max_steps=4, logging_steps=2)
    each.train()
    both.train()
    single = [entry["head_loss"] for entry in steps_of(each)]
    double = [entry["head_loss"] for entry in steps_of(both)]
    assert double == pytest.approx([sum(single[:2]) / 2, sum(single[2:]) / 2], rel=1e-6)


def test_plain_mlm_logs_its_one_loss_and_no_swap_cost(tmp_path, bert_folder, blocks):
    trainer = make_trainer(tmp_path, bert_folder, blocks, start=masked_lm_from_encoder)
    trainer.train()
    for entry in steps_of(trainer):
        assert entry["late_loss"] == pytest.approx(entry["loss"], rel=1e-5)
        assert "late_accuracy" in entry
        assert not {"head_loss", "head_accuracy", "swap_cost"} & entry.keys()


def test_the_probe_measures_what_two_full_evaluations_give(bert_folder, blocks):
    """Swap cost and accuracies against the model's own logits, with CLS exchanged by hand."""
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    set_seed(0)
    model = condenser_from_encoder(str(bert_folder), skip_from=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # so that the vectors of different blocks differ
                parameter.copy_(0.5 * torch.randn_like(parameter))
    collator = CondenserDataCollator(tokenizer, max_length=32)
    batch = collator(KeyedBlocks(blocks, seed=0).__getitems__(list(range(6))))
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
    assert measured.swap_cost == pytest.approx(expected, abs=1e-5)
    assert abs(measured.swap_cost) > 1e-4
    assert measured.head_accuracy == pytest.approx(accuracy(output.head_logits))
    assert measured.late_accuracy == pytest.approx(accuracy(output.logits))


def test_probing_changes_neither_weights_nor_random_states(tmp_path, bert_folder, blocks):
    often = make_trainer(tmp_path / "a", bert_folder, blocks, logging_steps=1)
    never = make_trainer(tmp_path / "b", bert_folder, blocks, logging_steps=100)
    for trainer in (often, never):
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.1
        set_seed(7)
        trainer.train()
    for a, b in zip(often.model.parameters(), never.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_batch_of_one_block_has_no_swap_cost(bert_folder, blocks):
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    model = condenser_from_encoder(str(bert_folder))
    collator = CondenserDataCollator(tokenizer, max_length=32)
    measured = probe(model, collator(KeyedBlocks(blocks, seed=0).__getitems__([0])))
    assert measured.swap_cost is None
    assert "swap_cost" not in measured.logs()


def test_seconds_that_are_left_out_count_to_no_training(tmp_path, bert_folder, blocks):
    trainer = make_trainer(tmp_path, bert_folder, blocks)

    class Measurer(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trainer.leave_out(1000)

    trainer.add_callback(Measurer())
    trainer.train()
    seconds = [entry["seconds"] for entry in trainer.state.log_history if "seconds" in entry]
    assert len(seconds) == 3
    assert all(-1000 < measured < -900 for measured in seconds)


def test_default_arguments_keep_the_keys_of_masks(tmp_path, bert_folder, blocks):
    """Or masks would depend on what was drawn before, and resuming would change them."""
    log = []
    for folder, remove in (("a", False), ("b", True)):
        trainer = make_trainer(tmp_path / folder, bert_folder, blocks, remove_unused_columns=remove)
        trainer.train()
        log.append([entry["loss"] for entry in steps_of(trainer)])
    assert log[0] == log[1]


def test_label_smoothing_is_refused(tmp_path, bert_folder, blocks):
    with pytest.raises(ValueError, match="label_smoothing_factor is 0.1"):
        make_trainer(tmp_path, bert_folder, blocks, label_smoothing_factor=0.1)


def test_a_model_of_remote_code_is_probed_as_the_packages_own(tmp_path, bert_folder, blocks):
    own = condenser_from_encoder(str(bert_folder))
    own.save_pretrained(tmp_path)
    name = "modeling_condenser.CondenserForPreTraining"
    remote = get_class_from_dynamic_module(name, str(tmp_path)).from_pretrained(tmp_path)
    assert not isinstance(remote, type(own))
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    collator = CondenserDataCollator(tokenizer, max_length=32)
    batch = collator(KeyedBlocks(blocks, seed=0).__getitems__(list(range(6))))
    assert probe(remote, batch) == probe(own, batch)
    assert probe(remote, batch).swap_cost is not None
