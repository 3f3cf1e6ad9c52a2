"""Which examples share a batch: a training set in; a batch sampler of sentence-transformers out.

In-batch contrast takes every other text of a batch as a negative, so no batch may hold a text
twice: `no_duplicates` sees to that. Where negatives are gathered across devices, the batch is that
of all devices together, of which the library knows nothing.
"""

from collections.abc import Callable, Iterator
from typing import Any

from sentence_transformers.base.sampler import DefaultBatchSampler, NoDuplicatesBatchSampler
from sentence_transformers.sentence_transformer.training_args import BatchSamplers
from torch.utils.data import SequentialSampler

from .recipe import FinetuningRecipe


class DistinctBatches(DefaultBatchSampler):
    """Batches that hold no text twice, nor do those that several devices see in one step.

    Args:
        dataset: the training set.
        n_devices: processes whose batches are distinct together; each takes every n-th batch.
        batch_size: of one device.
        **arguments: as for `NoDuplicatesBatchSampler`.
    """

    def __init__(self, dataset: Any, *, n_devices: int, batch_size: int, **arguments: Any):
        super().__init__(dataset, batch_size=batch_size, **arguments)
        self.n_devices = n_devices
        self._together = NoDuplicatesBatchSampler(
            dataset, batch_size=n_devices * batch_size, **arguments
        )

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._together.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self._together:
            for start in range(0, len(rows), self.batch_size):
                yield rows[start : start + self.batch_size]

    def __len__(self) -> int:
        return len(self._together) * self.n_devices


def sequential_batches(dataset: Any, **arguments: Any) -> DefaultBatchSampler:
    """Batches in the order of the data."""
    return DefaultBatchSampler(SequentialSampler(dataset), **arguments)


def choose_batch_sampler(
    recipe: FinetuningRecipe, asked: BatchSamplers | None, *, seed: int, n_devices: int
) -> BatchSamplers | Callable[..., DefaultBatchSampler]:
    """The batch sampler that an objective needs, for the trainer's argument `batch_sampler`.

    Args:
        recipe: checked.
        asked: that argument as the recipe has it; None where it says nothing.
        seed: decides the order of the batches.
        n_devices: processes that train together.

    Raises:
        ValueError: what is asked for lets a batch hold a text twice, or it shuffles.
    """
    if recipe.objective == "contrastive":
        if asked not in (None, BatchSamplers.NO_DUPLICATES):
            raise ValueError(
                f"batch_sampler is {getattr(asked, 'value', asked)!r}, but objective contrastive "
                "needs 'no_duplicates': a text that stands twice in a batch would be a negative of "
                "itself."
            )
        n_together = n_devices if recipe.gather_across_devices else 1

        def distinct_batches(dataset: Any, **arguments: Any) -> DefaultBatchSampler:
            # The trainer of sentence-transformers 6.0 does not pass its own seed.
            return DistinctBatches(dataset, n_devices=n_together, **{**arguments, "seed": seed})

        return distinct_batches
    if recipe.order == "sequential":
        if asked is not None:
            raise ValueError("batch_sampler contradicts order: sequential, leave one out.")
        return sequential_batches
    return asked or BatchSamplers.BATCH_SAMPLER
