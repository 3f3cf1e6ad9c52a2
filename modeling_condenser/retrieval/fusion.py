"""Hybrid search: fuse the runs of several systems, such as BM25 and a dense retriever, into one.

Sums are correctly rounded (`math.fsum`), so a fused score does not depend on the order in which a
run lists its passages.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Literal

from .runs import Run, cut_run, rank_passages

RRF_K = 60  # Cormack, Clarke & Büttcher (2009), section 2
DEPTH = 100


@dataclass(frozen=True)
class Fusion:
    """How to fuse a BM25 run with a dense run.

    Attributes:
        method: "rrf" for `reciprocal_rank_fusion`, "weighted" for `weighted_sum`.
        weight: of the dense run in the weighted sum, from 0 to 1; BM25 has the rest. "rrf" does not
            use it.
    """

    method: Literal["rrf", "weighted"]
    weight: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(
                f"weight is {self.weight}, expected 0 to 1, the share of the dense run."
            )

    def __str__(self) -> str:
        if self.method == "rrf":
            return f"reciprocal rank fusion (k = {RRF_K})"
        return f"a sum of standardised scores (weights {1 - self.weight:.2g} and {self.weight:.2g})"

    def fuse(self, bm25_run: Run, dense_run: Run, *, depth: int = DEPTH) -> Run:
        """Fuse the two runs; keep the best `depth` passages of each query."""
        runs = [bm25_run, dense_run]
        if self.method == "rrf":
            return reciprocal_rank_fusion(runs, depth=depth)
        return weighted_sum(runs, [1 - self.weight, self.weight], depth=depth)


def reciprocal_rank_fusion(runs: Sequence[Run], k: float = RRF_K, *, depth: int = DEPTH) -> Run:
    """Score each passage by the sum of 1 / (k + rank) over the runs that hold it.

    Cormack, Clarke & Büttcher (2009), Reciprocal Rank Fusion Outperforms Condorcet and Individual
    Rank Learning Methods. Ranks start at 1 and follow `rank_passages`.

    Args:
        runs: of the same queries.
        k: lowers the influence of the first ranks.
        depth: the most passages per query.
    """
    fused = {}
    for query_id, found in _by_query(runs):
        ranks = [{p: rank for rank, (p, _) in enumerate(rank_passages(s), 1)} for s in found]
        fused[query_id] = {
            passage: math.fsum(1 / (k + rank[passage]) for rank in ranks if passage in rank)
            for passage in dict.fromkeys(chain(*found))
        }
    return cut_run(fused, depth)


def weighted_sum(runs: Sequence[Run], weights: Sequence[float], *, depth: int = DEPTH) -> Run:
    """Score each passage by the weighted sum of its standardised scores.

    The scores of a run for a query are standardised: minus their mean, divided by their standard
    deviation (of the population). A passage that a run does not hold gets the run's lowest
    standardised score for the query. A run whose scores for a query are all equal contributes 0.
    """
    fused = {}
    for query_id, found in _by_query(runs):
        standardised = [_standardise(scores) for scores in found]
        lowest = [min(scores.values(), default=0.0) for scores in standardised]
        parts = list(zip(weights, standardised, lowest, strict=True))
        fused[query_id] = {
            passage: math.fsum(w * scores.get(passage, low) for w, scores, low in parts)
            for passage in dict.fromkeys(chain(*found))
        }
    return cut_run(fused, depth)


def _standardise(scores: Mapping[str, float]) -> dict[str, float]:
    values = list(scores.values())
    # Rounding gives equal scores a tiny deviation, so they are compared with each other.
    if not values or min(values) == max(values):
        return dict.fromkeys(scores, 0.0)
    mean = fmean(values)
    deviation = math.sqrt(fmean((value - mean) ** 2 for value in values))
    return {passage: (score - mean) / deviation for passage, score in scores.items()}


def _by_query(runs: Sequence[Run]) -> Iterator[tuple[str, list[dict[str, float]]]]:
    """Each query with what each run found for it, in the order of the first run that has it."""
    for query_id in dict.fromkeys(chain(*runs)):
        yield query_id, [run.get(query_id, {}) for run in runs]
