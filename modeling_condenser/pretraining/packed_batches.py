"""Packed batches: one row of all blocks, end to end, without padding between them.

The fields are named as transformers names them for flash attention (`FlashAttentionKwargs`):
`cu_seq_lens_q` and `cu_seq_lens_k` say where blocks begin and end. The row's length is rounded up,
because kernels are built anew for every shape: the filler is one more block at the end, of padding
tokens at position 0, without labels.
"""

from collections.abc import Iterator, Mapping, Sequence
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
    """Put the blocks of a padded batch end to end.

    Args:
        batch: `attention_mask` (bool or int64) and columns such as `input_ids` and `labels`, each
            (B, T); padding stands at the right.
        pad_token_id: what the filler's tokens are.

    Returns:
        The columns and `position_ids`, each (1, N) int64, positions counted from 0 in each
        block of text; `cu_seq_lens_q` and `cu_seq_lens_k`, the same (B + 1,) int32, or (B + 2,)
        with a filler: where each block begins, then N; `max_length_q` and `max_length_k`, the
        longest block's length as an int. N is a multiple of `PACK_MULTIPLE`.
    """
    is_token = batch["attention_mask"].numpy().astype(bool, copy=False)
    columns = {
        name: (values.numpy()[is_token], _fill(name, pad_token_id))
        for name, values in batch.items()
        if name != "attention_mask"
    }
    return lay_end_to_end(is_token.sum(axis=1), columns)


def _fill(name: str, pad_token_id: int) -> int:
    """What stands in a column where there is no token of text."""
    return pad_token_id if name.endswith("input_ids") else IGNORE_INDEX


def lay_end_to_end(
    lengths: np.ndarray, columns: Mapping[str, tuple[np.ndarray, int]]
) -> dict[str, Any]:
    """Make a packed batch of blocks that lie one behind the other.

    Args:
        lengths: tokens of each block, (B,) whole numbers above 0.
        columns: by name, a whole number a token, (tokens,), and what the filler is made of.

    Returns:
        The columns and `position_ids`, each (1, N) int64; the other fields as `pack` has them.
    """
    # numpy is faster than torch at so little.
    n_tokens = int(lengths.sum())
    n_filler = -n_tokens % PACK_MULTIPLE
    starts = np.zeros(len(lengths) + 1 + (n_filler > 0), dtype=np.int32)
    np.cumsum(lengths, out=starts[1 : len(lengths) + 1])
    starts[-1] = n_tokens + n_filler
    positions = np.arange(n_tokens) - starts[: len(lengths)].repeat(lengths)
    batch = {}
    for name, (values, fill) in {**columns, "position_ids": (positions, 0)}.items():
        row = np.empty((1, n_tokens + n_filler), dtype=np.int64)
        row[0, :n_tokens] = values
        row[0, n_tokens:] = fill
        batch[name] = torch.from_numpy(row)
    return batch | _boundaries(torch.from_numpy(starts), max(int(lengths.max()), n_filler))


def _boundaries(starts: torch.Tensor, longest: int) -> dict[str, Any]:
    lengths = {"max_length_q": longest, "max_length_k": longest}
    return {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, **lengths}


def unpack(
    packed: Mapping[str, Any], *, pad_token_id: int, room: int | None = None
) -> dict[str, torch.Tensor]:
    """Pad the blocks of a packed batch.

    Args:
        packed: as `pack` makes it, on any device.
        pad_token_id: what padding is made of.
        room: only the first blocks, as many as fit into so many places, B * T; all by default.

    Returns:
        `attention_mask` and the columns that were packed, each (B, T) int64, T the longest block's
        length.
    """
    lengths = block_lengths(packed)
    longest = int(lengths.max())
    if room is not None:
        lengths = lengths[: room // longest]
    n_tokens = int(lengths.sum())
    position = torch.arange(longest, device=lengths.device)
    is_token = position < lengths[:, None]  # (B, T)
    padded = {"attention_mask": is_token.long()}
    for name in _columns(packed):
        values = packed[name][0]
        padded[name] = values.new_full(is_token.shape, _fill(name, pad_token_id))
        padded[name][is_token] = values[:n_tokens]
    return padded


def _columns(packed: Mapping[str, Any]) -> list[str]:
    """The fields with a value a token, except the positions."""
    return [name for name in packed if name.endswith(("input_ids", "labels", "targets"))]


def take_blocks(
    packed: Mapping[str, Any], blocks: torch.Tensor, *, pad_token_id: int
) -> dict[str, Any]:
    """Some blocks of a packed batch, as a packed batch on the same device.

    Args:
        packed: as `pack` makes it.
        blocks: (C,) int64 which, in their new order.
        pad_token_id: what the filler is made of.
    """
    boundaries = packed["cu_seq_lens_q"].long()
    lengths = boundaries.diff()[blocks]
    n_tokens, longest = torch.stack([lengths.sum(), lengths.max()]).tolist()
    n_filler = -n_tokens % PACK_MULTIPLE
    starts = F.pad(lengths.cumsum(0), (1, 0))
    shifts = (boundaries[blocks] - starts[:-1]).repeat_interleave(lengths, output_size=n_tokens)
    columns = torch.arange(n_tokens, device=shifts.device) + shifts
    fill = {name: _fill(name, pad_token_id) for name in _columns(packed)} | {"position_ids": 0}
    if n_filler:
        starts = F.pad(starts, (0, 1), value=n_tokens + n_filler)
    rows = {
        name: F.pad(packed[name][:, columns], (0, n_filler), value=value)
        for name, value in fill.items()
    }
    return rows | _boundaries(starts.int(), max(longest, n_filler))


def block_lengths(packed: Mapping[str, Any]) -> torch.Tensor:
    """(B,) int64 tokens of each block of text, on the batch's device."""
    lengths = packed["cu_seq_lens_q"].long().diff()
    return lengths[:-1] if _has_filler(packed) else lengths


def count_tokens(batch: Mapping[str, Any]) -> torch.Tensor:
    """Tokens of text in a batch, packed or padded, with special ones: a scalar on its device."""
    if not is_packed(batch):
        return batch["attention_mask"].sum()
    boundaries = batch["cu_seq_lens_q"].long()
    return torch.where(_has_filler(batch), boundaries[-2], boundaries[-1])


def count_bags(batch: Mapping[str, Any]) -> torch.Tensor:
    """Blocks with `bow_targets` in a batch, packed or padded: a scalar on its device."""
    is_word = batch["bow_targets"] != IGNORE_INDEX
    if not is_packed(batch):
        return is_word.any(dim=1).sum()
    columns = is_word[0].nonzero().squeeze(1)
    blocks = torch.searchsorted(batch["cu_seq_lens_q"][1:].long(), columns, right=True)
    return (blocks.diff() != 0).sum() + bool(len(blocks))


def _has_filler(packed: Mapping[str, Any]) -> torch.Tensor:
    """Whether the last block is filler: a block of text begins with CLS, as the first one does."""
    ids = packed["input_ids"][0]
    return ids.index_select(0, packed["cu_seq_lens_q"][-2:-1].long())[0] != ids[0]


class TokenBudgetBatches(BatchSampler):
    """Shuffled blocks, filled greedily into batches until the next block would exceed the budget.

    Order and batches depend on the seed and the epoch only: all processes make the same ones and
    take turns (accelerate's `BatchSamplerShard`). Each epoch has as many batches as the first one,
    rounded up to a multiple of the processes, because the Trainer resumes by counting them. What an
    epoch has beyond that is left out; what it lacks comes from a second order of all blocks.

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
