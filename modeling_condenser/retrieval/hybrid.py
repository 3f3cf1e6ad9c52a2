"""Hybrid search: BM25 and an encoder search, and their runs are fused."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import ir_measures
from ir_measures import RR

from modeling_condenser.collection.collection import Collection, Qrels

from .bm25 import Bm25
from .dense import DenseSearcher
from .fusion import DEPTH, FUSIONS, Fusion
from .runs import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HybridSearcher:
    """Searches with BM25 and an encoder; each finds at least 100 passages for the fused run."""

    bm25: Bm25
    dense: DenseSearcher
    fusion: Fusion = FUSIONS["0.5"]

    def search(self, queries: Mapping[str, str], *, depth: int) -> Run:
        """The best `depth` passages for each query."""
        return self.fusion.fuse(*self.search_parts(queries, depth=depth), depth=depth)

    def tuned(self, dev: Collection | None) -> "HybridSearcher":
        """The same with the best fusion for judged dev queries, if there are any."""
        if dev is None or not dev.qrels:
            logger.info("No judged dev queries to choose the fusion on: %s", self.fusion)
            return self
        return replace(self, fusion=choose_fusion(*self.search_parts(dev.queries), dev.qrels))

    def search_parts(self, queries: Mapping[str, str], *, depth: int = DEPTH) -> tuple[Run, Run]:
        """The runs of BM25 and of the encoder."""
        deep = max(depth, DEPTH)
        return self.bm25.search(queries, depth=deep), self.dense.search(queries, depth=deep)


def choose_fusion(bm25_run: Run, dense_run: Run, qrels: Qrels) -> Fusion:
    """Choose the fusion with the highest MRR@10 on judged queries, the first of equal ones."""
    figures = {}
    for fusion in FUSIONS.values():
        run = fusion.fuse(bm25_run, dense_run)
        figures[fusion] = ir_measures.calc_aggregate([RR @ 10], qrels, run)[RR @ 10]
    best = max(figures, key=lambda fusion: figures[fusion])
    logger.info("Chosen on %d dev queries: %s, MRR@10 %.3f", len(qrels), best, figures[best])
    return best
