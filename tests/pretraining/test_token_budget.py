"""Batches within a budget of tokens: what they hold, and that all processes agree on them."""

from itertools import pairwise

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset

from modeling_condenser.pretraining.recipe import PretrainingRecipe
from modeling_condenser.pretraining.token_budget import TokenBudgetBatches, count_block_tokens

LENGTHS = np.random.default_rng(0).integers(3, 65, size=1000)


def epoch_of(batches: TokenBudgetBatches, epoch: int) -> list[list[int]]:
    batches.set_epoch(epoch)
    return list(batches)


def test_an_epoch_holds_each_block_once_in_batches_within_the_budget() -> None:
    batches = TokenBudgetBatches(LENGTHS, 256, seed=1)
    epoch = epoch_of(batches, 0)
    assert len(epoch) == len(batches)
    assert sorted(i for batch in epoch for i in batch) == list(range(1000))
    tokens = [LENGTHS[batch].sum() for batch in epoch]
    assert max(tokens) <= 256


def test_a_batch_ends_only_where_the_next_block_would_exceed_the_budget() -> None:
    epoch = epoch_of(TokenBudgetBatches(LENGTHS, 256, seed=1), 0)
    for batch, following in pairwise(epoch):
        assert LENGTHS[batch].sum() + LENGTHS[following[0]] > 256


def test_blocks_of_one_length_make_batches_of_one_size() -> None:
    batches = TokenBudgetBatches([10] * 35, 49, seed=0)
    assert [len(batch) for batch in batches] == [4] * 8 + [3]


def test_a_block_as_long_as_the_budget_is_a_batch() -> None:
    batches = TokenBudgetBatches([8, 8, 8], 8, seed=0)
    assert sorted(batches) == [[0], [1], [2]]


def test_order_and_batches_follow_from_seed_and_epoch_alone() -> None:
    one, other = (TokenBudgetBatches(LENGTHS, 256, seed=1) for _ in range(2))
    later = epoch_of(one, 3)
    assert epoch_of(other, 0) != later
    assert epoch_of(other, 3) == later
    assert epoch_of(TokenBudgetBatches(LENGTHS, 256, seed=2), 3) != later


def test_each_epoch_has_as_many_batches_and_nearly_all_blocks() -> None:
    batches = TokenBudgetBatches(LENGTHS, 256, seed=1)
    n_seen = []
    for epoch in range(20):
        given = epoch_of(batches, epoch)
        assert len(given) == len(batches)
        assert max(LENGTHS[batch].sum() for batch in given) <= 256
        n_seen.append(len({i for batch in given for i in batch}))
    assert min(n_seen) > 970 and max(n_seen) == 1000


@pytest.mark.parametrize("n_processes", [2, 3, 7])
def test_processes_share_whole_batches_and_get_equally_many(n_processes: int) -> None:
    shares = []
    for rank in range(n_processes):
        batches = TokenBudgetBatches(LENGTHS, 256, seed=1, n_processes=n_processes)
        shares.append(list(BatchSamplerShard(batches, n_processes, rank)))
    assert len({len(share) for share in shares}) == 1
    together = [batch for turn in zip(*shares, strict=True) for batch in turn]
    assert together == list(TokenBudgetBatches(LENGTHS, 256, seed=1, n_processes=n_processes))
    alone = list(TokenBudgetBatches(LENGTHS, 256, seed=1))
    assert together[: len(alone)] == alone
    assert len(together) - len(alone) < n_processes


def test_more_processes_than_batches_get_one_each() -> None:
    batches = TokenBudgetBatches([5, 6], 100, seed=0, n_processes=4)
    assert [sorted(batch) for batch in batches] == [[0, 1]] * 4


def test_the_lengths_are_those_of_the_collator_s_blocks() -> None:
    rows = [[7] * n for n in (1, 30, 62, 63, 200)]
    blocks = Dataset.from_dict({"input_ids": rows})
    counted = count_block_tokens(blocks, n_special=2, max_length=64)
    assert counted.tolist() == [3, 32, 64, 64, 64]
    # As datasets stores blocks that were chosen or sorted.
    chosen = count_block_tokens(blocks.select([4, 0]), n_special=2, max_length=64)
    assert chosen.tolist() == [64, 3]


def test_a_budget_below_the_longest_block_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens_per_batch is 63, but a block may have 64 tokens"):
        TokenBudgetBatches([64], 63, seed=0)
    with pytest.raises(ValueError, match="tokens_per_batch is 100, but a block may have 128"):
        PretrainingRecipe("encoder", "text", max_length=128, tokens_per_batch=100)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"streaming": True, "tokens_per_batch": 4096}, "not for a streamed corpus"),
        ({"objective": "cocondenser", "tokens_per_batch": 4096}, "only for objective condenser"),
        ({"packed": True, "attn_implementation": "eager"}, "leave one of the two out"),
    ],
)
def test_a_recipe_that_combines_what_cannot_be_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PretrainingRecipe("encoder", "text", **changes)
