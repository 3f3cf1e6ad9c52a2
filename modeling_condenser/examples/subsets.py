"""Small-data protocol: how many training examples, and a seed, in; which rows out.

The papers compare encoders at 500, 1K and 10K labels (Condenser, Tables 1, 2, 3 and 5). The subsets
of one seed are nested, 500 in 1K in 10K, so that a larger one only adds to a smaller one.
"""

import numpy as np
from datasets import Dataset


def take_subset(examples: Dataset, train_size: int | None, *, seed: int, what: str) -> Dataset:
    """Choose training examples at random.

    Args:
        examples: N rows.
        train_size: how many to choose; None for all.
        seed: decides which. A larger subset of the same seed holds the smaller one.
        what: where the examples come from, for errors.

    Returns:
        The chosen rows, in the order that they had.

    Raises:
        ValueError: there are fewer rows than `train_size`.
    """
    if train_size is None:
        return examples
    if not 0 < train_size <= len(examples):
        raise ValueError(
            f"train_size is {train_size}, but {what} gives {len(examples)} training examples: "
            f"choose a number from 1 to {len(examples)}."
        )
    chosen = np.random.default_rng(seed).permutation(len(examples))[:train_size]
    return examples.select(np.sort(chosen))
