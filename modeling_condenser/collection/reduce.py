"""A small part of a collection, on which models are compared without encoding all passages."""

from dataclasses import replace

import numpy as np

from .collection import Collection, Qrels
from .passages import find_rows


def reduce_collection(
    collection: Collection, qrels: Qrels, *, n_others: int, generator: np.random.Generator
) -> Collection:
    """The queries of `qrels`, the passages judged for them, and others drawn at random."""
    judged = {passage for grades in qrels.values() for passage in grades} - collection.absent
    rows = list(find_rows(collection.passages, judged).values())
    others = np.setdiff1d(np.arange(len(collection.passages)), rows)
    drawn = generator.choice(others, max(min(n_others, len(others)), 0), replace=False)
    return replace(
        collection,
        passages=collection.passages.select(sorted([*rows, *drawn.tolist()])),
        queries={query: collection.queries[query] for query in qrels},
        qrels=qrels,
        answers={},
    )
