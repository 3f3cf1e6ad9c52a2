"""Batches of as many blocks as fit a number of tokens, instead of a fixed number of blocks.

Blocks differ in length, so batches of a fixed number of them differ in tokens, in time and in
memory, and the longest decides what fits. Without padding, tokens are what a batch costs; so they
are what is counted here, special ones included.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from torch.utils.data import BatchSampler

_ROWS_AT_ONCE = 50_000


class TokenBudgetBatches(BatchSampler):
    """Shuffled blocks, filled greedily into batches until the next block would exceed the budget.

    Order and batches follow from the seed and the epoch alone: all processes make the same ones,
    and share them out whole, in turn (accelerate's `BatchSamplerShard`). Each epoch has as many
    batches as the first one, rounded up to a multiple of the processes, because the Trainer takes
    the place where an interrupted run goes on from their number. What an epoch has beyond that, a
    batch or so, is left out of it; what it lacks comes from a second order of all blocks.

    Args:
        lengths: (N,) tokens of each block, with special ones.
        tokens_per_batch: the budget, of one device.
        seed: of the run.
        n_processes: that share the batches.

    Raises:
        ValueError: a block is longer than the budget.
    """

    def __init__(
        self,
        lengths: np.ndarray | Sequence[int],
        tokens_per_batch: int,
        *,
        seed: int,
        n_processes: int = 1,
    ):
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.epoch = 0
        # What the library asks a batch sampler for: batches of no certain size, none left out.
        self.batch_size = None  # type: ignore[assignment]
        self.drop_last = False
        check_budget(tokens_per_batch, int(self.lengths.max()))
        n_batches = sum(1 for _ in self._fill(epoch=0, turn=0))
        self._n_batches = -(-n_batches // n_processes) * n_processes

    def set_epoch(self, epoch: int) -> None:
        """Choose which epoch's batches are given from now on."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._n_batches

    def __iter__(self) -> Iterator[list[int]]:
        n_left, turn = self._n_batches, 0
        while n_left:
            for batch in self._fill(epoch=self.epoch, turn=turn):
                yield batch.tolist()
                n_left -= 1
                if n_left == 0:
                    break
            turn += 1

    def _fill(self, *, epoch: int, turn: int) -> Iterator[np.ndarray]:
        """All blocks once, in batches."""
        order = np.random.default_rng([self.seed, epoch, turn]).permutation(len(self.lengths))
        ends = np.cumsum(self.lengths[order])
        first, filled = 0, 0
        while first < len(order):
            last = int(np.searchsorted(ends, filled + self.tokens_per_batch, side="right"))
            yield order[first:last]
            first, filled = last, int(ends[last - 1])


def check_budget(tokens_per_batch: int, longest: int) -> None:
    """Check that every block fits a batch.

    Raises:
        ValueError: the longest does not.
    """
    if tokens_per_batch < longest:
        raise ValueError(
            f"tokens_per_batch is {tokens_per_batch}, but a block may have {longest} tokens: set "
            "it to at least max_length; a device is used well from some thousands on."
        )


def count_block_tokens(blocks: Dataset, *, n_special: int, max_length: int) -> np.ndarray:
    """Tokens of each block as it is trained on: with special tokens, and cut.

    Args:
        blocks: with a column `input_ids`, without special tokens.
        n_special: how many are added to each.
        max_length: of a block with them.

    Returns:
        (N,) int64.
    """
    columns = (
        batch["input_ids"] for batch in blocks.with_format("arrow").iter(batch_size=_ROWS_AT_ONCE)
    )
    parts = [pc.list_value_length(column).to_numpy() for column in columns]
    return np.minimum(np.concatenate(parts).astype(np.int64) + n_special, max_length)
