"""Filter what a searcher found for a query by rank and score, and draw from it.

The filters here need ranks and scores only; those that read texts are in `judging.py`. Margins are
NV-Retriever's positive-aware ones (Moreira et al. 2024: TopK-MarginPos and TopK-PercPos), named and
computed as in sentence-transformers' `mine_hard_negatives`. That function is not used because it
needs all texts and vectors in memory, and searches with a sentence-transformers model only.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.retrieval.runs import rank_passages

Sampling = Literal["random", "top"]

POSITIVE, COPY, NOT_FOUND = "positive", "same_text_as_positive", "positive_not_found"
RANK_FILTERS = (
    *(POSITIVE, COPY, "min_score", "max_score"),
    *(NOT_FOUND, "absolute_margin", "relative_margin"),
)


class Candidate(NamedTuple):
    """A passage that the searcher found.

    Attributes:
        rank: from 1.
        passage_id: the passage.
        score: the searcher's.
        teacher_score: the cross-encoder's; NaN without one.
    """

    rank: int
    passage_id: str
    score: float
    teacher_score: float = math.nan


def to_candidates(scores: Mapping[str, float]) -> list[Candidate]:
    """The passages found for a query, in the order of their ranks."""
    ranked = rank_passages(scores)
    return [Candidate(rank, *found) for rank, found in enumerate(ranked, start=1)]


@dataclass(frozen=True)
class CandidateFilter:
    """Which of the passages found may be negatives, by rank and score; see `MiningRecipe`."""

    first_rank: int
    last_rank: int
    min_score: float | None = None
    max_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None

    def apply(
        self,
        scores: Mapping[str, float],
        positives: Collection[str],
        *,
        copies: Collection[str] = (),
        dropped: Counter[str],
    ) -> list[Candidate]:
        """The candidates of one query, in the order of their ranks.

        Of several positives the lowest score counts for margins. If a positive was not found, its
        score is unknown, and no candidate remains under a margin.

        Args:
            scores: passage id -> score, as found; with the positives.
            positives: ids of the query's positives, at least one.
            copies: ids of other passages with the text of one of them.
            dropped: filter -> number of dropped passages; this query's are added. A passage counts
                for the first filter that drops it.
        """
        bounds = self._upper_bounds(scores, positives)
        kept = []
        for candidate in to_candidates(scores)[self.first_rank - 1 : self.last_rank]:
            reason = None
            if candidate.passage_id in positives:
                reason = POSITIVE
            elif candidate.passage_id in copies:
                reason = COPY
            elif self.min_score is not None and candidate.score < self.min_score:
                reason = "min_score"
            else:
                above = (name for name, bound in bounds.items() if candidate.score > bound)
                reason = next(above, None)
            if reason is None:
                kept.append(candidate)
            else:
                dropped[reason] += 1
        return kept

    def _upper_bounds(
        self, scores: Mapping[str, float], positives: Collection[str]
    ) -> dict[str, float]:
        """Filter -> the highest score that passes it, for one query."""
        bounds = {} if self.max_score is None else {"max_score": self.max_score}
        if self.absolute_margin is None and self.relative_margin is None:
            return bounds
        if any(passage_id not in scores for passage_id in positives):
            return {**bounds, NOT_FOUND: -math.inf}
        positive = min(scores[passage_id] for passage_id in positives)
        if self.absolute_margin is not None:
            bounds["absolute_margin"] = positive - self.absolute_margin
        if self.relative_margin is not None:
            # Not positive * (1 - margin), which would raise the bound of a negative score.
            bounds["relative_margin"] = positive - abs(positive) * self.relative_margin
        return bounds


def draw_order(
    candidates: list[Candidate], *, query_id: str, seed: int, sampling: Sampling
) -> list[Candidate]:
    """The candidates of one query in the order in which they become negatives.

    Each rank of a query has its own random number, which depends on the seed, the query's id and
    the rank. So a draw does not depend on other queries, the first n of a larger draw are the draw
    of n, and a filter that drops a candidate does not change the order of the others.

    Args:
        candidates: in the order of their ranks.
        query_id: decides the order, together with the seed.
        seed: at least 0.
        sampling: "random", or "top" for the order of the ranks.
    """
    if sampling == "top" or not candidates:
        return candidates
    digest = hashlib.blake2b(query_id.encode(), digest_size=7).digest()
    keys = random_keys(seed, int.from_bytes(digest, "little"))
    numbers = uniforms(keys, candidates[-1].rank)[0]  # (last rank,)
    order = np.argsort(numbers[[candidate.rank - 1 for candidate in candidates]], kind="stable")
    return [candidates[place] for place in order.tolist()]
