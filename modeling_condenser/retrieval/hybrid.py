"""Hybrid search: BM25 and an encoder search, and their runs are fused."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import ir_measures
from ir_measures import RR

from modeling_condenser.collection.collection import Collection

from .bm25 import Bm25
from .dense import DenseSearcher
from .fusion import DEPTH, FUSIONS, Fusion
from .runs import Run

logger = logging.getLogger(__name__)

# Without queries to choose on. It gains on BM25 even where the encoder is weak; ranks alone do not.
_DEFAULT = FUSIONS["0.5"]


@dataclass(frozen=True)
class HybridSearcher:
    """Searches with BM25 and an encoder; each finds at least 100 passages for the fused run."""

    bm25: Bm25
    dense: DenseSearcher
    fusion: Fusion = _DEFAULT

    def search(self, queries: Mapping[str, str], *, depth: int) -> Run:
        """The best `depth` passages for each query."""
        return self.fusion.fuse(*self.search_parts(queries, depth=depth), depth=depth)

    def search_parts(self, queries: Mapping[str, str], *, depth: int = DEPTH) -> tuple[Run, Run]:
        """The runs of BM25 and of the encoder."""
        deep = max(depth, DEPTH)
        return self.bm25.search(queries, depth=deep), self.dense.search(queries, depth=deep)


def choose_fusion(bm25: Bm25, dense: DenseSearcher, dev: Collection | None) -> Fusion:
    """Choose the fusion with the highest MRR@10 on dev queries, the first of equal ones.

    Without judged dev queries it is the sum of standardised scores with equal weights.
    """
    if dev is None or not dev.qrels:
        logger.info("There are no dev queries to choose the fusion on; it is %s.", _DEFAULT)
        return _DEFAULT
    runs = HybridSearcher(bm25, dense).search_parts(dev.queries)
    measures = {fusion: _mrr(fusion.fuse(*runs), dev) for fusion in FUSIONS.values()}
    best = max(measures, key=lambda fusion: measures[fusion])
    logger.info("Chosen on %d dev queries: %s, MRR@10 %.3f", len(dev.qrels), best, measures[best])
    return best


def _mrr(run: Run, dev: Collection) -> float:
    return float(ir_measures.calc_aggregate([RR @ 10], dev.qrels, run)[RR @ 10])
