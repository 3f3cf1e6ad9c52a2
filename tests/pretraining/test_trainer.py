"""The trainer: text in Python, its log, packed batches, the probe, and what it refuses."""

import copy
from collections import Counter
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, IterableDataset
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from modeling_condenser import (
    CondenserConfig,
    CondenserForMaskedLM,
    CondenserForPreTraining,
    CondenserTrainer,
    CondenserTrainingArguments,
)
from modeling_condenser.files.models import find_weights
from modeling_condenser.packing import is_packing
from modeling_condenser.pretraining.examples import find_tokenizer, make_collator, prepare_model
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.pretraining.probe import probe
from modeling_condenser.publishing.provenance import read_provenance
from modeling_condenser.training import trainer as trainer_module
from tests.backbones.encoders import BACKBONES
from tests.pretraining.short_runs import NO_DROPOUT, SETTINGS, arguments, losses_of, steps_of
from tests.run_logs import read_log

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES["intermediate_size"] = 32
# What a trainer sets.
SET_BY_THE_TRAINER = {
    "remove_unused_columns": False,
    "include_num_input_tokens_seen": "non_padding",
    "restore_callback_states_from_checkpoint": True,
}


def test_bfloat16_and_processes_need_no_other_setting_on_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    made = CondenserTrainingArguments(str(tmp_path), bf16=True)
    assert made.use_cpu and made.bf16
    assert CondenserTrainingArguments(str(tmp_path)).use_cpu


def test_plain_arguments_get_the_defaults_and_a_model_in_memory_needs_a_tokenizer(
    tmp_path, tokenizer, texts
):
    settings = {name: value for name, value in SETTINGS.items() if name != "max_length"}
    plain = TrainingArguments(str(tmp_path / "run"), **settings)
    own = CondenserTrainingArguments(str(tmp_path / "run"), **settings)
    encoder = AutoModelForMaskedLM.from_config(
        AutoConfig.for_model("bert", **SIZES, vocab_size=len(tokenizer))
    )
    model = CondenserForPreTraining.from_encoder(encoder)
    with pytest.raises(ValueError, match="pass its tokenizer as processing_class"):
        CondenserTrainer(model, plain, train_dataset=texts)
    trainer = CondenserTrainer(model, plain, train_dataset=texts, processing_class=tokenizer)
    assert trainer.args.to_dict() == {**own.to_dict(), **SET_BY_THE_TRAINER}
    assert all(loss > 0 for loss in losses_of(trainer))
    encoder.save_pretrained(tmp_path / "bare")
    model = CondenserForPreTraining.from_encoder(tmp_path / "bare")
    with pytest.raises(ValueError, match="bare has no tokenizer files: .* pass it as processing"):
        CondenserTrainer(model, plain, train_dataset=texts)


def test_the_log_holds_means_over_the_steps_since_the_last_entry_and_probing_changes_nothing(
    make_trainer,
):
    each = make_trainer(max_steps=4)
    both = make_trainer(name="b", max_steps=4, logging_steps=2)
    entries = []
    measurer = TrainerCallback()
    measurer.on_step_end = lambda *args, **kwargs: both.exclude_time(1000)
    both.add_callback(measurer)
    for trainer in (each, both):
        set_seed(7)
        entries.append(steps_of(trainer))
    single = [entry["head_loss"] for entry in entries[0]]
    double = [entry["head_loss"] for entry in entries[1]]
    assert double == pytest.approx([sum(single[:2]) / 2, sum(single[2:]) / 2], rel=1e-6)
    assert all(entry["tokens_per_second"] > 0 for entry in entries[0])
    for entry in entries[1]:
        assert entry["loss"] == pytest.approx(entry["head_loss"] + entry["late_loss"], rel=1e-5)
        assert -2000 < entry["seconds"] < -1900
        assert 0 <= entry["head_accuracy"] <= 1
        assert isinstance(entry["swap_cost"], float)
    # One was probed twice as often: neither weights nor random states depend on that.
    for a, b in zip(each.model.parameters(), both.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_second_training_logs_only_its_own_steps(make_trainer):
    """The last step of the first one is in no log entry."""
    settings: dict[str, Any] = {"max_steps": 3, "logging_steps": 2, "learning_rate": 0.0}
    trainer = make_trainer(head={"config_changes": NO_DROPOUT}, **settings)
    first, second = (steps_of(trainer)[0]["head_loss"] for _ in range(2))
    assert second == pytest.approx(first, rel=1e-5)


def naive_probe(model, texts):
    """One text at a time: with its own vector, with zeros, and with that of the text before it."""
    lates = [model.encode(t["input_ids"], t["attention_mask"])[0] for t in texts]
    sums, n = Counter(), 0
    for i, text in enumerate(texts):
        _, early, output = model.encode(text["input_ids"], text["attention_mask"])
        given = {"head_loss": lates[i], "zero_cost": 0 * lates[i], "swap_cost": lates[i - 1]}
        log_p = {"late": model.lm_head(lates[i])[0].log_softmax(-1)}
        for name, late in given.items():
            hidden = torch.cat([late[:, :1], early[:, 1:]], dim=1)
            for layer in model.head:
                hidden = output.layer_call.repeat(layer, hidden)
            log_p[name] = model.lm_head(model.head_norm(hidden))[0].log_softmax(-1)
        for place, target in enumerate(text["labels"][0].tolist()):
            if target != -100:
                n += 1
                sums.subtract({name: log_p[name][place, target].item() for name in given})
                sums["head_accuracy"] += log_p["head_loss"][place].argmax().item() == target
                sums["late_accuracy"] += log_p["late"][place].argmax().item() == target
    means = {name: total / n for name, total in sums.items()}
    costs = {name: means[name] - means["head_loss"] for name in ("zero_cost", "swap_cost")}
    return {**means, **costs}


def cut(batch, size):
    n = len(batch["labels"])
    return [{k: v[i : i + size] for k, v in batch.items()} for i in range(0, n, size)]


@torch.no_grad()
def test_the_probe_equals_a_naive_implementation_for_any_batch_size(large_weights, make_trainer):
    trainer = make_trainer(packed=False)
    batch = trainer.data_collator(trainer.train_dataset.__getitems__(list(range(6))))
    set_seed(0)
    model = CondenserForPreTraining.from_encoder(str(large_weights), skip_from=1).eval()
    labels = batch.pop("labels")
    output = model(**batch)  # some tokens are what the head predicts, some what the backbone does
    for rows, logits in ((slice(3), output.head_logits), (slice(3, 5), output.logits)):
        labels[rows] = logits[rows].argmax(-1).where(labels[rows] != -100, -100)
    batch["labels"] = labels
    expected = naive_probe(model, cut(batch, 1))
    assert 0 < expected["late_accuracy"] < expected["head_accuracy"] < 1
    assert abs(expected["zero_cost"]) > 1e-4 and abs(expected["swap_cost"]) > 1e-4
    model.train()
    for size in (6, 4, 1):
        assert probe(model, cut(batch, size)) == pytest.approx(expected, rel=1e-4, abs=1e-5), size
    assert model.training
    assert probe(model, cut(batch, 1)[:1]).keys() == expected.keys() - {"swap_cost"}
    nothing = {**batch, "labels": torch.full_like(batch["labels"], -100)}
    assert probe(model, [nothing]) == {}


def test_the_loss_is_the_sum_of_its_parts_of_which_bag_of_words_has_a_weight(settings, tmp_path):
    pretrain(**{**settings, "objective": "mlm", "bow_weight": 0.2, "max_steps": 2})
    for entry in read_log(tmp_path / "run"):
        total = entry["late_loss"] + 0.2 * entry["bow_loss"]
        assert entry["loss"] == pytest.approx(total, rel=1e-5)


def test_each_evaluation_has_the_same_masks_and_gives_the_loss_of_the_model(make_trainer, texts):
    settings = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 999}
    settings |= {"bow_weight": 0.5, "learning_rate": 0.0}
    data = {"few": texts[:9], "more": Dataset.from_dict({"text": texts[:20]})}
    trainer = make_trainer(eval_dataset=data, **settings)
    trainer.train()
    for name in data:
        examples = trainer.eval_dataset[name]
        examples.set_epoch(3)  # as by a loader whose workers outlive an evaluation
        batch = trainer.data_collator(examples.__getitems__(list(range(len(examples)))))
        with torch.no_grad():
            expected = trainer.model.eval()(**batch, bow_weight=0.5).loss.item()
        entries = [e for e in trainer.state.log_history if f"eval_{name}_loss" in e]
        for entry in entries:
            head, late, bow = (
                entry[f"eval_{name}_{part}_loss"] for part in ("head", "late", "bow")
            )
            assert head + late + 0.5 * bow == pytest.approx(expected, rel=1e-5)
        key = f"eval_{name}_loss"
        losses = [entry[key] for entry in trainer.state.log_history if key in entry]
        assert losses == pytest.approx([expected] * 3, rel=1e-5)
    assert trainer.evaluate(data["more"])["eval_loss"] == pytest.approx(losses[0], rel=1e-5)
    *_, vectors = trainer.predict(data["more"]).predictions
    assert len(vectors) == len(examples)  # without that of the filler of a packed batch


def test_the_best_checkpoint_is_kept_and_loaded_at_the_end(make_trainer, tmp_path, texts):
    settings = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps"}
    settings |= {"save_steps": 1, "save_total_limit": 2, "load_best_model_at_end": True}
    settings |= {"metric_for_best_model": "eval_head_loss"}
    settings |= {"max_steps": 2, "learning_rate": 0.5}  # the loss explodes
    trainer = make_trainer(eval_dataset=texts[50:60], **settings)
    trainer.train()
    first, last = (e["eval_head_loss"] for e in trainer.state.log_history if "eval_loss" in e)
    best = tmp_path / "run/checkpoint-1"
    assert first < last and trainer.state.best_model_checkpoint == str(best)
    saved = load_file(best / "model.safetensors")
    found = trainer.model.state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in saved.items())
    last_checkpoint = tmp_path / "run/checkpoint-2"
    assert last_checkpoint.is_dir() and find_weights(tmp_path / "run") == best


def test_processes_with_different_data_are_refused_before_anything_is_written(
    make_trainer, texts, tmp_path, monkeypatch
):
    trainer = make_trainer(texts[:20])
    monkeypatch.setattr(trainer_module, "gather_object", lambda own: [*own, "of another process"])
    with pytest.raises(ValueError, match="different models or data: .* a seed"):
        trainer.train()

    def gather_from_another_machine(own: list[Any]) -> list[Any]:
        return [*own, own[0] if isinstance(own[0], str) else ["checkpoint-1"]]

    monkeypatch.setattr(trainer_module, "gather_object", gather_from_another_machine)
    with pytest.raises(ValueError, match="different checkpoints or models in .* machines share"):
        trainer.train()
    assert not any((tmp_path / "run").glob("*"))


def test_a_stream_with_another_tokenizer_is_another_run(texts, tmp_path):
    stream = IterableDataset.from_generator(lambda: ({"text": text} for text in texts))
    encoder = BACKBONES["BERT"].config(vocab_size=500)
    hashes = []
    for part in (texts, texts[:9], texts):
        set_seed(0)
        trainer = CondenserTrainer(
            CondenserForPreTraining(CondenserConfig(encoder_config=encoder)),
            arguments(tmp_path, max_steps=2),
            train_dataset=stream,
            processing_class=BACKBONES["BERT"].tokenizer(part),
        )
        hashes.append(trainer.data_hash)
    assert hashes[0] == hashes[2] != hashes[1]


def test_what_the_trainer_does_not_support_is_refused(tmp_path, bert_folder, monkeypatch, caplog):
    model = CondenserForPreTraining.from_encoder(bert_folder)
    plain = CondenserForMaskedLM.from_encoder(bert_folder)
    raw = AutoModelForMaskedLM.from_pretrained(bert_folder)
    new = CondenserForPreTraining(CondenserConfig(encoder_config=BACKBONES["BERT"].config()))
    adapted = copy.copy(model)
    adapted._hf_peft_config_loaded = True  # as by add_adapter
    refused = {
        **{"label_smoothing_factor": 0.1, "neftune_noise_alpha": 5.0, "bf16_full_eval": True},
        **{"fp16_full_eval": True, "enable_jit_checkpoint": True, "auto_find_batch_size": True},
        **{"ignore_data_skip": True, "train_sampling_strategy": "sequential"},
    }
    for message, options, settings in (
        ("a CondenserForPreTraining, but .*MaskedLM", {"model": plain}, {}),
        ("'ict' needs a ContrastiveTrainer .* a CondenserTrainer", {}, {"objective": "ict"}),
        ("objective is 'condensr', expected one of condenser, mlm", {}, {"objective": "condensr"}),
        ("pass its tokenizer as processing_class", {"model": new}, {}),
        ("takes no model_init", {"model": None, "model_init": lambda: model}, {}),
        ("takes no data_collator", {"data_collator": list}, {}),
        ("has adapters of PEFT", {"model": adapted}, {}),
        ("a CondenserForMaskedLM, but .* a BertForMaskedLM", {"model": raw}, {"objective": "mlm"}),
        (
            "metric_for_best_model is eval_head_loss, .* one of eval_a_loss, eval_b_loss",
            {"eval_dataset": {"a": ["The river."], "b": ["The river."]}},
            {"metric_for_best_model": "eval_head_loss"},
        ),
        *(
            (f"takes no {name}: ", {name: len}, {})
            for name in ("compute_metrics", "compute_loss_func")
        ),
        *((f"takes no {name}: ", {}, {name: value}) for name, value in refused.items()),
    ):
        options = {"model": model, "train_dataset": ["The river left."], **options}
        with pytest.raises(ValueError, match=message):
            CondenserTrainer(args=arguments(tmp_path / "run", **settings), **options)
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(ValueError, match="One process sees 2 GPUs.*torchrun"):
        CondenserTrainer(model, arguments(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    prepare = CondenserTrainer.create_accelerator_and_postprocess

    def shard(trainer: Any) -> None:
        prepare(trainer)
        trainer.is_fsdp_enabled = True

    monkeypatch.setattr(CondenserTrainer, "create_accelerator_and_postprocess", shard)
    with pytest.raises(ValueError, match="FSDP and DeepSpeed are not supported"):
        CondenserTrainer(model, arguments(tmp_path / "run"), train_dataset=["The river."])
    monkeypatch.undo()
    arguments(tmp_path, tokens_per_batch=512, per_device_train_batch_size=4)
    assert "per_device_train_batch_size (4) has no effect" in caplog.text
    derived = type("Mine", (TrainingArguments,), {})(str(tmp_path / "run"))
    with pytest.raises(ValueError, match="is a Mine: derive it from CondenserTrainingArguments"):
        CondenserTrainer(model, derived, train_dataset=["The river."])
    changed = Dataset.from_dict({"text": ["a"]}).with_transform(lambda rows: rows)
    with pytest.raises(ValueError, match="train_dataset has a transform, which is not applied"):
        CondenserTrainer(model, arguments(tmp_path / "run"), train_dataset=changed)


def test_batches_are_packed_unless_it_is_refused_or_the_encoder_cannot(
    tmp_path, bert_folder, texts
):
    mpnet = BACKBONES["MPNet"].save(tmp_path / "mpnet", texts)

    def is_packed(encoder: Path = bert_folder, **changes: Any) -> bool:
        model = CondenserForPreTraining.from_encoder(str(encoder))
        prepare_model(model, find_tokenizer(model), arguments(tmp_path, **changes))
        return is_packing(model)

    assert is_packed() and is_packed(objective="cocondenser")
    model = CondenserForPreTraining.from_encoder(str(bert_folder))
    for packed in (None, False):  # a model that packed before
        settings = arguments(tmp_path, packed=packed)
        tokenizer = find_tokenizer(model)
        prepare_model(model, tokenizer, settings)
        assert make_collator(model, tokenizer, settings).packed == (packed is None)
    assert not (is_packed(packed=False) or is_packed(mpnet))
    with pytest.raises(ValueError, match="mpnet .* only their own attention. Set packed: false"):
        is_packed(mpnet, packed=True)


def test_ict_trains_the_shared_weights_unless_they_are_frozen(tmp_path, bert_folder):
    for is_trained in (True, False):
        model = CondenserForMaskedLM.from_encoder(bert_folder)
        words = model.get_input_embeddings().weight.requires_grad_(is_trained)
        prepare_model(model, find_tokenizer(model), arguments(tmp_path, objective="ict"))
        assert words.requires_grad == is_trained
        of_head = [weight for weight in model.lm_head.parameters() if weight is not words]
        assert of_head and not any(weight.requires_grad for weight in of_head)
        of_head[0].requires_grad_(False)
        prepare_model(model, find_tokenizer(model), arguments(tmp_path, objective="mlm"))
        assert all(weight.requires_grad for weight in of_head)


def test_text_of_which_nothing_can_be_masked_stops_at_the_first_step(make_trainer):
    with pytest.raises(ValueError, match="No token of a batch of 8 texts can be masked"):
        make_trainer(["한국어"] * 8).train()


def test_a_step_without_a_masked_token_is_no_error(make_trainer, texts):
    texts = [*texts[:9], "한국어"]
    trainer = make_trainer(texts, per_device_train_batch_size=1, max_steps=10, bow_weight=0)
    losses = [entry["late_loss"] for entry in steps_of(trainer)]
    assert losses.count(0) == 1 and len(losses) == 10


def test_plain_mlm_from_a_checkpoint_leaves_out_its_second_masking(tmp_path, bert_folder, texts):
    condenser = CondenserForPreTraining.from_encoder(str(bert_folder), head_mlm_probability=0.5)
    condenser.save_pretrained(tmp_path / "checkpoint")
    model = CondenserForMaskedLM.from_pretrained(tmp_path / "checkpoint")
    settings = arguments(tmp_path / "run", objective="mlm", max_steps=1)
    tokenizer = find_tokenizer(condenser)
    [entry] = steps_of(
        CondenserTrainer(model, settings, train_dataset=texts, processing_class=tokenizer)
    )
    assert entry["loss"] == pytest.approx(entry["late_loss"])


@pytest.mark.parametrize("opened", ["from_encoder", "from_pretrained"])
def test_a_script_that_starts_from_a_checkpoint_keeps_its_tokenizer_and_stages(
    opened, make_trainer, tmp_path, texts
):
    first = make_trainer(max_steps=1)
    first.train()
    model = getattr(CondenserForPreTraining, opened)(str(first.write_model()))
    settings = arguments(tmp_path / "second", max_steps=1)
    second = CondenserTrainer(model, settings, train_dataset=texts[50:90])
    second.train()
    assert second.processing_class.get_vocab() == first.processing_class.get_vocab()
    assert len(read_provenance(second.write_model())) == 2


def test_parts_of_the_evaluation_loss_are_means_over_blocks_packed_or_padded(make_trainer, texts):
    rows = Dataset.from_dict({"text": texts[:20]})
    logged = []
    for packed in (True, False):
        trainer = make_trainer(packed=packed, per_device_eval_batch_size=7, name=str(packed))
        logged.append(trainer.evaluate(rows))
    for name in ("eval_loss", "eval_head_loss", "eval_late_loss"):
        assert logged[0][name] == pytest.approx(logged[1][name], abs=2e-3), name


def test_accumulated_budget_batches_take_the_step_of_their_union(make_trainer):
    """The union is trained on as one padded batch, by the model alone."""
    settings = {"bow_weight": 0.7, "tokens_per_batch": 150, "gradient_accumulation_steps": 3}
    head = {"n_head_layers": 1, "head_mlm_probability": 0.5, "config_changes": NO_DROPOUT}
    trainer = make_trainer(head=head, **settings, max_steps=1)
    model = copy.deepcopy(trainer.model)
    [entry] = steps_of(trainer)
    indices = [*chain.from_iterable(islice(trainer.batches, 3))]
    collator = replace(trainer.data_collator, packed=False)
    batch = collator(trainer.train_dataset.__getitems__(indices))
    output = model(**batch, bow_weight=0.7)
    output.loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    for name in ("head_loss", "late_loss", "bow_loss"):
        assert entry[name] == pytest.approx(output[name].item(), rel=1e-5), name
    assert entry["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_the_encoder_is_saved_with_the_tokenizer_of_the_training(bert_folder, texts, tmp_path):
    in_memory = AutoModelForMaskedLM.from_pretrained(bert_folder)
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    tokenizer.add_tokens(["§§"])
    in_memory.resize_token_embeddings(len(tokenizer))
    model = CondenserForPreTraining.from_encoder(in_memory)
    CondenserTrainer(
        *(model, arguments(tmp_path / "run", max_steps=1)),
        train_dataset=texts[:20],
        processing_class=tokenizer,
    ).train()
    saved = AutoTokenizer.from_pretrained(model.save_encoder(tmp_path / "encoder"))
    assert saved.tokenize("a §§")[-1] == "§§"
