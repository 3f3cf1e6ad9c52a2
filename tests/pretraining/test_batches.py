"""Batches within a token budget: which blocks they hold, and that all have one shape."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset
from torch._dynamo.utils import counters
from transformers import set_seed

from modeling_condenser import (
    CondenserDataCollator,
    CondenserForPreTraining,
    CondenserTrainer,
    CondenserTrainingArguments,
)
from modeling_condenser.packing import unpack
from modeling_condenser.pretraining.batches import TokenBudgetBatches

LENGTHS = np.random.default_rng(0).integers(3, 65, size=1000)


def epoch_of(batches: TokenBudgetBatches, epoch: int) -> list[list[int]]:
    batches.set_epoch(epoch)
    return list(batches)


def test_an_epoch_holds_each_block_once_in_batches_as_full_as_the_budget_allows():
    epoch = epoch_of(TokenBudgetBatches(LENGTHS, 256, seed=1), 0)
    assert sorted(i for batch in epoch for i in batch) == list(range(1000))
    assert max(LENGTHS[batch].sum() for batch in epoch) <= 256
    for batch, following in pairwise(epoch):
        assert LENGTHS[batch].sum() + LENGTHS[following[0]] > 256


def test_order_and_batches_depend_on_seed_and_epoch_only_and_epochs_are_equally_long():
    one, other = (TokenBudgetBatches(LENGTHS, 256, seed=1) for _ in range(2))
    epochs = [epoch_of(one, epoch) for epoch in range(5)]
    assert epoch_of(other, 3) == epochs[3] != epochs[0]
    assert epoch_of(TokenBudgetBatches(LENGTHS, 256, seed=2), 3) != epochs[3]
    for given in epochs:
        assert len(given) == len(one)
        assert len({i for batch in given for i in batch}) > 970


def test_processes_share_whole_batches_and_get_equally_many():
    batches = TokenBudgetBatches(LENGTHS, 256, seed=1, n_processes=7)
    shares = [list(BatchSamplerShard(batches, 7, rank)) for rank in range(7)]
    together = [batch for turn in zip(*shares, strict=True) for batch in turn]
    alone = list(TokenBudgetBatches(LENGTHS, 256, seed=1))
    assert together == list(batches)
    assert together[: len(alone)] == alone
    assert len(together) - len(alone) < 7


def test_all_batches_have_one_shape_and_hold_the_blocks_of_the_padded_ones(tokenizer):
    collator = CondenserDataCollator(
        tokenizer, max_length=64, head_mlm_probability=0.5, bag_of_words=True, packed=True
    )
    padding = CondenserDataCollator(
        tokenizer, max_length=64, head_mlm_probability=0.5, bag_of_words=True
    )
    ids = np.random.default_rng(1).integers(5, len(tokenizer), size=(1000, 64))
    examples = [
        {"input_ids": row[: n - 2], "mask_key": i}
        for i, (row, n) in enumerate(zip(ids, LENGTHS, strict=True))
    ]
    batches = TokenBudgetBatches(LENGTHS, 256, seed=1)
    shape = batches.shape(collator.masked_shares)
    assert (shape.n_tokens, shape.longest) == (320, 64)
    shapes = set()
    for epoch in range(3):
        for batch in epoch_of(batches, epoch):
            chosen = [examples[i] for i in batch]
            packed, padded = collator(chosen, shape), padding(chosen)
            shapes.add(tuple((n, getattr(v, "shape", v)) for n, v in sorted(packed.items())))
            for name, column in unpack(packed).items():
                expected = padded[name][:, : column.shape[1]]
                is_token = padded["attention_mask"][:, : column.shape[1]] == 1
                assert torch.equal(column[is_token], expected[is_token]), name
            for labels, index in (
                ("labels", "masked_index"),
                ("head_targets", "head_masked_index"),
            ):
                n_labels = (packed[labels] != -100).sum()
                assert (packed[labels][0, packed[index]] != -100).sum() == n_labels > 0
    [sizes] = shapes
    assert dict(sizes)["input_ids"] == (1, 320)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stored", "stream", "by layers"])
def test_a_compiled_training_compiles_once_and_has_the_losses_of_the_eager_one(
    tmp_path, bert_folder, texts, kind, monkeypatch
):
    data: Any = texts[:50]
    if kind == "by layers":
        monkeypatch.setenv("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "true")
    if kind == "stream":
        data = Dataset.from_dict({"text": data}).to_iterable_dataset()
    losses = []
    for compiled in (False, True):
        set_seed(3)
        compiling = {"torch_compile": True, "torch_compile_backend": "eager"} if compiled else {}
        settings = {"max_length": 32, "tokens_per_batch": 150, "max_steps": 4, "logging_steps": 1}
        settings |= {"stream_lanes": 2}
        arguments = CondenserTrainingArguments(
            str(tmp_path / str(compiled)), use_cpu=True, report_to="none", **settings, **compiling
        )
        model = CondenserForPreTraining.from_encoder(str(bert_folder), head_mlm_probability=0.5)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        counters.clear()
        trainer = CondenserTrainer(model, arguments, train_dataset=data)
        trainer.train()
        losses.append([e["loss"] for e in trainer.state.log_history if "loss" in e])
    torch.compiler.reset()
    assert losses[1] == pytest.approx(losses[0], rel=1e-4) and len(losses[0]) == 4
    assert not counters["graph_break"]
    n_graphs = counters["stats"]["unique_graphs"]
    assert n_graphs == 1 if kind != "by layers" else n_graphs > 1
