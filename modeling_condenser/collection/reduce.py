"""A small part of a collection, on which models are compared without encoding all passages."""

from dataclasses import replace

import numpy as np

from .collection import Collection
from .passages import find_rows


def sample_collection(
    collection: Collection, *, n_queries: int, n_passages: int, seed: int
) -> Collection:
    """Queries with a relevant passage, the passages judged for them, and others, all at random.

    There are up to `n_queries` queries, and `n_passages` passages unless more are judged.

    Raises:
        ValueError: no query has a relevant passage in the collection.
    """
    known = {
        query: {p: grade for p, grade in grades.items() if p not in collection.absent}
        for query, grades in collection.qrels.items()
    }
    answerable = [query for query, grades in known.items() if max(grades.values(), default=0) > 0]
    if not answerable:
        raise ValueError(
            f"No query of {collection.name} has a relevant passage among its passages: choose "
            "another split or collection."
        )
    generator = np.random.default_rng(seed)
    qrels = {q: known[q] for q in generator.permutation(answerable)[:n_queries].tolist()}
    judged = {passage for grades in qrels.values() for passage in grades}
    rows = list(find_rows(collection.passages, judged).values())
    others = np.setdiff1d(np.arange(len(collection.passages)), rows)
    n_others = min(max(n_passages - len(rows), 0), len(others))
    drawn = generator.choice(others, n_others, replace=False)
    return replace(
        collection,
        passages=collection.passages.select(sorted([*rows, *drawn.tolist()])),
        queries={query: collection.queries[query] for query in qrels},
        qrels=qrels,
        answers={},
    )
