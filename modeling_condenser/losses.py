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
        index: (M,) int64 positions in the flattened (B * T) batch, padded to `ROW_MULTIPLE`.
        targets: (M,) int64 original tokens, -100 at the padding.
        n_items: number of masked tokens that the loss is averaged over.
        scale: `n_items` divided by the number of masked tokens in this call.
    """

    index: torch.Tensor
    targets: torch.Tensor
    n_items: Any
    scale: Any

    @classmethod
    def find(
        cls, labels: torch.Tensor, n_items: Any, *, read: Any = None, scale: Any = 1
    ) -> "MaskedTokens":
        """Find the tokens that have a label.

        Args:
            labels: (B, T), -100 where nothing is masked.
            n_items: masked tokens of the step; by default those of this call, times `scale`.
            read: the rows of a packed batch that were computed, if not all.
            scale: for the default of `n_items`.
        """
        flat = (labels if read is None else labels[:, read.columns]).reshape(-1)
        index = (flat != IGNORE_INDEX).nonzero().squeeze(1)
        n_here, padding = len(index), -len(index) % ROW_MULTIPLE
        targets = F.pad(flat[index], (0, padding), value=IGNORE_INDEX)
        n_items = _at_least_one(n_here * scale if n_items is None else n_items, labels.device)
        return cls(F.pad(index, (0, padding)), targets, n_items, n_items / n_here if n_here else 1)


def _at_least_one(n: Any, device: torch.device) -> Any:
    return n.to(device).clamp(min=1) if isinstance(n, torch.Tensor) else max(n, 1)


def mlm_losses(
    lm_head: nn.Module, *predictions: tuple[MaskedTokens, torch.Tensor] | None
) -> list[torch.Tensor | None]:
    """Masked-LM losses of (B, T, H) outputs; None for None.

    Only masked positions are projected to the vocabulary, in one call for all outputs.
    """
    given = [prediction for prediction in predictions if prediction is not None]
    hidden = torch.cat([output.flatten(0, 1)[masked.index] for masked, output in given])
    targets = torch.cat([masked.targets for masked, _ in given])
    losses = F.cross_entropy(
        widen(lm_head(hidden)), targets, reduction="none", ignore_index=IGNORE_INDEX
    )
    parts = iter(losses.split([len(masked.index) for masked, _ in given]))
    return [None if p is None else next(parts).sum() / p[0].n_items for p in predictions]


def bag_of_words_loss(
    lm_head: nn.Module,
    cls_late: torch.Tensor,
    targets: torch.Tensor | None,
    starts: torch.Tensor | None,
    n_bags: Any,
    masked: MaskedTokens,
) -> torch.Tensor | None:
    """Mean over blocks of logsumexp(z) - mean of z_t over the block's bag, with z = LM head(cls).

    This is the cross-entropy of z with the uniform distribution over the bag.

    Args:
        lm_head: maps (B, H) to (B, V).
        cls_late: (B, H) dense vectors of the blocks.
        targets: (B, T) the tokens of each bag, otherwise -100; (1, N) if packed; None for no loss.
        starts: (B + 1,) where the blocks of a packed batch begin.
        n_bags: blocks with a bag in the step; by default those of this call, times `masked.scale`.
        masked: the masked tokens of this call.
    """
    if targets is None:
        return None
    blocks, columns = (targets != IGNORE_INDEX).nonzero().unbind(1)
    tokens = targets[blocks, columns]
    if starts is not None:
        blocks = torch.searchsorted(starts[1:].long(), columns, right=True)
    n_blocks = len(cls_late)
    hidden = F.pad(cls_late, (0, 0, 0, -n_blocks % ROW_MULTIPLE))
    logits = widen(lm_head(hidden)[:n_blocks])  # (B, V)
    sizes = torch.bincount(blocks, minlength=n_blocks)  # (B,)
    sums = logits.new_zeros(n_blocks).index_add(0, blocks, logits[blocks, tokens])
    losses = (logits.logsumexp(dim=1) - sums / sizes.clamp(min=1)).where(sizes > 0, 0)
    if n_bags is None:
        n_bags = (sizes > 0).sum() * masked.scale
    return losses.sum() / _at_least_one(n_bags, logits.device)


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in float32, or in their own precision if it is higher."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
