"""Batches, and training that resumes: token lengths, no duplicates, the same result bit for bit."""

from typing import Any

import pytest
import torch
import yaml
from datasets import Dataset
from safetensors.torch import load_file

from modeling_condenser.finetuning.finetune import LengthCollator, RetrieverTrainer, sample_batches
from modeling_condenser.finetuning.recipe import FinetuningRecipe
from modeling_condenser.hub.contract import EncodingContract
from tests.pretraining.short_runs import column
from tests.pretraining.test_distributed import TORCHRUN, launch

LONG = "the river is near the old market and the engine is near the old museum " * 4


def test_each_column_is_cut_where_encoding_cuts_it(wordpiece_tokenizer):
    rows = [
        {"query": LONG, "positive": LONG, "negative_1": "Why?", "label": [1.0, 0.5]},
        {"query": "Why?", "positive": LONG, "negative_1": LONG, "label": [2.0, 0.0]},
    ]
    batch = LengthCollator(wordpiece_tokenizer, EncodingContract(8, 21, token_type_ids=True))(rows)
    columns = ["query", "positive", "negative_1"]
    parts = {name.partition("_input_ids")[0]: None for name in batch if "input_ids" in name}
    assert list(parts) == columns  # losses read the columns in their order
    lengths = [batch[f"{column}_attention_mask"].sum(1).tolist() for column in columns]
    assert lengths == [[8, 4], [21, 21], [4, 21]]
    expected = wordpiece_tokenizer(LONG, truncation=True, max_length=8)["input_ids"]
    assert batch["query_input_ids"][0].tolist() == expected
    assert batch["label"].tolist() == [[1.0, 0.5], [2.0, 0.0]]
    assert batch["positive_token_type_ids"].shape == (2, 21)


EXAMPLES = Dataset.from_dict(
    {
        "query": [f"q{i}" for i in range(200)],
        # Each text is in several rows, now as a query's positive, now as a negative.
        "positive": [f"text {i % 70}" for i in range(200)],
        "negative_1": [f"text {(3 * i + 5) % 70}" for i in range(200)],
    }
)


def batches(format: Any, *, seed: int = 3, epoch: int = 0, **changes: Any) -> list[list[int]]:
    recipe = FinetuningRecipe("e", data="d", format=format, **changes)
    options = {"batch_size": 5, "drop_last": True, "generator": torch.Generator()}
    # sentence-transformers 6.0 passes the seed 0.
    sampler = sample_batches(recipe, seed, EXAMPLES, **options, seed=0)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_objective_order_seed_and_epoch_decide_the_batches():
    found = batches("pairs")
    assert len(found) > 30
    for batch in found:  # of contrast, which contains no text twice
        rows = EXAMPLES[batch]
        pairs = zip(rows["positive"], rows["negative_1"], strict=True)
        texts = [text for pair in pairs for text in set(pair)]
        assert len(batch) == 5 and len(texts) == len(set(texts))
    assert found == batches("pairs")
    assert batches("pairs", seed=4) != found != batches("pairs", epoch=1)
    in_order, shuffled = (
        [row for batch in batches("triples", objective="triplet", order=order) for row in batch]
        for order in ("sequential", "shuffled")
    )
    assert in_order == list(range(200)) == sorted(shuffled) != shuffled


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"dataloader_num_workers": 2},
        {"mini_batch_size": 3},
        {"objective": "triplet", "n_negatives": 1},
    ],
)
def test_every_way_of_training_resumes_bit_equal(train, write_jsonl, texts, monkeypatch, changes):
    """With dropout, and negatives that are drawn anew in each of 2 epochs of 3 steps."""
    rows = [
        {"query": texts[i][:40], "positive": texts[i], "negatives": texts[i + 60 : i + 70]}
        for i in range(12)
    ]
    settings = {"data": str(write_jsonl(rows)), "format": "negatives", "n_negatives": 2}
    settings |= {"query_max_length": 8, "passage_max_length": 16, "learning_rate": 1e-3}
    settings |= {"max_steps": -1, "num_train_epochs": 2, "logging_steps": 1}
    settings |= {"save_steps": 2, "save_total_limit": 1, **changes}
    whole = train("whole", **settings)
    original = RetrieverTrainer.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 5:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(RetrieverTrainer, "training_step", training_step)
        with pytest.raises(KeyboardInterrupt):
            train("stopped", **settings)
    stopped = whole.parents[1] / "stopped"
    assert not (stopped / "model").exists()
    (checkpoint,) = stopped.glob("checkpoint-*")
    assert checkpoint.name == "checkpoint-4"
    assert not (checkpoint / "README.md").exists()  # the library's card shows examples of the data
    resumed = train("stopped", **settings)
    first, second = (column(run.parent, "step", "loss", "grad_norm") for run in (whole, resumed))
    assert first == second and len(first) == 6
    weights = (whole / "model.safetensors").read_bytes()
    assert (resumed / "model.safetensors").read_bytes() == weights


@pytest.mark.slow
def test_two_devices_take_the_step_of_one_with_the_whole_batch(
    encoder, train, write_jsonl, texts, tmp_path
):
    rows = [{"query": texts[i][:30], "positive": texts[i + 30]} for i in range(24)]
    settings = {"encoder": str(encoder), "data": str(write_jsonl(rows)), "format": "pairs"}
    settings |= {"optim": "sgd", "learning_rate": 0.01, "lr_scheduler_type": "constant"}
    settings |= {"max_grad_norm": 0.0, "max_steps": 3, "dataloader_drop_last": True}
    one = train("one", **settings, pooling="cls", per_device_train_batch_size=8)
    two = {**settings, "output_dir": str(tmp_path / "two"), "per_device_train_batch_size": 4}
    two |= {"mini_batch_size": 2, "gather_across_devices": True, "ddp_backend": "gloo"}
    two |= {"use_cpu": True, "disable_tqdm": True}
    recipe = tmp_path / "two.yaml"
    recipe.write_text(yaml.safe_dump(two))
    launch(f"{TORCHRUN} --nproc-per-node 2 -m hub_scripts.main finetune {recipe}")
    start, first, second = (
        load_file(folder / "model.safetensors") for folder in (encoder, one, tmp_path / "two/model")
    )
    assert max((first[name] - start[name]).abs().max().item() for name in first) > 1e-3
    for name, weights in first.items():
        assert (second[name] - weights).abs().max().item() < 1e-5, name
