"""Retrieval on a small part of a collection: vectors in, the usual measures out, in seconds.

For comparing checkpoints with each other; the figures are not those on the whole collection.
"""

from dataclasses import replace

import numpy as np

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_collection
from modeling_condenser.collection.lookup import find_rows
from modeling_condenser.measures.measures import evaluate_run
from modeling_condenser.retrieval.exact import search_exact_arrays

from .settings import Measuring
from .vectors import Vectors

MEASURES = ("MRR@10", "nDCG@10", "R@100")
_DEPTH = 100


def load_small(measuring: Measuring) -> Collection | None:
    """The small part of the collection that settings name; None where they name none.

    Raises:
        FileNotFoundError: there is no such collection.
        ValueError: it has no such split, or that judges no passage as relevant.
    """
    if measuring.collection is None:
        return None
    return make_small(
        load_collection(measuring.collection, split=measuring.split),
        n_queries=measuring.queries,
        n_passages=measuring.passages,
        seed=measuring.sample_seed,
    )


def make_small(collection: Collection, *, n_queries: int, n_passages: int, seed: int) -> Collection:
    """Some queries, the passages judged for them, and others at random up to a number.

    All judged passages are kept, so there are more than `n_passages` where that is needed.

    Raises:
        ValueError: no passage is judged as relevant.
    """
    judged = [q for q, grades in collection.qrels.items() if any(g > 0 for g in grades.values())]
    if not judged:
        raise ValueError(
            f"{collection.name} judges no passage as relevant, so retrieval cannot be measured on "
            "it: choose another split or collection."
        )
    generator = np.random.default_rng(seed)
    chosen = set(generator.permutation(len(judged))[:n_queries].tolist())
    queries = [query for number, query in enumerate(judged) if number in chosen]
    qrels = {query: dict(collection.qrels[query]) for query in queries}
    needed = find_rows(collection.passages, {p for grades in qrels.values() for p in grades})
    others = np.setdiff1d(np.arange(len(collection.passages)), list(needed.values()))
    n_others = max(min(n_passages - len(needed), len(others)), 0)
    rows = sorted([*needed.values(), *generator.choice(others, n_others, replace=False).tolist()])
    return replace(
        collection,
        passages=collection.passages.select(rows),
        queries={query: collection.queries[query] for query in queries},
        qrels=qrels,
        answers={},
    )


def measure_retrieval(vectors: Vectors, small: Collection) -> dict[str, float]:
    """Search a small collection by inner product of vectors: measure -> mean over the queries."""
    run = search_exact_arrays(
        vectors.encode_passages(small.passages),
        small.passages["_id"][:],
        query_embeddings=vectors.encode_queries(list(small.queries.values())),
        query_ids=list(small.queries),
        depth=_DEPTH,
    )
    return dict(evaluate_run(small.qrels, run, measures=MEASURES).means)
