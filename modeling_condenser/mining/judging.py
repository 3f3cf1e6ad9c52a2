"""Decide by their texts which candidates are negatives.

Reading a passage, and above all scoring it with a cross-encoder, costs far more than finding it. So
candidates are judged only until a query has enough negatives: for 30 negatives from the first 200
passages, some 30 are scored and not 200.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from datasets import Dataset

from modeling_condenser.collection.answers import AnswerMatcher
from modeling_condenser.collection.lookup import find_rows

from .candidates import Candidate
from .cross_encoder import RelevanceScorer

ANSWER, CROSS_ENCODER, RELABELLED = "answer", "cross_encoder", "relabelled_as_positive"
TEXT_FILTERS = (ANSWER, CROSS_ENCODER, RELABELLED)
_BATCH = 10_000  # query-passage pairs whose texts are in memory at once

Key = tuple[str, str]
"""Query id and passage id."""


class Verdict(NamedTuple):
    """Why a candidate is not a negative (None if it is one), and the cross-encoder's score."""

    reason: str | None = None
    score: float = math.nan


@dataclass(frozen=True)
class Selection:
    """A query's negatives, and candidates that the cross-encoder considers positives, by rank."""

    negatives: list[Candidate] = field(default_factory=list)
    relabelled: list[Candidate] = field(default_factory=list)


class PassageReader:
    """Reads titles and texts of passages by id.

    Args:
        passages: columns `_id`, `title`, `text`.
        ids: of all passages that will be read; memory grows with their number.

    Raises:
        ValueError: no passage has one of the ids.
    """

    def __init__(self, passages: Dataset, ids: Iterable[str]) -> None:
        self._table = passages.select_columns(["title", "text"]).with_format("arrow")
        self._rows = find_rows(passages, ids)

    def read(self, ids: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Passage id -> title and text."""
        # Reading in the order of the file is several times as fast as in any other.
        rows = sorted((self._rows[passage_id], passage_id) for passage_id in set(ids))
        if not rows:
            return {}
        table = self._table[[row for row, _ in rows]]
        texts = zip(table["title"].to_pylist(), table["text"].to_pylist(), strict=True)
        return {passage_id: pair for (_, passage_id), pair in zip(rows, texts, strict=True)}


@dataclass(frozen=True)
class TextJudge:
    """Judges candidates by their texts.

    Attributes:
        queries: query id -> text.
        passages: reads their texts.
        matchers: query id -> finds its answers, for queries that have any. A passage with an answer
            is not a negative (Karpukhin et al. 2020, section 3.2).
        scorer: a cross-encoder.
        negative_below: a negative must have a lower probability of being relevant (RocketQA, Qu et
            al. 2020); None for any.
        positive_above: a passage with a higher probability is a positive; None for none.
        title_separator: between title and text.
    """

    queries: Mapping[str, str]
    passages: PassageReader
    matchers: Mapping[str, AnswerMatcher] = field(default_factory=dict)
    scorer: RelevanceScorer | None = None
    negative_below: float | None = None
    positive_above: float | None = None
    title_separator: str = " "

    def judge(self, keys: Sequence[Key]) -> list[Verdict]:
        """One verdict for each query and passage."""
        verdicts: list[Verdict] = []
        for batch in _batches(keys):
            texts = self.passages.read(passage_id for _, passage_id in batch)
            answered = {
                (query_id, passage_id)
                for query_id, passage_id in batch
                if query_id in self.matchers and self.matchers[query_id].is_in(texts[passage_id][1])
            }
            rest = [key for key in batch if key not in answered]
            scores = dict(zip(rest, self._score(rest, texts), strict=True))
            verdicts += [
                Verdict(ANSWER) if key in answered else self._verdict(scores[key]) for key in batch
            ]
        return verdicts

    def score(self, keys: Sequence[Key]) -> list[float]:
        """The cross-encoder's scores, one for each query and passage; NaN without one."""
        scores: list[float] = []
        for batch in _batches(keys):
            scores += self._score(batch, self.passages.read(i for _, i in batch))
        return scores

    def _score(self, keys: Sequence[Key], texts: Mapping[str, tuple[str, str]]) -> list[float]:
        if self.scorer is None:
            return [math.nan] * len(keys)
        return self.scorer.score(
            [(self.queries[q], join_title(*texts[p], self.title_separator)) for q, p in keys]
        ).tolist()

    def _verdict(self, score: float) -> Verdict:
        if self.scorer is None:
            return Verdict()
        relevance = self.scorer.probability(score)
        if self.positive_above is not None and relevance > self.positive_above:
            return Verdict(RELABELLED, score)
        if self.negative_below is not None and relevance >= self.negative_below:
            return Verdict(CROSS_ENCODER, score)
        return Verdict(None, score)


def join_title(title: str, text: str, separator: str) -> str:
    """A passage as one text."""
    return f"{title}{separator}{text}" if title else text


def _batches(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    for first in range(0, len(keys), _BATCH):
        yield keys[first : first + _BATCH]


def select(
    orders: Mapping[str, Sequence[Candidate]],
    judge: Callable[[Sequence[Key]], list[Verdict]],
    *,
    n: int | None,
    dropped: Counter[str],
) -> dict[str, Selection]:
    """Select each query's first n candidates that are negatives.

    Args:
        orders: query id -> candidates in the order in which they become negatives.
        judge: gives one verdict for each query and passage.
        n: number of negatives of a query; None for all.
        dropped: reason -> number of candidates dropped before the query had its negatives; these
            are added.

    Returns:
        Query id -> selection, for all queries.
    """
    selections = {query_id: Selection() for query_id in orders}
    done = dict.fromkeys(orders, 0)
    waiting = [query_id for query_id, order in orders.items() if order]
    while waiting:
        batch: list[tuple[str, Candidate]] = []
        for query_id in waiting:
            start, end = done[query_id], len(orders[query_id])
            if n is not None:
                # At least as many as before, so that there are few rounds and little waste.
                end = min(end, start + max(n - len(selections[query_id].negatives), start))
            batch += [(query_id, candidate) for candidate in orders[query_id][start:end]]
            done[query_id] = end
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
        waiting = [
            query_id
            for query_id in waiting
            if done[query_id] < len(orders[query_id]) and len(selections[query_id].negatives) != n
        ]
    for selection in selections.values():
        selection.negatives.sort()
        selection.relabelled.sort()
    return selections
