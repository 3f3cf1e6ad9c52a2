"""Measures a retriever on a small collection (`collection/reduce.py`), in memory."""

from collections.abc import Sequence

from modeling_condenser.collection.collection import Collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.retrieval.dense import search_exact_arrays

from .measures import Evaluation, evaluate_run

_DEPTH = 101  # for R@100, if the query itself is a passage


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
