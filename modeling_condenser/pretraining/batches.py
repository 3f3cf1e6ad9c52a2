"""Batches of shuffled blocks within a token budget, all of one shape."""

import math
from collections.abc import Iterator, Mapping
from itertools import chain, count, islice

import numpy as np
from torch.utils.data import BatchSampler

from modeling_condenser.losses import ROW_MULTIPLE
from modeling_condenser.packing import PACK_MULTIPLE, BatchShape


class TokenBudgetBatches(BatchSampler):
    """Batches of shuffled blocks, each with as many as fit the budget of one device.

    Order and batches depend on the seed and the epoch only: all processes make the same ones and
    take turns (accelerate's `BatchSamplerShard`). Each epoch has as many batches as the first one,
    rounded up to a multiple of the processes, because the Trainer resumes by counting them. Further
    batches are omitted; missing ones come from a second order of all blocks.

    A batch has at most as many blocks as the fullest one of the first order, so that packed batches
    can be filled to one shape, for which torch.compile compiles once.

    `lengths` are the tokens of each block, (N,), with special ones.
    """

    # Read by accelerate: batches have no fixed size, and none is dropped.
    batch_size, drop_last = None, False  # type: ignore[assignment]
    epoch = 0

    def __init__(
        self, lengths: np.ndarray, tokens_per_batch: int, *, seed: int, n_processes: int = 1
    ):
        if tokens_per_batch < lengths.max():
            raise ValueError(
                f"tokens_per_batch is {tokens_per_batch}, but a block has {lengths.max()} tokens: "
                "set it to max_length or more, best to several thousand."
            )
        self.lengths, self.tokens_per_batch, self.seed = lengths, tokens_per_batch, seed
        self._most_blocks = len(lengths)
        sizes = [len(batch) for batch in self._fill(epoch=0, turn=0)]
        self._most_blocks = max(sizes)
        self._n_batches = -(-len(sizes) // n_processes) * n_processes

    def shape(self, masked_shares: Mapping[str, float]) -> BatchShape:
        """The shape of all packed batches (`make_shape`)."""
        longest = int(self.lengths.max())
        return make_shape(self.tokens_per_batch, self._most_blocks, longest, masked_shares)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self._n_batches

    def __iter__(self) -> Iterator[list[int]]:
        turns = (self._fill(epoch=self.epoch, turn=turn) for turn in count())
        return islice(chain.from_iterable(turns), self._n_batches)

    def _fill(self, *, epoch: int, turn: int) -> Iterator[list[int]]:
        """All blocks once, in batches."""
        order = np.random.default_rng([self.seed, epoch, turn]).permutation(len(self.lengths))
        ends = np.cumsum(self.lengths[order])
        first, filled = 0, 0
        while first < len(order):
            last = int(np.searchsorted(ends, filled + self.tokens_per_batch, side="right"))
            last = min(last, first + self._most_blocks)
            yield order[first:last].tolist()
            first, filled = last, int(ends[last - 1])


def make_shape(
    tokens_per_batch: int, most_blocks: int, longest: int, masked_shares: Mapping[str, float]
) -> BatchShape:
    """A shape that fits packed batches of up to so many tokens and blocks.

    `longest` is the most tokens of a block; `masked_shares` are columns of labels, and the share of
    tokens that have one at most.
    """
    n_tokens = _round_up(tokens_per_batch + 1, PACK_MULTIPLE)
    n_blocks = most_blocks + -(-n_tokens // longest) + 1  # with those of the filler
    n_rows = {}
    for name, share in masked_shares.items():
        # CLS and labels, whose number is rounded in each block.
        most = math.ceil(share * n_tokens + most_blocks / 2) + n_blocks
        n_rows[name] = min(_round_up(most, ROW_MULTIPLE), n_tokens // ROW_MULTIPLE * ROW_MULTIPLE)
    return BatchShape(n_tokens, n_blocks, longest, n_rows)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
