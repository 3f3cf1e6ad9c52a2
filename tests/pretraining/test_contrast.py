"""The contrastive loss against brute force, and its gradient in chunks against that at once."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.base.losses.gradcache import RandContext

from modeling_condenser import (
    CondenserForPreTraining,
    CondenserTrainingArguments,
    ContrastiveTrainer,
)
from modeling_condenser.pretraining.contrastive_trainer import contrast, put_back, split_batch
from modeling_condenser.pretraining.examples import make_examples
from modeling_condenser.pretraining.objectives import OBJECTIVES, Objective, draw_spans
from modeling_condenser.pretraining.pretrain import pretrain
from modeling_condenser.pretraining.rows import as_rows
from tests.models import assert_same, gradients
from tests.run_logs import read_log


def brute_force(vectors, *, cosine, temperature, one_way) -> tuple[float, float]:
    """Loss and accuracy, text by text, from the definition."""
    if cosine:
        vectors = [v / np.sqrt((v * v).sum()) for v in vectors]
    seekers = range(0, len(vectors), 2) if one_way else range(len(vectors))
    losses, found = [], []
    for i in seekers:
        partner = i + 1 if i % 2 == 0 else i - 1
        others = [j for j in range(len(vectors)) if j != i]
        if one_way:
            others = [j for j in others if j % 2 == 1]
        scores = {j: float(vectors[i] @ vectors[j]) / temperature for j in others}
        losses.append(math.log(sum(math.exp(s) for s in scores.values())) - scores[partner])
        found.append(max(scores, key=scores.get) == partner)
    return float(np.mean(losses)), float(np.mean(found))


@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize(("cosine", "temperature"), [(False, 1.0), (True, 0.05)])
def test_loss_and_accuracy_equal_brute_force(cosine, temperature, one_way):
    vectors = np.random.default_rng(0).normal(size=(12, 5))
    vectors[1::2] += 0.5 * vectors[::2]  # partners are somewhat alike
    options = {"cosine": cosine, "temperature": temperature, "one_way": one_way}
    loss, accuracy = brute_force(vectors, **options)
    found = contrast(torch.tensor(vectors), **options)
    assert [number.item() for number in found] == pytest.approx([loss, accuracy], rel=1e-5)
    assert 0 < accuracy < 1


N_DOCUMENTS = 6


def build_trainer(
    folder: Path,
    encoder: Path,
    texts: list[str],
    *,
    dropout: float = 0.1,
    pooling: Any = "cls",
    **settings: Any,
) -> ContrastiveTrainer:
    """A trainer of an encoder with large weights."""
    torch.manual_seed(1)
    model = CondenserForPreTraining.from_encoder(str(encoder), pooling=pooling)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    defaults = {
        "objective": "cocondenser",
        "max_length": 24,
        "contrastive_weight": 0.7,
        "similarity": "cosine",
        "temperature": 0.1,
        "per_device_train_batch_size": N_DOCUMENTS,
        "use_cpu": True,
    }
    arguments = CondenserTrainingArguments(str(folder), **{**defaults, **settings})
    documents = [{"text": text} for text in texts[:40]]
    return ContrastiveTrainer(model, arguments, train_dataset=documents)


def one_batch(trainer: ContrastiveTrainer) -> dict[str, torch.Tensor]:
    return trainer.data_collator(trainer.train_dataset.__getitems__(list(range(N_DOCUMENTS))))


def step(trainer: ContrastiveTrainer, *, seed: int = 5) -> tuple[dict, torch.Tensor]:
    """Loss and gradients by name, and the random state after a training step."""
    batch = one_batch(trainer)
    trainer.model.zero_grad()
    torch.manual_seed(seed)
    n_items = (batch["labels"] != -100).sum()
    loss = trainer.training_step(trainer.model, batch, n_items)
    return {"loss": loss, **gradients(trainer.model)}, random_state(trainer)


def naive_step(trainer: ContrastiveTrainer, chunk_size: int) -> tuple[dict, torch.Tensor]:
    """The same step with all activations held: every chunk's graph, one loss, one backward."""
    batch = trainer._prepare_inputs(one_batch(trainer))
    model = trainer.model
    model.zero_grad()
    model.train()
    torch.manual_seed(5)
    chunks = split_batch(batch, chunk_size, packed=trainer.is_packing)
    n_items = (batch["labels"] != -100).sum()
    total, vectors = 0.0, []
    for chunk in chunks:
        with RandContext(chunk.rows):
            output = model(**chunk.inputs, num_items_in_batch=n_items)
        with torch.no_grad():  # the numbers that the vectors alone would draw
            model(**chunk.inputs, vectors_only=True)
        total = total + output.loss
        vectors.append(output.cls_late)
    loss = total + trainer._contrast_all(put_back(vectors, chunks))
    loss.backward()
    return {"loss": loss.detach(), **gradients(model)}, random_state(trainer)


def random_state(trainer: ContrastiveTrainer) -> torch.Tensor:
    is_on_gpu = trainer.args.device.type == "cuda"
    return torch.cuda.get_rng_state() if is_on_gpu else torch.get_rng_state()


@pytest.fixture
def make_trainer(tmp_path: Path, large_weights: Path, texts: list[str]) -> Any:
    return partial(build_trainer, tmp_path / "trainer", large_weights, texts)


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({"cache_chunk_size": 4, "packed": False}, 1e-5),
        ({"cache_chunk_size": 8, "similarity": "dot", "temperature": 1.0}, 1e-5),
        ({"cache_chunk_size": 4, "packed": False, "bf16": True}, 1e-2),
        ({"cache_chunk_size": 4, "pooling": "mean", "bow_weight": 1.0}, 1e-5),
        pytest.param({"cache_chunk_size": 4, "use_cpu": False}, 1e-4, marks=pytest.mark.gpu),
    ],
)
def test_with_dropout_the_cached_gradient_is_the_uncached_one(make_trainer, settings, tolerance):
    trainer = make_trainer(**settings)
    trainer.model_wrapped = trainer.model = trainer.accelerator.prepare_model(trainer.model)
    found, state = step(trainer)
    expected, expected_state = naive_step(trainer, trainer.args.cache_chunk_size)
    largest = max(value.abs().max().item() for value in expected.values())
    assert_same(found, expected, tolerance * largest)
    assert torch.equal(state, expected_state)
    assert step(trainer, seed=6)[0]["loss"] != found["loss"]


def test_without_dropout_chunks_give_the_gradient_of_the_padded_batch_at_once(make_trainer):
    expected, state = step(make_trainer(dropout=0.0, packed=False))
    trainer = make_trainer(dropout=0.0)  # which packs the batch at once
    assert_same(step(trainer)[0], expected, 1e-5)
    trainer = make_trainer(dropout=0.0, cache_chunk_size=3)
    for chunk_size in (3, 4, 12):
        trainer.args.cache_chunk_size = chunk_size
        found, state_after = step(trainer)
        assert_same(found, expected, 1e-5)
        assert torch.equal(state_after, state)  # also the random states, bit for bit


@torch.no_grad()
def test_an_evaluation_contrasts_whole_batches_and_leaves_the_training_log_as_it_is(
    make_trainer, texts
):
    trainer = make_trainer(cache_chunk_size=4, bow_weight=1.0, per_device_eval_batch_size=16)
    model, losses = trainer.model.eval(), []
    for batch in trainer.get_eval_dataloader(texts[:40]):
        output = model(**batch)
        loss, _ = contrast(output.cls_late, cosine=True, temperature=0.1, one_way=False)
        losses.append((output.loss + 0.7 * loss).item())
    found = trainer.evaluate(texts[:40])["eval_loss"]
    assert len(losses) == 2 and found == pytest.approx(np.mean(losses), rel=1e-5)
    assert trainer._losses == {}
    with pytest.raises(ValueError, match="eval_dataset has . pairs, but a batch .* has 16"):
        trainer.evaluate(texts[:5])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gradient_accumulation_steps", 2, "gradient_accumulation_steps is 2.*cache_chunk_size"),
        ("per_device_train_batch_size", 1, "The batch is one pair.*to 2 or more"),
        ("per_device_train_batch_size", 999, "train_dataset has 40 pairs.* processes has 999"),
    ],
)
def test_arguments_that_do_not_fit_the_loss_are_refused(make_trainer, name, value, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(**{name: value})


def test_a_run_logs_all_losses_and_records_what_was_left_out(settings, tmp_path):
    contrast = {"objective": "cocondenser", "similarity": "cosine", "contrastive_weight": 0.5}
    pretrain(**{**settings, **contrast, "cache_chunk_size": 6, "max_length": 24})
    for entry in read_log(tmp_path / "run"):
        mlm_loss = entry["head_loss"] + entry["late_loss"]
        assert entry["loss"] == pytest.approx(mlm_loss + 0.5 * entry["contrastive_loss"], rel=1e-5)
        assert 0 <= entry["contrastive_accuracy"] <= 1
        assert isinstance(entry["swap_cost"], float)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["n_documents_left_out"] == record["n_documents"] - record["n_blocks"] > 0


def test_an_entry_of_the_table_is_all_that_an_objective_needs(settings, tmp_path, monkeypatch):
    added = Objective("spans", "", reads="spans", choose_pairs=lambda *_: draw_spans)
    monkeypatch.setitem(OBJECTIVES, "spans", added)
    settings = {**settings, "objective": "spans", "max_length": 24, "max_steps": 1}
    pretrain(**settings)
    [entry] = read_log(tmp_path / "run")
    total = entry["late_loss"] + entry["contrastive_loss"]
    assert entry["loss"] == pytest.approx(total, rel=1e-5) and "head_loss" not in entry
    with pytest.raises(ValueError, match="n_head_layers is only for objective condenser, cocond"):
        pretrain(**settings, n_head_layers=1)


@pytest.mark.parametrize("objective", ["ict", "cocondenser"])
def test_copies_of_documents_and_passages_are_left_out(
    wordpiece_tokenizer, texts, tmp_path, objective, caplog
):
    """In a batch, a copy would be a negative of the same text."""
    arguments = CondenserTrainingArguments(tmp_path, objective=objective, max_length=32)

    def prepare(documents: list[str]) -> tuple[list[list[int]], dict[str, Any]]:
        rows = as_rows(documents, name="train_dataset")
        examples, _, facts = make_examples(rows, wordpiece_tokenizer, arguments)
        return [ids.tolist() for ids in examples.blocks["input_ids"][:]], facts

    short, long = "The river is old. The market is near.", " ".join(texts[:6])
    others = [long, short, *texts[10:15], ""]
    blocks, facts = prepare([*others, f" {short}\n", long, ""])
    alone, expected = prepare(others)
    assert blocks == alone and facts["n_blocks"] == len(blocks)
    assert facts["n_documents"] == len(others) + 1  # with both blank ones
    assert facts["n_documents_left_out"] == expected["n_documents_left_out"] + 1
    assert "2 of 11 documents are copies and are left out" in caplog.text
    same, facts = prepare([long, long.upper(), short])  # for a tokenizer without case
    assert len(same) == len({tuple(ids) for ids in same}) == facts["n_blocks"]
    assert "texts are copies and are left out" in caplog.text
