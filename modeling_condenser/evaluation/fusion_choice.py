"""Choose how to fuse BM25 with a dense run, on development queries."""

import logging
from collections.abc import Mapping

from modeling_condenser.measures.measures import evaluate_run
from modeling_condenser.retrieval.fusion import DEPTH, Fusion
from modeling_condenser.retrieval.runs import Run

logger = logging.getLogger(__name__)

CANDIDATES = (Fusion("rrf"), *(Fusion("weighted", tenths / 10) for tenths in range(1, 10)))


def choose_fusion(
    bm25_run: Run,
    dense_run: Run,
    qrels: Mapping[str, Mapping[str, int]],
    *,
    measure: str = "MRR@10",
    depth: int = DEPTH,
) -> Fusion:
    """Find the fusion that is best on these queries.

    The candidates are reciprocal rank fusion, and weighted sums with a weight of 0.1 to 0.9 for the
    dense run. Of equally good ones the first in this order is taken.

    Args:
        bm25_run: of development queries.
        dense_run: of the same queries.
        qrels: their judgements. Other queries of the runs are ignored.
        measure: to compare the candidates in.
        depth: of the fused runs.
    """
    means = {
        fusion: evaluate_run(
            qrels, fusion.fuse(bm25_run, dense_run, depth=depth), measures=[measure]
        ).means[measure]
        for fusion in CANDIDATES
    }
    best = max(means, key=means.__getitem__)
    logger.info("Fusing by %s: %s %.4f on %d queries", best, measure, means[best], len(qrels))
    return best
