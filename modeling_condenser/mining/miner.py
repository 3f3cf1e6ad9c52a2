"""Mine the hard negatives of some queries.

The steps are: search, filter by rank and score and draw (`candidates.py`), filter by text
(`judging.py`).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modeling_condenser.collection.answers import AnswerMatcher
from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.lookup import find_rows
from modeling_condenser.retrieval.runs import Run
from modeling_condenser.retrieval.systems import Searcher

from .candidates import Candidate, draw_order, to_candidates
from .cross_encoder import RelevanceScorer
from .judging import (
    ANSWER,
    Key,
    PassageReader,
    Selection,
    TextJudge,
    Verdict,
    join_title,
    select,
)
from .positives import Positives
from .recipe import MiningRecipe

_EXAMPLE_QUERIES = 64  # whose texts are in memory at once, with all their passages


@dataclass(frozen=True)
class HardNegatives:
    """What was mined for one query; a line of negatives.jsonl.

    Attributes:
        query_id: the query.
        positive_ids: passages judged relevant, and those that the cross-encoder considers relevant.
        negative_ids: best first; empty if no candidate remained.
        negative_scores: the searcher's scores of the negatives.
        positive_teacher_scores: the cross-encoder's scores (log-odds); None without one.
        negative_teacher_scores: the same of the negatives.
    """

    query_id: str
    positive_ids: tuple[str, ...]
    negative_ids: tuple[str, ...]
    negative_scores: tuple[float, ...]
    positive_teacher_scores: tuple[float, ...] | None = None
    negative_teacher_scores: tuple[float, ...] | None = None

    @property
    def passage_ids(self) -> tuple[str, ...]:
        """Positives and negatives."""
        return self.positive_ids + self.negative_ids

    def line(self) -> str:
        """The line of negatives.jsonl."""
        return _json_line({name: value for name, value in vars(self).items() if value is not None})

    def example_lines(self, query: str, texts: Mapping[str, str]) -> Iterator[str]:
        """The lines of examples.jsonl, one for each positive; none without a negative.

        Args:
            query: its text.
            texts: passage id -> title and text as one.
        """
        if not self.negative_ids:
            return
        negatives = [texts[passage_id] for passage_id in self.negative_ids]
        for place, passage_id in enumerate(self.positive_ids):
            example = {"query": query, "positive": texts[passage_id], "negatives": negatives}
            if self.positive_teacher_scores is not None:
                example["positive_score"] = self.positive_teacher_scores[place]  # type: ignore[assignment]
                example["negative_scores"] = self.negative_teacher_scores  # type: ignore[assignment]
            yield _json_line(example)


def _json_line(record: Mapping[str, object]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Miner:
    """Mines queries of one collection.

    Attributes:
        recipe: which passages are negatives.
        collection: passages, queries, judgements, answers.
        searcher: finds candidates.
        positives: of the queries, by judgements; None to find them by answers.
        copies: positive -> other passages with its text; see `find_copies`.
        scorer: the cross-encoder, if the recipe names one.
        checks_ids: whether the searcher may name passages that the collection does not have.
    """

    recipe: MiningRecipe
    collection: Collection
    searcher: Searcher
    positives: Positives | None
    copies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scorer: RelevanceScorer | None = None
    checks_ids: bool = False

    def mine(self, query_ids: Iterable[str]) -> tuple[list[HardNegatives], Counter[str]]:
        """Mine the hard negatives of some queries.

        Args:
            query_ids: of queries that have a positive, or answers.

        Returns:
            One entry for each query with a positive, in their order; and counts for the record.

        Raises:
            ValueError: the searcher names a passage that the collection does not have, or a score
                is not finite.
        """
        queries = {query_id: self.collection.queries[query_id] for query_id in query_ids}
        run = self.searcher.search(queries, depth=self.recipe.last_rank)
        matchers = self._matchers(queries)
        if self.positives is None:
            positives = self._answered(run, matchers)
        else:
            positives = {query_id: self.positives[query_id] for query_id in queries}
        counts: Counter[str] = Counter()
        orders = self._orders(run, positives, counts)
        mined = self._judge(positives, orders, matchers, counts)
        if self.checks_ids:
            find_rows(self.collection.passages, (i for m in mined for i in m.negative_ids))
        n = self.recipe.n_negatives or 0
        for entry in mined:
            n_found = len(entry.negative_ids)
            counts["queries"] += 1
            counts["negatives"] += n_found
            counts["queries_without_negatives"] += n_found == 0
            counts["queries_with_fewer"] += 0 < n_found < n
        return mined, counts

    def example_lines(self, mined: Sequence[HardNegatives]) -> Iterator[str]:
        """The lines of examples.jsonl for queries that were mined."""
        complete = [entry for entry in mined if entry.negative_ids]
        ids = (passage_id for entry in complete for passage_id in entry.passage_ids)
        reader = PassageReader(self.collection.passages, ids)
        for first in range(0, len(complete), _EXAMPLE_QUERIES):
            batch = complete[first : first + _EXAMPLE_QUERIES]
            found = reader.read(passage_id for entry in batch for passage_id in entry.passage_ids)
            separator = self.recipe.title_separator
            texts = {i: join_title(*passage, separator) for i, passage in found.items()}
            for entry in batch:
                yield from entry.example_lines(self.collection.queries[entry.query_id], texts)

    def _matchers(self, query_ids: Iterable[str]) -> dict[str, AnswerMatcher]:
        if not self.recipe.needs_answers:
            return {}
        answers = self.collection.answers
        return {
            query_id: AnswerMatcher(answers[query_id], match=self.recipe.answer_match)
            for query_id in query_ids
            if answers.get(query_id)
        }

    def _answered(
        self, run: Run, matchers: Mapping[str, AnswerMatcher]
    ) -> dict[str, tuple[str, ...]]:
        """The first passage found with an answer (Karpukhin et al. 2020, section 4.2).

        As in DPR, queries that have no such passage are left out.
        """
        orders = {query_id: to_candidates(run.get(query_id, {})) for query_id in matchers}
        ids = {candidate.passage_id for order in orders.values() for candidate in order}
        reader = PassageReader(self.collection.passages, ids)
        judge = TextJudge(self.collection.queries, reader, matchers)

        def has_answer(keys: Sequence[Key]) -> list[Verdict]:
            reasons = [verdict.reason for verdict in judge.judge(keys)]
            return [Verdict(None if reason == ANSWER else "no answer") for reason in reasons]

        selections = select(orders, has_answer, n=1, dropped=Counter())
        return {
            query_id: (selection.negatives[0].passage_id,)
            for query_id, selection in selections.items()
            if selection.negatives
        }

    def _orders(
        self, run: Run, positives: Positives, counts: Counter[str]
    ) -> dict[str, list[Candidate]]:
        """Each query's candidates, in the order in which they become negatives."""
        recipe = self.recipe
        orders = {}
        for query_id, own in positives.items():
            scores = run.get(query_id, {})
            n_candidates = max(min(len(scores), recipe.last_rank) - recipe.first_rank + 1, 0)
            counts["candidates"] += n_candidates
            counts["queries_without_candidates"] += n_candidates == 0
            copies = {copy for passage_id in own for copy in self.copies.get(passage_id, ())}
            orders[query_id] = draw_order(
                recipe.candidates.apply(scores, own, copies=copies, dropped=counts),
                query_id=query_id,
                seed=recipe.seed,
                sampling=recipe.sampling,
            )
        return orders

    def _judge(
        self,
        positives: Positives,
        orders: Mapping[str, list[Candidate]],
        matchers: Mapping[str, AnswerMatcher],
        counts: Counter[str],
    ) -> list[HardNegatives]:
        """Select negatives among the candidates, and score the positives with the cross-encoder."""
        judge: Callable[[Sequence[Key]], list[Verdict]] = _accept_all
        scores: dict[str, list[float]] = {query_id: [] for query_id in positives}
        if matchers or self.scorer is not None:
            keys = [(query_id, i) for query_id, own in positives.items() for i in own]
            ids = {candidate.passage_id for order in orders.values() for candidate in order}
            text_judge = TextJudge(
                self.collection.queries,
                PassageReader(self.collection.passages, ids | {i for _, i in keys}),
                matchers,
                scorer=self.scorer,
                negative_below=self.recipe.negative_below,
                positive_above=self.recipe.positive_above,
                title_separator=self.recipe.title_separator,
            )
            judge = text_judge.judge
            for (query_id, _), score in zip(keys, text_judge.score(keys), strict=True):
                scores[query_id].append(score)
        selections = select(orders, judge, n=self.recipe.n_negatives, dropped=counts)
        return [
            self._record(query_id, positives[query_id], scores[query_id], selection)
            for query_id, selection in selections.items()
        ]

    def _record(
        self, query_id: str, positives: Sequence[str], scores: Sequence[float], chosen: Selection
    ) -> HardNegatives:
        negatives, relabelled = chosen.negatives, chosen.relabelled
        is_scored = self.scorer is not None
        teacher_scores = (*scores, *(candidate.teacher_score for candidate in relabelled))
        return HardNegatives(
            query_id,
            positive_ids=(*positives, *(candidate.passage_id for candidate in relabelled)),
            negative_ids=tuple(candidate.passage_id for candidate in negatives),
            negative_scores=tuple(candidate.score for candidate in negatives),
            positive_teacher_scores=teacher_scores if is_scored else None,
            negative_teacher_scores=tuple(c.teacher_score for c in negatives)
            if is_scored
            else None,
        )


def _accept_all(keys: Sequence[Key]) -> list[Verdict]:
    return [Verdict()] * len(keys)
