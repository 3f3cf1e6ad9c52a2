"""Exact inner-product search over passage embeddings, shard by shard in float32.

Passages with equal scores are ordered by passage id, also across the last place of a run, unless
more than 32 passages share its score.
"""

from collections.abc import Sequence

import numpy as np

from modeling_condenser.encoding.embeddings import Embeddings, check_vectors, find_best

from .runs import Run, make_run

_SPARE = 32  # candidates beyond the depth, among which ties are broken


def search_exact(
    embeddings: Embeddings,
    queries: np.ndarray,
    query_ids: Sequence[str],
    *,
    depth: int = 100,
    progress: bool = False,
) -> Run:
    """Rank a collection's passages by inner product with queries, (Q, D) float32."""
    check_queries(queries, query_ids, dimension=embeddings.dimension, depth=depth)
    blocks = embeddings.blocks(progress="search" if progress else "")
    scores, rows = find_best(queries, blocks, depth=depth + _SPARE)
    return make_run(query_ids, scores, rows, embeddings.ids, depth=depth)


def search_exact_arrays(
    passage_embeddings: np.ndarray,
    passage_ids: Sequence[str],
    *,
    query_embeddings: np.ndarray,
    query_ids: Sequence[str],
    depth: int = 100,
) -> Run:
    """Rank passages in memory, (N, D) float32, by inner product with queries, (Q, D) float32."""
    check_vectors(passage_embeddings, len(set(passage_ids)))
    dimension = passage_embeddings.shape[1]
    check_queries(query_embeddings, query_ids, dimension=dimension, depth=depth)
    scores, rows = find_best(query_embeddings, [(0, passage_embeddings)], depth=depth + _SPARE)
    return make_run(query_ids, scores, rows, lambda r: [passage_ids[i] for i in r], depth=depth)


def check_queries(
    queries: np.ndarray, query_ids: Sequence[str], *, dimension: int, depth: int
) -> None:
    """Raise a ValueError unless queries are finite (Q, dimension) float32 with Q unique ids."""
    check_vectors(queries, len(set(query_ids)))
    if queries.shape[1] != dimension:
        raise ValueError(
            f"Queries have {queries.shape[1]} numbers and passages {dimension}: encode both with "
            "the same model."
        )
    if depth < 1:
        raise ValueError(f"depth is {depth}, expected at least 1, e.g. 100.")
