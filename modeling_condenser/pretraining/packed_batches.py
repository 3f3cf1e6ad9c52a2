"""Packed batches, one row of all blocks without padding, and batches within a token budget.

A packed batch of B blocks has the fields of transformers' `FlashAttentionKwargs`:

- columns such as `input_ids` and `labels`, and `position_ids`, counted from 0 in each block: (1, N)
  int64;
- `cu_seq_lens_q` and `cu_seq_lens_k`, the same (B + 1,) int32: where each block begins, then N;
- `max_length_q` and `max_length_k`, the longest block's length, an int.

N is rounded up to a multiple of `PACK_MULTIPLE`, because kernels are built anew for every shape.
The filler is one more block at the end, of padding tokens at position 0, without labels.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, islice
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import BatchSampler

from .masking import IGNORE_INDEX

PACK_MULTIPLE = 64


def is_packed(batch: Mapping[str, Any]) -> bool:
    return "cu_seq_lens_q" in batch


def pack(batch: Mapping[str, torch.Tensor], *, pad_token_id: int) -> dict[str, Any]:
    """Pack the blocks of a padded batch: (B, T) columns and `attention_mask`, padded right."""
    is_token = batch["attention_mask"].bool()
    columns = {
        name: (values[is_token], _fill(name, pad_token_id))
        for name, values in batch.items()
        if name != "attention_mask"
    }
    return lay_end_to_end(is_token.sum(dim=1), columns)


def _fill(name: str, pad_token_id: int) -> int:
    """The value of a column where there is no token of text."""
    return pad_token_id if name.endswith("input_ids") else IGNORE_INDEX


def lay_end_to_end(lengths: Any, columns: Mapping[str, tuple[Any, int]]) -> dict[str, Any]:
    """Make a packed batch of blocks that already lie end to end.

    Args:
        lengths: tokens of each block, (B,) whole numbers above 0, an array or a tensor.
        columns: name -> a whole number for each token, (tokens,), and that of the filler.
    """
    lengths = torch.as_tensor(lengths).long()
    n_tokens, longest = torch.stack([lengths.sum(), lengths.max()]).tolist()
    n_filler = -n_tokens % PACK_MULTIPLE
    starts = F.pad(lengths.cumsum(0), (1, 0))
    before = starts[:-1].repeat_interleave(lengths, output_size=n_tokens)
    positions = torch.arange(n_tokens, device=lengths.device) - before
    if n_filler:
        starts = F.pad(starts, (0, 1), value=n_tokens + n_filler)
    batch: dict[str, Any] = {
        name: F.pad(torch.as_tensor(values).long(), (0, n_filler), value=fill)[None]
        for name, (values, fill) in {**columns, "position_ids": (positions, 0)}.items()
    }
    for side in "qk":
        batch[f"cu_seq_lens_{side}"] = starts.int()
        batch[f"max_length_{side}"] = max(longest, n_filler)
    return batch


def unpack(
    packed: Mapping[str, Any], *, pad_token_id: int, room: int | None = None
) -> dict[str, torch.Tensor]:
    """Pad the blocks of a packed batch; with `room`, the first ones that fit B * T places."""
    ids, starts = packed["input_ids"][0], packed["cu_seq_lens_q"].long()
    lengths = starts.diff()
    if ids[starts[-2]] != ids[0]:  # filler: a block of text begins with CLS, as the first one does
        lengths = lengths[:-1]
    longest = int(lengths.max())
    if room is not None:
        lengths = lengths[: room // longest]
    n_tokens = int(lengths.sum())
    is_token = torch.arange(longest, device=lengths.device) < lengths[:, None]  # (B, T)
    padded = {"attention_mask": is_token.long()}
    for name in packed:
        if name.endswith(("input_ids", "labels", "targets")):
            padded[name] = ids.new_full(is_token.shape, _fill(name, pad_token_id))
            padded[name][is_token] = packed[name][0, :n_tokens]
    return padded


def count_bags(batch: Mapping[str, Any]) -> torch.Tensor:
    """Blocks with `bow_targets` in a batch, packed or padded: a scalar on its device."""
    is_word = batch["bow_targets"] != IGNORE_INDEX
    if not is_packed(batch):
        return is_word.any(dim=1).sum()
    words_before = F.pad(is_word[0].cumsum(0), (1, 0))[batch["cu_seq_lens_q"].long()]  # (B + 1,)
    return (words_before.diff() > 0).sum()


class TokenBudgetBatches(BatchSampler):
    """Batches of shuffled blocks, each of as many as fit the budget of one device.

    Order and batches depend on the seed and the epoch only: all processes make the same ones and
    take turns (accelerate's `BatchSamplerShard`). Each epoch has as many batches as the first one,
    rounded up to a multiple of the processes, because the Trainer resumes by counting them. Batches
    beyond that are left out; missing ones come from a second order of all blocks.

    Args:
        lengths: (N,) tokens of each block, with special ones.
        tokens_per_batch: the budget.
        seed: of the run.
        n_processes: number of processes that share the batches.

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
        if tokens_per_batch < self.lengths.max():
            raise ValueError(
                f"tokens_per_batch is {tokens_per_batch}, but a block has {self.lengths.max()} "
                "tokens: set it to max_length or more; a device is used well from thousands on."
            )
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.epoch = 0
        # What accelerate asks of a batch sampler: no fixed size, no batch left out.
        self.batch_size = None  # type: ignore[assignment]
        self.drop_last = False
        n_batches = sum(1 for _ in self._fill(epoch=0, turn=0))
        self._n_batches = -(-n_batches // n_processes) * n_processes

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self._n_batches

    def __iter__(self) -> Iterator[list[int]]:
        turns = (self._fill(epoch=self.epoch, turn=turn) for turn in count())
        for batch in islice(chain.from_iterable(turns), self._n_batches):
            yield batch.tolist()

    def _fill(self, *, epoch: int, turn: int) -> Iterator[np.ndarray]:
        """All blocks once, in batches."""
        order = np.random.default_rng([self.seed, epoch, turn]).permutation(len(self.lengths))
        ends = np.cumsum(self.lengths[order])
        first, filled = 0, 0
        while first < len(order):
            last = int(np.searchsorted(ends, filled + self.tokens_per_batch, side="right"))
            yield order[first:last]
            first, filled = last, int(ends[last - 1])
