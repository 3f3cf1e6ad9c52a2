"""Batches, and training that resumes: token lengths, no duplicates, the same result bit for bit."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset
from safetensors.torch import load_file
from sentence_transformers.sentence_transformer.training_args import BatchSamplers
from transformers import PreTrainedTokenizerBase

from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.finetuning.recipe import FinetuningRecipe
from modeling_condenser.finetuning.trainer import (
    DistinctBatches,
    LengthCollator,
    RetrieverTrainer,
    choose_batch_sampler,
)
from modeling_condenser.hub.contract import EncodingContract

LONG = "the river is near the old market and the engine is near the old museum " * 4


def test_each_column_is_cut_where_encoding_cuts_it(
    wordpiece_tokenizer: PreTrainedTokenizerBase,
) -> None:
    rows = [
        {"query": LONG, "positive": LONG, "negative_1": "Why?", "label": [1.0, 0.5]},
        {"query": "Why?", "positive": LONG, "negative_1": LONG, "label": [2.0, 0.0]},
    ]
    batch = LengthCollator(wordpiece_tokenizer, EncodingContract(8, 21))(rows)
    assert list(batch) == [
        *("query_input_ids", "query_attention_mask"),
        *("positive_input_ids", "positive_attention_mask"),
        *("negative_1_input_ids", "negative_1_attention_mask"),
        "label",
    ]
    lengths = [batch[f"{c}_attention_mask"].sum(1).tolist() for c in rows[0] if c != "label"]
    assert lengths == [[8, 4], [21, 21], [4, 21]]
    expected = wordpiece_tokenizer(LONG, truncation=True, max_length=8)["input_ids"]
    assert batch["query_input_ids"][0].tolist() == expected
    assert batch["label"].tolist() == [[1.0, 0.5], [2.0, 0.0]]
    contract = EncodingContract(8, 21, token_type_ids=True)
    pair = LengthCollator(wordpiece_tokenizer, contract)([{"sentence1": LONG, "sentence2": LONG}])
    assert pair["sentence1_token_type_ids"].shape == pair["sentence2_input_ids"].shape == (1, 21)


# Each text is in several rows, now as a query's positive, now as a negative.
EXAMPLES = Dataset.from_dict(
    {
        "query": [f"q{i}" for i in range(200)],
        "positive": [f"text {i % 70}" for i in range(200)],
        "negative_1": [f"text {(3 * i + 5) % 70}" for i in range(200)],
    }
)


def batches(n_devices: int, *, seed: int = 3, epoch: int = 0, **changes: Any) -> Any:
    settings: dict[str, Any] = {"data": "d", "format": "pairs", **changes}
    recipe = FinetuningRecipe("e", gather_across_devices=n_devices > 1, **settings)
    make: Any = choose_batch_sampler(recipe, seed=seed, n_devices=n_devices)
    # The library's own seed is 0.
    made = make(EXAMPLES, batch_size=5, drop_last=True, generator=torch.Generator(), seed=0)
    made.set_epoch(epoch)
    return made


def texts(rows: list[int]) -> list[str]:
    found = EXAMPLES[rows]
    pairs = zip(found["positive"], found["negative_1"], strict=True)
    return [*found["query"], *(text for pair in pairs for text in dict.fromkeys(pair))]


def shards(sampler: Any, n: int) -> list[list[list[int]]]:
    """The batches of each of n devices."""
    split = [BatchSamplerShard(sampler, n, i, even_batches=False) for i in range(n)]
    return [list(shard) for shard in split]


def test_the_batches_of_one_step_contain_no_text_twice() -> None:
    sharded = shards(batches(4), 4)
    assert len({len(shard) for shard in sharded}) == 1 and len(sharded[0]) > 3
    for step in zip(*sharded, strict=True):
        assert [len(batch) for batch in step] == [5] * 4
        together = texts([row for batch in step for row in batch])
        assert len(together) == len(set(together))
    assert len(batches(4)) == 4 * (200 // 20)


def test_objective_order_seed_and_epoch_decide_the_batches() -> None:
    assert type(batches(1)) is DistinctBatches
    assert list(batches(1)) == list(batches(1))
    assert list(batches(1)) != list(batches(1, seed=4))
    assert list(batches(1)) != list(batches(1, epoch=1))
    triplets = {"data": "d", "format": "triples", "objective": "triplet"}
    shuffled = choose_batch_sampler(FinetuningRecipe("e", **triplets), seed=0, n_devices=1)
    assert shuffled is BatchSamplers.BATCH_SAMPLER
    in_order = FinetuningRecipe("e", **triplets, order="sequential")
    make: Any = choose_batch_sampler(in_order, seed=0, n_devices=1)
    rows = [row for batch in make(EXAMPLES, batch_size=60, drop_last=False) for row in batch]
    assert rows == list(range(200))


@pytest.fixture
def settings(bert_folder: Path, tmp_path: Path, texts: list[str]) -> dict[str, Any]:
    """Contrast with negatives that are drawn anew each epoch, with dropout: 3 epochs of 4 steps."""
    rows = [
        {"query": texts[i][:40], "positive": texts[i], "negatives": texts[i + 60 : i + 70]}
        for i in range(16)
    ]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "encoder": str(bert_folder),
        "pooling": "mean",
        "data": str(file),
        "format": "negatives",
        "n_negatives": 2,
        "query_max_length": 8,
        "passage_max_length": 16,
        "per_device_train_batch_size": 4,
        "num_train_epochs": 3,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_steps": 3,
        "disable_tqdm": True,
        "use_cpu": True,
        "output_dir": str(tmp_path / "whole"),
    }


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"dataloader_num_workers": 2}, marks=pytest.mark.slow),
        pytest.param({"mini_batch_size": 3}, marks=pytest.mark.slow),
        {"objective": "triplet", "n_negatives": 1},
    ],
)
def test_every_way_of_training_resumes_bit_equal(
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    settings = {**settings, **changes}
    whole = finetune(settings)
    stopped = {**settings, "output_dir": str(tmp_path / "stopped"), "save_total_limit": 1}
    original = RetrieverTrainer.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 7:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(RetrieverTrainer, "training_step", training_step)
        with pytest.raises(KeyboardInterrupt):
            finetune(stopped)
    assert not (tmp_path / "stopped" / "model").exists()
    (checkpoint,) = (tmp_path / "stopped").glob("checkpoint-*")
    assert checkpoint.name == "checkpoint-6"
    assert not (checkpoint / "README.md").exists()  # the library's card shows examples of the data
    resumed = finetune(stopped)
    logs = [json.loads((run.parent / "log.json").read_text()) for run in (whole, resumed)]
    losses = [[(e["step"], e["loss"], e["grad_norm"]) for e in log if "loss" in e] for log in logs]
    assert len(losses[0]) == 12
    assert losses[0] == losses[1]
    weights = [load_file(run / "model.safetensors") for run in (whole, resumed)]
    assert all(weights[1][name].equal(tensor) for name, tensor in weights[0].items())
    shutil.rmtree(resumed)  # as if killed between the last checkpoint and the export
    again = load_file(finetune(stopped) / "model.safetensors")
    assert all(again[name].equal(tensor) for name, tensor in weights[0].items())


SCRIPT = """
import json, sys
from modeling_condenser.finetuning.finetune import finetune
finetune(json.loads(sys.argv[1]))
"""


@pytest.mark.slow
def test_two_devices_take_the_step_of_one_with_the_whole_batch(
    encoder: Path,
    write_jsonl: Callable[..., Path],
    texts: list[str],
    tmp_path: Path,
) -> None:
    rows = [{"query": texts[i][:30], "positive": texts[i + 30]} for i in range(24)]
    settings = {
        "encoder": str(encoder),
        "data": str(write_jsonl(rows)),
        "format": "pairs",
        "optim": "sgd",
        "learning_rate": 0.01,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "max_steps": 3,
        "dataloader_drop_last": True,
        "use_cpu": True,
        "disable_tqdm": True,
        "output_dir": str(tmp_path / "one"),
    }
    one = finetune({**settings, "per_device_train_batch_size": 8})
    two = {
        **settings,
        "mini_batch_size": 2,
        "per_device_train_batch_size": 4,
        "gather_across_devices": True,
        "ddp_backend": "gloo",
        "output_dir": str(tmp_path / "two"),
    }
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    process = subprocess.run(
        [*launch, str(script), json.dumps(two)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())},
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    start, first, second = (
        load_file(folder / "model.safetensors") for folder in (encoder, one, tmp_path / "two/model")
    )
    moved = max((first[name] - start[name]).abs().max().item() for name in first)
    assert moved > 1e-3
    for name, weights in first.items():
        assert (second[name] - weights).abs().max().item() < 1e-5, name
    assert json.loads((tmp_path / "two" / "run.json").read_text())["steps"] == 3
