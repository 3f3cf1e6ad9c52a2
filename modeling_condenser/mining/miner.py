"""Mine the hard negatives of some queries: search, filter by rank and score, draw, filter by text.

Scoring a passage with a cross-encoder costs far more than finding it, so candidates are judged only
until a query has enough negatives.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from typing import NamedTuple

import numpy as np

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.dpr import AnswerMatcher
from modeling_condenser.retrieval.systems import Searcher

from .candidates import Candidate, draw_order, filter_candidates, to_candidates
from .cross_encoder import RelevanceScorer, probability
from .hard_negatives import HardNegatives, json_line, judged_positives
from .passage_index import PassageIndex
from .recipe import MiningRecipe

ANSWER, CROSS_ENCODER, RELABELLED = "answer", "cross_encoder", "relabelled_as_positive"
TEXT_FILTERS = (ANSWER, CROSS_ENCODER, RELABELLED)
_BATCH_PAIRS = 10_000  # query-passage pairs whose texts are in memory at once
_BATCH_EXAMPLES = 64  # queries whose examples are in memory at once

Key = tuple[str, str]
"""Query id and passage id."""


class Verdict(NamedTuple):
    """Why a candidate is not a negative (None if it is one), and the cross-encoder's score."""

    reason: str | None = None
    score: float = math.nan


class Selection(NamedTuple):
    """A query's negatives, and candidates that the cross-encoder considers positives, by rank."""

    negatives: list[Candidate]
    relabelled: list[Candidate]


class Miner:
    """Mines queries of one collection; `index` is of its passages."""

    def __init__(
        self,
        recipe: MiningRecipe,
        collection: Collection,
        searcher: Searcher,
        index: PassageIndex,
        *,
        scorer: RelevanceScorer | None = None,
    ):
        self.recipe, self.collection = recipe, collection
        self.searcher, self.index, self.scorer = searcher, index, scorer
        self._judged = judged_positives(collection) if recipe.positives == "judgements" else {}
        self._matchers = {
            query_id: AnswerMatcher(answers, match=recipe.answer_match)
            for query_id, answers in collection.answers.items()
            if recipe.needs_answers and answers
        }

    def mine(self, query_ids: Iterable[str]) -> tuple[list[HardNegatives], Counter[str]]:
        """Mine the hard negatives of queries that have a positive, or answers.

        Returns:
            One entry for each query with a positive, in their order; and counts for the record.
        """
        recipe, counts = self.recipe, Counter[str]()
        queries = {query_id: self.collection.queries[query_id] for query_id in query_ids}
        run = self.searcher.search(queries, depth=recipe.last_rank)
        orders, positives = {}, {}
        for query_id in queries:
            found = run.get(query_id, {})
            positives[query_id] = self._judged.get(query_id) or self._answered(query_id, found)
            if positives[query_id]:
                orders[query_id] = self._order(query_id, found, positives[query_id], counts)
        selections = select(orders, self._judge, n=recipe.n_negatives, dropped=counts)
        keys = [(query_id, own) for query_id in selections for own in positives[query_id]]
        scores = dict(zip(keys, self._score(keys), strict=True))
        mined = []
        for query_id, selection in selections.items():
            own = {positive: scores[query_id, positive] for positive in positives[query_id]}
            mined.append(_record(query_id, own, selection, has_scores=self.scorer is not None))
            n_found = len(selection.negatives)
            counts["queries"] += 1
            counts["negatives"] += n_found
            counts["queries_without_negatives"] += n_found == 0
            counts["queries_with_fewer"] += 0 < n_found < (recipe.n_negatives or 0)
        return mined, counts

    def _answered(self, query_id: str, found: Mapping[str, float]) -> tuple[str, ...]:
        """The first passage found with an answer (Karpukhin et al. 2020, section 4.2), if any."""
        ids = [candidate.passage_id for candidate in to_candidates(found)]
        texts = self.index.read(ids)
        with_answer = (i for i in ids if self._matchers[query_id].is_in(texts[i][1]))
        return tuple(islice(with_answer, 1))

    def _order(
        self,
        query_id: str,
        found: Mapping[str, float],
        positives: Sequence[str],
        counts: Counter[str],
    ) -> list[Candidate]:
        """A query's candidates, in the order in which they become negatives."""
        recipe = self.recipe
        n_candidates = max(min(len(found), recipe.last_rank) - recipe.first_rank + 1, 0)
        counts["candidates"] += n_candidates
        counts["queries_without_candidates"] += n_candidates == 0
        index = self.index
        texts = index.content[index.rows(positives)]
        is_copy = np.isin(index.content[index.rows(list(found))], texts)
        copies = set(compress(found, is_copy))
        kept = filter_candidates(recipe, found, positives, copies=copies, dropped=counts)
        return draw_order(recipe, query_id, kept)

    def _judge(self, keys: Sequence[Key]) -> list[Verdict]:
        """One verdict for each query and passage, by its text."""
        if self.scorer is None and not self._matchers:
            return [Verdict()] * len(keys)
        verdicts: dict[Key, Verdict] = {}
        for first in range(0, len(keys), _BATCH_PAIRS):
            batch = keys[first : first + _BATCH_PAIRS]
            texts = self.index.read(passage_id for _, passage_id in batch)
            for query_id, passage_id in batch:
                matcher = self._matchers.get(query_id)
                if matcher is not None and matcher.is_in(texts[passage_id][1]):
                    verdicts[query_id, passage_id] = Verdict(ANSWER)
            rest = [key for key in batch if key not in verdicts]
            scores = self._score(rest)
            verdicts |= {key: self._verdict(s) for key, s in zip(rest, scores, strict=True)}
        return [verdicts[key] for key in keys]

    def _verdict(self, score: float) -> Verdict:
        recipe, relevance = self.recipe, probability(score)
        if recipe.positive_above is not None and relevance > recipe.positive_above:
            return Verdict(RELABELLED, score)
        if recipe.negative_below is not None and relevance >= recipe.negative_below:
            return Verdict(CROSS_ENCODER, score)
        return Verdict(None, score)

    def _score(self, keys: Sequence[Key]) -> list[float]:
        """The cross-encoder's scores of queries and passages; NaN without one."""
        if self.scorer is None:
            return [math.nan] * len(keys)
        texts = self.index.read(passage_id for _, passage_id in keys)
        queries = self.collection.queries
        return self.scorer.score([(queries[q], self._join(texts[p])) for q, p in keys]).tolist()

    def _join(self, passage: tuple[str, str]) -> str:
        title, text = passage
        return f"{title}{self.recipe.title_separator}{text}" if title else text

    def examples(self, mined: Iterable[HardNegatives]) -> Iterator[str]:
        """The lines of examples.jsonl: one for each query and positive, if it has a negative."""
        entries = (entry for entry in mined if entry.negative_ids)
        while batch := list(islice(entries, _BATCH_EXAMPLES)):
            found = self.index.read(i for e in batch for i in (*e.positive_ids, *e.negative_ids))
            texts = {passage_id: self._join(passage) for passage_id, passage in found.items()}
            for entry, place in ((e, n) for e in batch for n in range(len(e.positive_ids))):
                example: dict[str, object] = {
                    "query": self.collection.queries[entry.query_id],
                    "positive": texts[entry.positive_ids[place]],
                    "negatives": [texts[negative_id] for negative_id in entry.negative_ids],
                }
                if entry.positive_teacher_scores is not None:
                    example["positive_score"] = entry.positive_teacher_scores[place]
                    example["negative_scores"] = entry.negative_teacher_scores
                yield json_line(example)


def _record(
    query_id: str, positives: Mapping[str, float], chosen: Selection, *, has_scores: bool
) -> HardNegatives:
    """What was mined for a query; `positives` have the cross-encoder's scores."""
    negatives = chosen.negatives
    positives = {**positives, **{c.passage_id: c.teacher_score for c in chosen.relabelled}}
    own, others = tuple(positives.values()), tuple(c.teacher_score for c in negatives)
    return HardNegatives(
        query_id,
        positive_ids=tuple(positives),
        negative_ids=tuple(candidate.passage_id for candidate in negatives),
        negative_scores=tuple(candidate.score for candidate in negatives),
        positive_teacher_scores=own if has_scores else None,
        negative_teacher_scores=others if has_scores else None,
    )


def select(
    orders: Mapping[str, Sequence[Candidate]],
    judge: Callable[[Sequence[Key]], list[Verdict]],
    *,
    n: int | None,
    dropped: Counter[str],
) -> dict[str, Selection]:
    """Select each query's first n candidates (all, if n is None) that `judge` accepts.

    Args:
        orders: query id -> candidates in the order in which they become negatives.
        judge: gives one verdict for each query and passage.
        n: number of negatives of a query.
        dropped: gets the number of candidates that were dropped for each reason.
    """
    selections = {query_id: Selection([], []) for query_id in orders}
    left = dict(orders)
    while left:
        batch = []
        for query_id, order in left.items():
            n_done = len(orders[query_id]) - len(order)
            n_found = len(selections[query_id].negatives)
            # At least as many as before, so that there are few rounds and little waste.
            size = len(order) if n is None else max(n - n_found, n_done)
            batch += [(query_id, candidate) for candidate in order[:size]]
            left[query_id] = order[size:]
        verdicts = judge([(query_id, candidate.passage_id) for query_id, candidate in batch])
        for (query_id, candidate), verdict in zip(batch, verdicts, strict=True):
            selection = selections[query_id]
            if len(selection.negatives) == n:
                continue
            candidate = candidate._replace(teacher_score=verdict.score)
            if verdict.reason is None:
                selection.negatives.append(candidate)
                continue
            dropped[verdict.reason] += 1
            if verdict.reason == RELABELLED:
                selection.relabelled.append(candidate)
        left = {q: order for q, order in left.items() if order and len(selections[q][0]) != n}
    for chosen in (part for selection in selections.values() for part in selection):
        chosen.sort()
    return selections
