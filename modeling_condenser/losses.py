"""Losses of masked tokens and of bags of words, eqs. (9)-(11).

Travels to the Hub with `modeling_condenser.py`. B blocks in a batch, T tokens in a block, H hidden
size, V vocabulary size, M masked tokens in the batch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

IGNORE_INDEX = -100
ROW_MULTIPLE = 64  # numbers of selected rows are rounded up to this, so that kernels see few shapes


@dataclass(frozen=True)
class MaskedTokens:
    """The masked tokens of a batch.

    Attributes:
        index: (M,) int64 positions in the flattened (B * T) batch.
        targets: (M,) int64 original tokens, or -100 for none.
        n_items: number of masked tokens that the loss is averaged over.
        scale: `n_items` divided by the number of masked tokens in this call.
    """

    index: torch.Tensor
    targets: torch.Tensor
    n_items: Any
    scale: Any

    @classmethod
    def find(
        cls, labels: torch.Tensor, index: torch.Tensor | None, n_items: Any, *, scale: Any = 1
    ) -> "MaskedTokens":
        """Find the tokens that have a label.

        Args:
            labels: (B, T), -100 where nothing is masked.
            index: (M,) where all labels stand, if that is known; it may name further positions.
            n_items: masked tokens of the step; by default those of this call, times `scale`.
            scale: for the default of `n_items`.
        """
        is_masked = (labels != IGNORE_INDEX).flatten()
        if index is None:
            index = is_masked.nonzero().squeeze(1)
        n_here = is_masked.sum()
        n_items = _at_least_one(n_here * scale if n_items is None else n_items, labels.device)
        return cls(index, labels.flatten()[index], n_items, n_items / n_here.clamp(min=1))

    def take(self, output: torch.Tensor, rows: Any = None) -> torch.Tensor:
        """The rows of the masked tokens, (M, H), of an output (B, T, H).

        `rows` are those of a packed batch that were computed, if not all.
        """
        index = self.index if rows is None else torch.searchsorted(rows.positions, self.index)
        return output.flatten(0, 1).index_select(0, index)


def _at_least_one(n: Any, device: torch.device) -> Any:
    return n.to(device).clamp(min=1) if isinstance(n, torch.Tensor) else max(n, 1)


def mlm_losses(
    lm_head: nn.Module, predictions: dict[str, tuple[MaskedTokens, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Masked-LM losses by name, of the rows of masked tokens, (M, H).

    They are projected to the vocabulary in one call.
    """
    hidden = torch.cat([rows for _, rows in predictions.values()])
    targets = torch.cat([masked.targets for masked, _ in predictions.values()])
    padding = -len(targets) % ROW_MULTIPLE
    losses = F.cross_entropy(
        widen(lm_head(F.pad(hidden, (0, 0, 0, padding)))),
        F.pad(targets, (0, padding), value=IGNORE_INDEX),
        reduction="none",
        ignore_index=IGNORE_INDEX,
    )
    losses_by_name, first = {}, 0
    for name, (masked, rows) in predictions.items():
        losses_by_name[name] = losses[first : first + len(rows)].sum() / masked.n_items
        first += len(rows)
    return losses_by_name


def bag_of_words_loss(
    lm_head: nn.Module,
    cls_late: torch.Tensor,
    targets: torch.Tensor,
    starts: torch.Tensor | None,
    n_bags: Any,
    masked: MaskedTokens,
) -> torch.Tensor:
    """Mean over blocks of logsumexp(z) - mean of z_t over the block's bag, with z = LM head(cls).

    This is the cross-entropy of z with the uniform distribution over the bag.

    Args:
        lm_head: maps (B, H) to (B, V).
        cls_late: (B, H) dense vectors of the blocks.
        targets: (B, T) the tokens of each bag, otherwise -100; (1, N) if packed.
        starts: (B + 1,) where the blocks of a packed batch begin.
        n_bags: blocks with a bag in the step; by default those of this call, times `masked.scale`.
        masked: the masked tokens of this call.
    """
    n_blocks = len(cls_late)
    if starts is None:
        starts = torch.arange(n_blocks + 1, device=targets.device) * targets.shape[1]
    hidden = F.pad(cls_late, (0, 0, 0, -n_blocks % ROW_MULTIPLE))
    logits = widen(lm_head(hidden)[:n_blocks])  # (B, V)
    tokens, block = targets.flatten(), block_of_rows(starts, targets.numel())
    is_in_bag = tokens != IGNORE_INDEX
    scores = logits[block, tokens.where(is_in_bag, 0)].where(is_in_bag, 0)
    sums = logits.new_zeros(n_blocks).index_add(0, block, scores)
    sizes = bag_sizes(targets, starts)
    losses = (logits.logsumexp(dim=1) - sums / sizes.clamp(min=1)).where(sizes > 0, 0)
    if n_bags is None:
        n_bags = (sizes > 0).sum() * masked.scale
    return losses.sum() / _at_least_one(n_bags, logits.device)


def bag_sizes(targets: torch.Tensor, starts: torch.Tensor | None = None) -> torch.Tensor:
    """(B,) the number of tokens in each bag, of `targets` as for `bag_of_words_loss`."""
    is_in_bag = (targets != IGNORE_INDEX).long()
    if starts is None:
        return is_in_bag.sum(dim=1)
    sizes = is_in_bag.new_zeros(len(starts) - 1)
    return sizes.index_add(0, block_of_rows(starts, targets.numel()), is_in_bag.flatten())


def block_of_rows(starts: torch.Tensor, n_rows: int) -> torch.Tensor:
    """(N,) the block of each row, given where the blocks begin and the last ends, (B + 1,)."""
    blocks = torch.arange(len(starts) - 1, device=starts.device)
    return blocks.repeat_interleave(starts.diff(), output_size=n_rows)


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in float32, or in their own precision if it is higher."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
