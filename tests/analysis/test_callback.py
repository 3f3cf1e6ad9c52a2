"""Readiness seen while training: measured, logged, on the card, and otherwise without a trace."""

import json
import random

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset, load_dataset
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoTokenizer, TrainingArguments

from modeling_condenser import (
    CondenserDataCollator,
    CondenserForMaskedLM,
    CondenserForPreTraining,
    CondenserTrainer,
)
from modeling_condenser.analysis import readiness as readiness_of_models
from modeling_condenser.analysis.callback import ReadinessCallback
from modeling_condenser.analysis.readiness import Instruments, measure_readiness
from modeling_condenser.analysis.settings import Measuring
from modeling_condenser.analysis.subject import Subject, open_subject
from modeling_condenser.analysis.while_training import pretrain_and_measure
from modeling_condenser.biencoder.finetune import finetune
from modeling_condenser.evaluation.system_results import evaluate_system
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.repository.checks import card_problems

READINESS = {"every": 2, "texts": 6, "max_length": 32, "queries": 10, "passages": 30}


@pytest.fixture(scope="module")
def settings(bert_folder, corpus_file):
    return {
        "encoder": str(bert_folder),
        "corpus": str(corpus_file),
        "n_head_layers": 1,
        "max_length": 32,
        "per_device_train_batch_size": 4,
        "max_steps": 5,
        "learning_rate": 1e-3,
        "logging_steps": 2,
        "save_steps": 2,
        "disable_tqdm": True,
        "use_cpu": True,
    }


@pytest.fixture(scope="module")
def measured(settings, collection, tmp_path_factory):
    """A run that was measured, on a collection too."""
    run = tmp_path_factory.mktemp("measured") / "run"
    readiness = {**READINESS, "collection": str(collection)}
    pretrain_and_measure({**settings, "readiness": readiness, "output_dir": str(run)})
    return run


@pytest.fixture(scope="module")
def plain(settings, tmp_path_factory):
    """The same run, not measured."""
    run = tmp_path_factory.mktemp("plain") / "run"
    pretrain({**settings, "output_dir": str(run)})
    return run


def read_log(run):
    return json.loads((run / "log.json").read_text())


def test_the_weights_are_bit_equal_to_those_of_a_run_that_was_not_measured(measured, plain):
    for folder in ("model", "checkpoint-2", "checkpoint-4"):
        ours, theirs = (load_file(run / folder / "model.safetensors") for run in (measured, plain))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        configs = [(run / folder / "config.json").read_text() for run in (measured, plain)]
        assert configs[0] == configs[1]
    states = [
        torch.load(run / "checkpoint-4" / "rng_state.pth", weights_only=False)
        for run in (measured, plain)
    ]
    assert torch.equal(states[0]["cpu"], states[1]["cpu"])
    assert states[0]["python"] == states[1]["python"]


def test_the_other_log_entries_are_those_of_a_run_that_was_not_measured(measured, plain):
    for name in ("late_loss", "head_loss", "swap_cost", "grad_norm", "learning_rate"):
        ours, theirs = (
            [(e["step"], e[name]) for e in read_log(run) if name in e] for run in (measured, plain)
        )
        assert ours == theirs and [step for step, _ in ours] == [2, 4], name


def test_the_log_holds_start_middle_and_end_with_their_tokens(measured):
    entries = [e for e in read_log(measured) if "readiness/swap_cost" in e]
    assert [e["step"] for e in entries] == [0, 2, 4, 5]
    tokens = [e["num_input_tokens_seen"] for e in entries]
    assert tokens[0] == 0 and tokens == sorted(set(tokens))
    assert tokens[-1] == json.loads((measured / "run.json").read_text())["tokens_seen"]
    assert entries[0].keys() == entries[-1].keys()
    # Of so small a model these two can stay at 0 for all four entries; the others must change.
    assert {"readiness/swap_cost", "readiness/zero_shot_MRR@10"} <= entries[0].keys()
    for name in "head_loss zero_cost entropy entropy_layer_4 alignment uniformity".split():
        assert len({e[f"readiness/{name}"] for e in entries}) > 1, name
    saved = json.loads((measured / "checkpoint-4" / "trainer_state.json").read_text())
    kept = [e["step"] for e in saved["log_history"] if "readiness/swap_cost" in e]
    assert kept == [0, 2, 4]


def test_the_last_entry_is_what_the_saved_model_gives(measured, collection, corpus_file):
    [*_, last] = [e for e in read_log(measured) if "readiness/swap_cost" in e]
    measuring = Measuring(
        texts=6, max_length=32, queries=10, passages=30, collection=str(collection)
    )
    rows = load_dataset("json", data_files=str(corpus_file), split="train")
    instruments = Instruments.prepare(measuring, rows)
    found = measure_readiness(open_subject(measured / "model", max_length=32), instruments)
    again = instruments.logs(found)
    told = {k: v for k, v in last.items() if k.startswith("readiness/") and "seconds" not in k}
    assert told == pytest.approx({name: again[name] for name in told}, abs=1e-6)
    assert told["readiness/sample"] == instruments.number


def test_zero_shot_is_what_the_export_reaches(measured, collection, tmp_path):
    """On all passages and queries, through files, embeddings and the evaluation."""
    export = export_encoder(measured / "model", tmp_path / "export")
    expected = evaluate_system(
        f"{export},query_max_length=32,passage_max_length=32", collection, tmp_path / "evaluation"
    ).evaluation.means
    measuring = Measuring(max_length=32, queries=999, passages=999, collection=str(collection))
    rows = load_dataset("json", data_files=str(collection / "corpus.jsonl"), split="train")
    instruments = Instruments.prepare(measuring, rows)
    for folder in (measured / "model", export):
        subject = open_subject(folder, max_length=32)
        found = measure_readiness(subject, instruments)
        assert found.zero_shot == pytest.approx(expected), folder
    assert expected["R@100"] == 1.0 and expected["MRR@10"] < 1


def test_the_card_holds_start_and_end_and_its_pictures(measured):
    entries = [e for e in read_log(measured) if "readiness/swap_cost" in e]
    folder = measured / "model"
    text = ModelCard.load(folder / "README.md").text
    section = text.partition("## Readiness")[2].partition("\n## ")[0]
    assert "| | start | step 5 | difference |" in section.replace("|  |", "| |")
    first, last = (e["readiness/swap_cost"] for e in (entries[0], entries[-1]))
    row = f"| {first:.4f} | {last:.4f} | {last - first:+.4f} |"
    assert f"| rise when the late CLS is another text's {row}" in section
    for picture in ("readiness.png", "attention_entropy.png"):
        assert f"]({picture})" in section
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    # The losses of training are still where they were.
    assert "| last logged loss | late " in text
    assert not [problem for problem in card_problems(folder) if "readiness" in problem]


def test_the_card_travels_with_the_export_and_the_retriever(measured, collection, tmp_path):
    export = export_encoder(measured, tmp_path / "export")
    retriever = finetune(
        {
            "encoder": str(export),
            "collection": str(collection),
            "train_size": 4,
            "max_steps": 1,
            "per_device_train_batch_size": 4,
            "use_cpu": True,
            "disable_tqdm": True,
            "output_dir": str(tmp_path / "retriever"),
        }
    )
    section = (
        "## Readiness"
        + (measured / "model" / "README.md")
        .read_text()
        .partition("## Readiness")[2]
        .partition("\n## ")[0]
    )
    for folder in (export, retriever):
        assert section in (folder / "README.md").read_text()
        assert (folder / "attention_entropy.png").is_file()


def test_what_is_pushed_while_training_holds_it_too(settings, texts, tmp_path):
    instruments = Instruments.prepare(Measuring(texts=4), Dataset.from_dict({"text": texts}))
    trainers = []

    def make_callback(trainer):
        trainers.append(trainer)
        return ReadinessCallback(trainer, instruments, every=1)

    given = {**settings, "max_steps": 1, "output_dir": str(tmp_path / "run")}
    pretrain(given, callbacks=[make_callback], facts={"watched": True})
    (tmp_path / "pushed").mkdir()
    trainers[0].write_repository(tmp_path / "pushed", None)
    text = (tmp_path / "pushed" / "README.md").read_text()
    assert "## Readiness" in text and "](readiness.png)" in text
    assert (tmp_path / "pushed" / "readiness.png").is_file()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["watched"] is True


def test_a_card_says_nothing_of_what_was_not_measured(plain):
    assert "Readiness" not in (plain / "model" / "README.md").read_text()
    assert not (plain / "model" / "readiness.png").exists()


def test_recipe_and_record_say_what_was_measured_on(measured, collection):
    recipe = yaml.safe_load((measured / "recipe.yaml").read_text())
    assert recipe["readiness"] == {**READINESS, "collection": str(collection)}
    facts = json.loads((measured / "run.json").read_text())["readiness"]
    assert facts["texts"] == 6 and facts["pairs_are"] == "query and judged passage"
    assert facts["collection"]["queries"] == 10 and len(facts["sample_sha256"]) == 64
    assert str(collection) not in (measured / "model" / "provenance.json").read_text()


def test_a_killed_run_goes_on_with_its_log_whole(settings, measured, collection, tmp_path):
    class Killed(Exception):
        pass

    step = CondenserTrainer.training_step

    def killed(self, *args, **kwargs):
        if self.state.global_step == 3:
            raise Killed
        return step(self, *args, **kwargs)

    readiness = {**READINESS, "collection": str(collection)}
    given = {**settings, "readiness": readiness, "output_dir": str(tmp_path / "run")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CondenserTrainer, "training_step", killed)
        with pytest.raises(Killed):
            pretrain_and_measure(given)
    other = {**given, "readiness": {**readiness, "texts": 7}}
    with pytest.raises(ValueError, match="measured on another sample"):
        pretrain_and_measure(other)
    pretrain_and_measure(given)
    told = [
        {k: v for k, v in e.items() if k.startswith("readiness/") and "seconds" not in k}
        for run in (tmp_path / "run", measured)
        for e in read_log(run)
        if "readiness/swap_cost" in e
    ]
    assert len(told) == 8 and told[:4] == told[4:]


def test_a_pretraining_that_nobody_measures_says_so_before_it_writes(settings, tmp_path):
    given = {**settings, "readiness": {"every": 2}, "output_dir": str(tmp_path / "run")}
    with pytest.raises(ValueError, match="call .*pretrain_and_measure with the same settings"):
        pretrain(given)
    assert not (tmp_path / "run").exists()


def test_wrong_settings_are_refused_before_anything_is_written(settings, collection, tmp_path):
    run = tmp_path / "run"
    for readiness, message in (
        ({"every": 0}, "every is 0"),
        ({"collection": "no/such/place"}, "no collection at"),
        ({"collection": str(collection), "split": "dev"}, "dev"),
        ({"collection": str(collection), "labels": 41}, "labels is 41, but .* has 40 in its split"),
    ):
        given = {**settings, "readiness": readiness, "output_dir": str(run)}
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            pretrain_and_measure(given)
        assert not run.exists()


@pytest.mark.parametrize("cls", [CondenserForPreTraining, CondenserForMaskedLM])
def test_measuring_leaves_no_trace(bert_run, texts, cls, monkeypatch):
    def draw(vectors):
        """As a measure would that draws from all of the global generators."""
        return random.random() + np.random.rand() + torch.rand(()).item()

    monkeypatch.setattr(readiness_of_models, "uniformity", draw)
    model = cls.from_pretrained(bert_run / "model").train()
    model.condenser.encoder.embeddings.eval()  # one part is frozen in its own mode
    tokenizer = AutoTokenizer.from_pretrained(bert_run / "model")
    subject = Subject.of_model(model, tokenizer, max_length=32)
    instruments = Instruments.prepare(Measuring(texts=4), Dataset.from_dict({"text": texts}))

    def state():
        modes = [module.training for module in model.modules()]
        grads = [parameter.grad is None for parameter in model.parameters()]
        back_end = model.condenser.encoder.config._attn_implementation
        draws = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()
        return modes, grads, back_end, draws, model.config.to_dict(), tokenizer.model_max_length

    before = state()
    readiness = measure_readiness(subject, instruments)
    assert state() == before
    assert (readiness.condensing is None) == (cls is CondenserForMaskedLM)
    assert len(readiness.entropy.layers) == 4 and readiness.zero_shot == {}


def test_few_shot_is_measured_in_a_process_of_its_own(bert_run, collection):
    measuring = Measuring(
        texts=2,
        max_length=32,
        collection=str(collection),
        queries=20,
        labels=16,
        finetuning={"max_steps": 15, "learning_rate": 3e-3, "per_device_train_batch_size": 16},
    )
    rows = Dataset.from_dict({"text": ["one text", "another text"]})
    subject = open_subject(bert_run, max_length=32)
    state = torch.get_rng_state()
    found = measure_readiness(subject, Instruments.prepare(measuring, rows))
    assert torch.equal(torch.get_rng_state(), state)
    assert found.few_shot.keys() == found.zero_shot.keys()
    assert found.few_shot["MRR@10"] != found.zero_shot["MRR@10"]


def test_a_trainer_without_a_tokenizer_or_with_parts_of_the_weights_is_refused(
    bert_run, texts, tmp_path
):
    tokenizer = AutoTokenizer.from_pretrained(bert_run / "model")
    model = CondenserForPreTraining.from_pretrained(bert_run / "model")
    instruments = Instruments.prepare(Measuring(texts=4), Dataset.from_dict({"text": texts}))
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    collator = CondenserDataCollator(tokenizer, max_length=32)
    bare = CondenserTrainer(model, arguments, collator, train_dataset=[])
    with pytest.raises(ValueError, match="no tokenizer"):
        ReadinessCallback(bare, instruments)
    bare.processing_class = tokenizer
    with pytest.raises(ValueError, match="every is 0"):
        ReadinessCallback(bare, instruments, every=0)
    bare.args.fsdp = "full_shard"
    with pytest.raises(ValueError, match="FSDP and DeepSpeed"):
        ReadinessCallback(bare, instruments)
