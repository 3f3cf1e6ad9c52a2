"""Mine the hard negatives of some queries: search, filter by rank and score, draw, filter by text.

Margins are NV-Retriever's positive-aware ones (Moreira et al. 2024: TopK-MarginPos and
TopK-PercPos), named and computed as in sentence-transformers' `mine_hard_negatives`, which needs
all texts and vectors in memory.

Scoring a passage with a cross-encoder costs far more than finding it, so candidates are judged only
until a query has enough negatives.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection as Ids
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, islice, repeat
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.dpr import AnswerMatcher
from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.retrieval.runs import rank_passages
from modeling_condenser.retrieval.systems import Searcher

from .cross_encoder import RelevanceScorer
from .hard_negatives import HardNegatives, judged_positives
from .passage_index import PassageIndex
from .recipe import MiningRecipe

# Why a candidate is not a negative.
POSITIVE, COPY, NOT_FOUND = "positive", "same_text_as_positive", "positive_not_found"
ANSWER, CROSS_ENCODER, RELABELLED = "answer", "cross_encoder", "relabelled_as_positive"
FILTERS = (
    *(POSITIVE, COPY, "min_score", "max_score", NOT_FOUND, "absolute_margin", "relative_margin"),
    *(ANSWER, CROSS_ENCODER, RELABELLED),
)
_BATCH_PAIRS = 10_000  # query-passage pairs whose texts are in memory at once


class Candidate(NamedTuple):
    """A passage that the searcher found; scores of a missing cross-encoder are NaN."""

    rank: int  # from 1
    passage_id: str
    score: float
    teacher_score: float = math.nan


@dataclass
class _Selection:
    """A query's positives and negatives while these are selected."""

    query_id: str
    positives: dict[str, float]  # ids and teacher scores
    order: list[Candidate]  # as they become negatives
    n_judged: int = 0
    negatives: list[Candidate] = field(default_factory=list)
    relabelled: list[Candidate] = field(default_factory=list)  # relevant to the cross-encoder

    def next_batch(self, n: int | None) -> list[Candidate]:
        """The candidates to judge next, if the query has fewer than n negatives."""
        if len(self.negatives) == n:
            return []
        first = self.n_judged
        # At least as many as before, so that there are few rounds and little waste.
        self.n_judged = len(self.order) if n is None else first + max(n, first)
        return self.order[first : self.n_judged]

    def result(self, *, has_scores: bool) -> HardNegatives:
        negatives, relabelled = sorted(self.negatives), sorted(self.relabelled)
        positives = self.positives | {c.passage_id: c.teacher_score for c in relabelled}
        teacher_scores = {
            "positive_teacher_scores": tuple(positives.values()),
            "negative_teacher_scores": tuple(c.teacher_score for c in negatives),
        }
        return HardNegatives(
            self.query_id,
            positive_ids=tuple(positives),
            negative_ids=tuple(c.passage_id for c in negatives),
            negative_scores=tuple(c.score for c in negatives),
            **(teacher_scores if has_scores else {}),
        )


@dataclass(frozen=True)
class Miner:
    """Mines queries of one collection; `index` is of its passages."""

    recipe: MiningRecipe
    collection: Collection
    searcher: Searcher
    index: PassageIndex
    scorer: RelevanceScorer | None = None

    @cached_property
    def _judged(self) -> dict[str, tuple[str, ...]]:
        return judged_positives(self.collection) if self.recipe.positives == "judgements" else {}

    @cached_property
    def _matchers(self) -> dict[str, AnswerMatcher]:
        answers = self.collection.answers if self.recipe.needs_answers else {}
        match = self.recipe.answer_match
        return {query_id: AnswerMatcher(own, match=match) for query_id, own in answers.items()}

    def mine(self, query_ids: Iterable[str]) -> tuple[list[HardNegatives], Counter[str]]:
        """Mine the hard negatives of queries that have a positive, or answers.

        Returns:
            One entry for each query with a positive, in their order; and the number of candidates
            that each filter dropped.
        """
        dropped = Counter[str]()
        queries = {query_id: self.collection.queries[query_id] for query_id in query_ids}
        run = self.searcher.search(queries, depth=self.recipe.last_rank)
        selections = []
        for query_id in queries:
            found = run.get(query_id, {})
            ids = self._judged.get(query_id) or self._first_with_answer(query_id, found)
            if ids:
                positives = dict.fromkeys(ids, math.nan)
                order = self._order(query_id, found, positives, dropped)
                selections.append(_Selection(query_id, positives, order))
        self._select(selections, dropped)
        scores = iter(self._score([(s.query_id, own) for s in selections for own in s.positives]))
        for selection in selections:
            selection.positives = {own: next(scores) for own in selection.positives}
        return [s.result(has_scores=self.scorer is not None) for s in selections], dropped

    def _first_with_answer(self, query_id: str, found: Mapping[str, float]) -> tuple[str, ...]:
        """The first passage found with an answer (Karpukhin et al. 2020, section 4.2), if any."""
        texts = self.index.read(found)
        for passage_id, _ in rank_passages(found):
            if self._has_answer(query_id, texts[passage_id]):
                return (passage_id,)
        return ()

    def _has_answer(self, query_id: str, passage: tuple[str, str]) -> bool:
        matcher = self._matchers.get(query_id)
        return matcher is not None and matcher.is_in(passage[1])

    def _order(
        self, query_id: str, found: Mapping[str, float], positives: Ids[str], dropped: Counter[str]
    ) -> list[Candidate]:
        """A query's candidates, in the order in which they become negatives."""
        index = self.index
        texts = index.content[index.rows(list(positives))]
        copies = set(compress(found, np.isin(index.content[index.rows(list(found))], texts)))
        kept = filter_candidates(self.recipe, found, positives, copies=copies, dropped=dropped)
        return draw_order(self.recipe, query_id, kept)

    def _select(self, selections: Sequence[_Selection], dropped: Counter[str]) -> None:
        """Select each query's first `n_negatives` candidates that the filters by text accept.

        Candidates of all queries are judged together, in rounds, because a cross-encoder is fast
        only with many pairs at once. `dropped` gets the number of others for each reason.
        """
        n = self.recipe.n_negatives
        while batch := [(s, candidate) for s in selections for candidate in s.next_batch(n)]:
            pairs = [(selection.query_id, candidate.passage_id) for selection, candidate in batch]
            for (selection, candidate), verdict in zip(batch, self._judge(pairs), strict=True):
                if len(selection.negatives) == n:
                    continue
                reason, score = verdict
                candidate = candidate._replace(teacher_score=score)
                if reason is None:
                    selection.negatives.append(candidate)
                else:
                    dropped[reason] += 1
                if reason == RELABELLED:
                    selection.relabelled.append(candidate)

    def _judge(self, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str | None, float]]:
        """Why a passage is not a negative of a query (None if it is), and its teacher score."""
        if self.scorer is None and not self._matchers:
            yield from repeat((None, math.nan), len(pairs))
            return
        for first in range(0, len(pairs), _BATCH_PAIRS):
            batch = pairs[first : first + _BATCH_PAIRS]
            texts = self.index.read(passage_id for _, passage_id in batch)
            answered = {(q, p) for q, p in batch if self._has_answer(q, texts[p])}
            rest = [pair for pair in batch if pair not in answered]
            scores = dict(zip(rest, self._score(rest), strict=True))
            for pair in batch:
                yield (ANSWER, math.nan) if pair in answered else self._verdict(scores[pair])

    def _verdict(self, score: float) -> tuple[str | None, float]:
        recipe, relevance = self.recipe, expit(score)
        if recipe.positive_above is not None and relevance > recipe.positive_above:
            return RELABELLED, score
        if recipe.negative_below is not None and relevance >= recipe.negative_below:
            return CROSS_ENCODER, score
        return None, score

    def _score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The cross-encoder's scores of query and passage ids; NaN without one."""
        if self.scorer is None:
            return [math.nan] * len(pairs)
        texts = self.index.read(passage_id for _, passage_id in pairs)
        queries = self.collection.queries
        return self.scorer.score([(queries[q], self._join(texts[p])) for q, p in pairs]).tolist()

    def _join(self, passage: tuple[str, str]) -> str:
        title, text = passage
        return f"{title}{self.recipe.title_separator}{text}" if title else text

    def examples(self, mined: Iterable[HardNegatives]) -> Iterator[str]:
        """The lines of examples.jsonl: one for each query and positive, if it has a negative."""
        for entry in mined:
            found = self.index.read([*entry.positive_ids, *entry.negative_ids])
            texts = {passage_id: self._join(passage) for passage_id, passage in found.items()}
            for place, positive in enumerate(entry.positive_ids if entry.negative_ids else ()):
                example: dict[str, object] = {
                    "query": self.collection.queries[entry.query_id],
                    "positive": texts[positive],
                    "negatives": [texts[negative] for negative in entry.negative_ids],
                }
                if entry.positive_teacher_scores is not None:
                    example["positive_score"] = entry.positive_teacher_scores[place]
                    example["negative_scores"] = entry.negative_teacher_scores
                yield json.dumps(example, ensure_ascii=False) + "\n"


def filter_candidates(
    recipe: MiningRecipe,
    scores: Mapping[str, float],
    positives: Ids[str],
    *,
    copies: Ids[str] = (),
    dropped: Counter[str],
) -> list[Candidate]:
    """The candidates of one query that pass the filters by rank and score.

    Of several positives the lowest score counts for margins. If a positive was not found, its score
    is unknown, and no candidate remains under a margin.

    Args:
        recipe: sets the filters.
        scores: passage id -> score, as found; with the positives.
        positives: ids, at least one.
        copies: ids of other passages with the text of a positive.
        dropped: gets the number of passages that each filter dropped; the first one counts.
    """
    lowest = min(scores.get(passage_id, -math.inf) for passage_id in positives)
    absolute, relative = recipe.absolute_margin, recipe.relative_margin
    bounds = {} if recipe.max_score is None else {"max_score": recipe.max_score}
    if math.isinf(lowest) and (absolute is not None or relative is not None):
        bounds[NOT_FOUND] = lowest
    if absolute is not None:
        bounds["absolute_margin"] = lowest - absolute
    if relative is not None:
        # Not lowest * (1 - margin), which would raise the bound of a negative score.
        bounds["relative_margin"] = lowest - abs(lowest) * relative
    kept = []
    ranked = enumerate(rank_passages(scores), start=1)
    for rank, (passage_id, score) in islice(ranked, recipe.first_rank - 1, recipe.last_rank):
        if passage_id in positives:
            reason = POSITIVE
        elif passage_id in copies:
            reason = COPY
        elif recipe.min_score is not None and score < recipe.min_score:
            reason = "min_score"
        else:
            reason = next((name for name, bound in bounds.items() if score > bound), "")
        if reason:
            dropped[reason] += 1
        else:
            kept.append(Candidate(rank, passage_id, score))
    return kept


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
