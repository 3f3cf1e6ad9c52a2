"""Small parts of a collection, on which models are compared without encoding all passages."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from modeling_condenser.collection.collection import Collection, Qrels
from modeling_condenser.collection.passages import find_rows
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.retrieval.dense import search_exact_arrays

from .measures import Evaluation, evaluate_run

_DEPTH = 101  # for R@100, if the query itself is a passage


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


def measure_small(
    retriever: Retriever, small: Collection, measures: Sequence[str] | None = None
) -> Evaluation:
    """Encode and search a small collection by the model's similarity, and measure the run."""
    retriever.check_inner_product()
    run = search_exact_arrays(
        retriever.encode_passages(small.passages),
        list(small.passages["_id"]),
        query_embeddings=retriever.encode_queries(list(small.queries.values())),
        query_ids=list(small.queries),
        depth=_DEPTH,
    )
    return evaluate_run(small.qrels, run, measures=measures)
