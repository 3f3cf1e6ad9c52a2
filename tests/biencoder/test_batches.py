"""No batch of in-batch contrast contains a text twice, on one device or on several."""

from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler
from sentence_transformers.sentence_transformer.training_args import BatchSamplers

from modeling_condenser.biencoder.recipe import FinetuningRecipe
from modeling_condenser.biencoder.trainer import (
    DistinctBatches,
    choose_batch_sampler,
    sequential_batches,
)

# Each text is in several rows, now as a query's positive, now as a negative.
EXAMPLES = Dataset.from_dict(
    {
        "query": [f"q{i}" for i in range(200)],
        "positive": [f"text {i % 70}" for i in range(200)],
        "negative_1": [f"text {(3 * i + 5) % 70}" for i in range(200)],
    }
)


def sampler(n_devices: int, batch_size: int = 5) -> DistinctBatches:
    return DistinctBatches(
        EXAMPLES,
        n_devices=n_devices,
        batch_size=batch_size,
        drop_last=True,
        valid_label_columns=["label"],
        generator=torch.Generator(),
        seed=3,
    )


def texts(rows: list[int]) -> list[str]:
    found = EXAMPLES[rows]
    pairs = zip(found["positive"], found["negative_1"], strict=True)
    return [*found["query"], *(text for pair in pairs for text in dict.fromkeys(pair))]


def test_the_batches_of_one_step_contain_no_text_twice() -> None:
    n_devices = 4
    shards = [
        list(
            BatchSamplerShard(
                sampler(n_devices), num_processes=n_devices, process_index=i, even_batches=False
            )
        )
        for i in range(n_devices)
    ]
    assert len({len(shard) for shard in shards}) == 1 and len(shards[0]) > 3
    for step in zip(*shards, strict=True):
        assert [len(batch) for batch in step] == [5] * n_devices
        together = texts([row for batch in step for row in batch])
        assert len(together) == len(set(together))
    assert len(sampler(n_devices)) == n_devices * (200 // (5 * n_devices))
    later = sampler(n_devices)
    later.set_epoch(1)
    assert list(later) != list(sampler(n_devices))


def test_the_librarys_own_sampler_would_let_devices_share_a_text() -> None:
    """The reason for `DistinctBatches`: if this fails, remove it."""
    plain = NoDuplicatesBatchSampler(
        EXAMPLES, batch_size=5, drop_last=True, generator=torch.Generator(), seed=3
    )
    shards = [
        list(BatchSamplerShard(plain, num_processes=2, process_index=i, even_batches=False))
        for i in range(2)
    ]
    shared = [set(texts(a)) & set(texts(b)) for a, b in zip(*shards, strict=True)]
    assert any(shared)


def test_sequential_batches_keep_the_datas_order() -> None:
    batches = list(sequential_batches(EXAMPLES, batch_size=60, drop_last=False))
    assert [row for batch in batches for row in batch] == list(range(200))


def recipe(**settings: Any) -> FinetuningRecipe:
    return FinetuningRecipe("e", **{"data": "d", "format": "pairs", **settings})


BATCHES: dict[str, Any] = {"batch_size": 5, "drop_last": True, "generator": torch.Generator()}
TRIPLETS = {"objective": "triplet", "format": "triples"}


def choose(made: FinetuningRecipe, asked: Any = None, n_devices: int = 1, seed: int = 3) -> Any:
    return choose_batch_sampler(made, asked, seed=seed, n_devices=n_devices)


def test_the_objective_chooses_the_sampler() -> None:
    for asked in (None, BatchSamplers.NO_DUPLICATES):
        made = choose(recipe(), asked, n_devices=4)(EXAMPLES, **BATCHES)
        assert (type(made), made.n_devices) == (DistinctBatches, 1)
    assert (
        choose(recipe(gather_across_devices=True), n_devices=4)(EXAMPLES, **BATCHES).n_devices == 4
    )
    assert choose(recipe(**TRIPLETS)) is BatchSamplers.BATCH_SAMPLER
    assert choose(recipe(**TRIPLETS), BatchSamplers.NO_DUPLICATES) is BatchSamplers.NO_DUPLICATES
    assert choose(recipe(**TRIPLETS, order="sequential")) is sequential_batches
    with pytest.raises(ValueError, match="batch_sampler is 'batch_sampler', but objective contr"):
        choose(recipe(), BatchSamplers.BATCH_SAMPLER)
    with pytest.raises(ValueError, match="batch_sampler contradicts order: sequential"):
        choose(recipe(**TRIPLETS, order="sequential"), BatchSamplers.NO_DUPLICATES)


def test_seed_and_epoch_decide_the_order() -> None:
    def batches(seed: int, epoch: int) -> list[list[int]]:
        # The library's own seed is not the run's in each of its versions.
        made = choose(recipe(), seed=seed)(EXAMPLES, **BATCHES, seed=0)
        made.set_epoch(epoch)
        return list(made)

    assert batches(1, 0) == batches(1, 0)
    assert batches(1, 0) != batches(2, 0)
    assert batches(1, 0) != batches(1, 1)
