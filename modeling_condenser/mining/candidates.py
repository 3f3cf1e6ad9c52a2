"""Candidates: what a searcher found for one query in, those that may be its negatives out.

The filters here need ranks and scores only; those that read texts are in `judging.py`. Margins are
NV-Retriever's positive-aware ones (Moreira et al. 2024: TopK-MarginPos and TopK-PercPos), named and
computed as in sentence-transformers' `mine_hard_negatives`.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from modeling_condenser.retrieval.runs import rank_passages

POSITIVE, TWIN, NOT_FOUND = "positive", "same_text_as_positive", "positive_not_found"
RANK_FILTERS = (
    POSITIVE,
    TWIN,
    "min_score",
    "max_score",
    NOT_FOUND,
    "absolute_margin",
    "relative_margin",
)


class Candidate(NamedTuple):
    """A passage that the searcher found; ranks count from 1."""

    rank: int
    passage_id: str
    score: float


@dataclass(frozen=True)
class CandidateFilter:
    """Which of the passages that were found may be negatives, by rank and score.

    Attributes:
        first_rank: the first rank to take, from 1; positives are counted.
        last_rank: the last rank to take, itself included.
        min_score: the least score of the searcher.
        max_score: the greatest score of the searcher.
        absolute_margin: how far below the positive's score a negative's must be, at least.
        relative_margin: the same as a share of the positive's score: 0.05 keeps what has at most
            95 % of it.
    """

    first_rank: int
    last_rank: int
    min_score: float | None = None
    max_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None

    @property
    def has_margin(self) -> bool:
        return self.absolute_margin is not None or self.relative_margin is not None

    def apply(
        self,
        scores: Mapping[str, float],
        positives: Collection[str],
        *,
        twins: Collection[str] = (),
        dropped: Counter[str],
    ) -> list[Candidate]:
        """The candidates of one query.

        Args:
            scores: passage id -> score, as found; where a margin is set, with the positives.
            positives: ids of the query's positives, at least one.
            twins: ids of passages with the text of one of them.
            dropped: filter -> number of passages it dropped; this query's are added. A passage
                counts for the first filter that drops it.

        Returns:
            In the order of their ranks. Of several positives the lowest score counts for margins,
            and one that was not found scores below everything that was: nothing remains.
        """
        found = [
            Candidate(rank, passage_id, score)
            for rank, (passage_id, score) in enumerate(rank_passages(scores), start=1)
        ]
        highest = self._highest_score(scores, positives)
        kept = []
        for candidate in found[self.first_rank - 1 : self.last_rank]:
            reason = self._fault(candidate, positives, twins, highest)
            if reason:
                dropped[reason] += 1
            else:
                kept.append(candidate)
        return kept

    def _fault(
        self,
        candidate: Candidate,
        positives: Collection[str],
        twins: Collection[str],
        highest: Mapping[str, float],
    ) -> str | None:
        """The first filter that drops a candidate."""
        if candidate.passage_id in positives:
            return POSITIVE
        if candidate.passage_id in twins:
            return TWIN
        if self.min_score is not None and candidate.score < self.min_score:
            return "min_score"
        return next((name for name, bound in highest.items() if candidate.score > bound), None)

    def _highest_score(
        self, scores: Mapping[str, float], positives: Collection[str]
    ) -> dict[str, float]:
        """Filter -> the highest score that it lets pass, for one query."""
        highest = {} if self.max_score is None else {"max_score": self.max_score}
        if not self.has_margin:
            return highest
        if any(passage_id not in scores for passage_id in positives):
            return {**highest, NOT_FOUND: -math.inf}
        positive = min(scores[passage_id] for passage_id in positives)
        if self.absolute_margin is not None:
            highest["absolute_margin"] = positive - self.absolute_margin
        if self.relative_margin is not None:
            # Not positive * (1 - margin), which would raise the bound of a negative score.
            highest["relative_margin"] = positive - abs(positive) * self.relative_margin
        return highest
