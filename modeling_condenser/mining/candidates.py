"""Filter what a searcher found for a query by rank and score, and draw from it.

Margins are NV-Retriever's positive-aware ones (Moreira et al. 2024: TopK-MarginPos and
TopK-PercPos), named and computed as in sentence-transformers' `mine_hard_negatives`. That function
is not used because it needs all texts and vectors in memory.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.retrieval.runs import rank_passages

from .recipe import MiningRecipe

POSITIVE, COPY, NOT_FOUND = "positive", "same_text_as_positive", "positive_not_found"
RANK_FILTERS = (
    *(POSITIVE, COPY, "min_score", "max_score"),
    *(NOT_FOUND, "absolute_margin", "relative_margin"),
)


class Candidate(NamedTuple):
    """A passage that the searcher found; `rank` counts from 1.

    `teacher_score` is the cross-encoder's score, NaN without one.
    """

    rank: int
    passage_id: str
    score: float
    teacher_score: float = math.nan


def to_candidates(scores: Mapping[str, float]) -> list[Candidate]:
    """The passages found for a query, in the order of their ranks."""
    ranked = rank_passages(scores)
    return [Candidate(rank, *found) for rank, found in enumerate(ranked, start=1)]


def filter_candidates(
    recipe: MiningRecipe,
    scores: Mapping[str, float],
    positives: Collection[str],
    *,
    copies: Collection[str] = (),
    dropped: Counter[str],
) -> list[Candidate]:
    """The candidates of one query that pass the filters by rank and score.

    Of several positives the lowest score counts for margins. If a positive was not found, its score
    is unknown, and no candidate remains under a margin.

    Args:
        recipe: sets the filters.
        scores: passage id -> score, as found; with the positives.
        positives: ids of the query's positives, at least one.
        copies: ids of other passages with the text of one of them.
        dropped: gets the number of passages dropped by each filter; the first one counts.
    """
    bounds = _upper_bounds(recipe, scores, positives)
    kept = []
    for candidate in to_candidates(scores)[recipe.first_rank - 1 : recipe.last_rank]:
        if candidate.passage_id in positives:
            reason = POSITIVE
        elif candidate.passage_id in copies:
            reason = COPY
        elif recipe.min_score is not None and candidate.score < recipe.min_score:
            reason = "min_score"
        else:
            above = (name for name, bound in bounds.items() if candidate.score > bound)
            reason = next(above, "")
        if reason:
            dropped[reason] += 1
        else:
            kept.append(candidate)
    return kept


def _upper_bounds(
    recipe: MiningRecipe, scores: Mapping[str, float], positives: Collection[str]
) -> dict[str, float]:
    """Filter -> the highest score that passes it, for one query."""
    bounds = {} if recipe.max_score is None else {"max_score": recipe.max_score}
    if recipe.absolute_margin is None and recipe.relative_margin is None:
        return bounds
    if any(passage_id not in scores for passage_id in positives):
        return {**bounds, NOT_FOUND: -math.inf}
    positive = min(scores[passage_id] for passage_id in positives)
    if recipe.absolute_margin is not None:
        bounds["absolute_margin"] = positive - recipe.absolute_margin
    if recipe.relative_margin is not None:
        # Not positive * (1 - margin), which would raise the bound of a negative score.
        bounds["relative_margin"] = positive - abs(positive) * recipe.relative_margin
    return bounds


def draw_order(recipe: MiningRecipe, query_id: str, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates of one query in the order in which they become negatives.

    The random number of a rank depends on the seed, the query's id and the rank only. So the first
    n of a larger draw are the draw of n, and dropping a candidate does not reorder the others.
    """
    if recipe.sampling == "top" or not candidates:
        return candidates
    digest = hashlib.blake2b(query_id.encode(), digest_size=7).digest()
    keys = random_keys(recipe.seed, int.from_bytes(digest, "little"))
    numbers = uniforms(keys, candidates[-1].rank)[0]  # (last rank,)
    return sorted(candidates, key=lambda candidate: numbers[candidate.rank - 1])
