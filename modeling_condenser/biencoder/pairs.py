"""Labelled pairs for training: a query, and a passage judged relevant for it."""

import numpy as np
from datasets import Dataset

from modeling_condenser.collection.beir import Collection
from modeling_condenser.publishing.contract import EncodingContract


def training_pairs(
    collection: Collection,
    contract: EncodingContract,
    *,
    train_size: int | None = None,
    subset_seed: int = 0,
) -> Dataset:
    """Make one training pair of each judged query and relevant passage.

    Args:
        collection: the training split.
        contract: how a passage's title and text become one text.
        train_size: number of pairs to keep, all by default. The subsets of one seed are nested.
        subset_seed: decides which.

    Returns:
        Columns `query` and `passage`.

    Raises:
        ValueError: there are fewer pairs than `train_size`, or none.
    """
    pairs = [
        (query_id, passage_id)
        for query_id, grades in collection.qrels.items()
        for passage_id, grade in grades.items()
        if grade > 0
    ]
    if not pairs or (train_size is not None and not 0 < train_size <= len(pairs)):
        raise ValueError(
            f"train_size is {train_size}, but the split has {len(pairs)} labelled pairs: "
            f"choose a number from 1 to {len(pairs)}."
        )
    order = np.random.default_rng(subset_seed).permutation(len(pairs))[:train_size]
    chosen = [pairs[i] for i in order]
    rows = {passage_id: row for row, passage_id in enumerate(collection.passages["_id"])}
    passages = collection.passages[[rows[passage_id] for _, passage_id in chosen]]
    return Dataset.from_dict(
        {
            "query": [collection.queries[query_id] for query_id, _ in chosen],
            "passage": [
                contract.passage(title, text)
                for title, text in zip(passages["title"], passages["text"], strict=True)
            ],
        }
    )
