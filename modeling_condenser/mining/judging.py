"""Judging: candidates in the order they are drawn in, the negatives among them out, by their texts.

Reading a passage, and above all scoring it with a cross-encoder, costs far more than finding it. So
candidates are judged only until a query has as many negatives as it is to have: with 30 negatives
from the first 200 passages, some 30 are scored and not 200.
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
from .teacher import Teacher

ANSWER, TEACHER, RELABELLED = "answer", "cross_encoder", "relabelled_as_positive"
TEXT_FILTERS = (ANSWER, TEACHER, RELABELLED)
_BATCH_PAIRS = 10_000  # whose texts are in memory at once

Pair = tuple[str, str]
"""Query id and passage id."""


class Verdict(NamedTuple):
    """What a text says about a candidate.

    Attributes:
        reason: why it is no negative; None if it is one.
        teacher_score: the cross-encoder's; NaN without one.
    """

    reason: str | None = None
    teacher_score: float = math.nan


class Judged(NamedTuple):
    """A candidate, and the cross-encoder's score of it; NaN without one."""

    candidate: Candidate
    teacher_score: float


@dataclass(frozen=True)
class Selection:
    """What became of a query's candidates.

    Attributes:
        taken: the negatives, in the order of their ranks.
        relabelled: those that the cross-encoder takes for positives, in the same order.
    """

    taken: list[Judged] = field(default_factory=list)
    relabelled: list[Judged] = field(default_factory=list)


class PassageTexts:
    """Titles and texts of passages that are known beforehand.

    Args:
        passages: columns `_id`, `title`, `text`.
        ids: of the passages to be read; only their rows are kept in memory.

    Raises:
        ValueError: an id that no passage has.
    """

    def __init__(self, passages: Dataset, ids: Iterable[str]) -> None:
        self._table = passages.select_columns(["title", "text"]).with_format("arrow")
        self._rows = find_rows(passages, ids)

    def read(self, ids: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Passage id -> title and text."""
        rows = sorted((self._rows[passage_id], passage_id) for passage_id in set(ids))
        if not rows:
            return {}
        # In the order of the file, which is several times as fast as in any other.
        table = self._table[[row for row, _ in rows]]
        titles, texts = table["title"].to_pylist(), table["text"].to_pylist()
        return {rows[i][1]: (titles[i], texts[i]) for i in range(len(rows))}


@dataclass(frozen=True)
class TextJudge:
    """Judges pairs of a query and a passage by their texts.

    Attributes:
        queries: query id -> text.
        texts: of the passages.
        matchers: query id -> finds its answers, for queries that have any; a passage with an answer
            is no negative (Karpukhin et al. 2020, section 3.2).
        teacher: a cross-encoder.
        negative_below: a negative is a passage that the cross-encoder gives a lower probability of
            being relevant (RocketQA, Qu et al. 2020); None for any.
        positive_above: a passage with a higher one is a positive; None for none.
        title_separator: stands between title and text.
    """

    queries: Mapping[str, str]
    texts: PassageTexts
    matchers: Mapping[str, AnswerMatcher] = field(default_factory=dict)
    teacher: Teacher | None = None
    negative_below: float | None = None
    positive_above: float | None = None
    title_separator: str = " "

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict for each pair, in their order."""
        verdicts: list[Verdict] = []
        for batch in _batches(pairs):
            passages = self.texts.read(passage_id for _, passage_id in batch)
            answered = [
                query_id in self.matchers and self.matchers[query_id].is_in(passages[passage_id][1])
                for query_id, passage_id in batch
            ]
            left = [
                pair for pair, has_answer in zip(batch, answered, strict=True) if not has_answer
            ]
            scored = iter(self._score(left, passages))
            verdicts += [
                Verdict(ANSWER) if has_answer else self._verdict(next(scored))
                for has_answer in answered
            ]
        return verdicts

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """The cross-encoder's scores, one for each pair; NaN without one."""
        scores: list[float] = []
        for batch in _batches(pairs):
            scores += self._score(batch, self.texts.read(passage_id for _, passage_id in batch))
        return scores

    def _score(self, pairs: Sequence[Pair], passages: Mapping[str, tuple[str, str]]) -> list[float]:
        if self.teacher is None:
            return [math.nan] * len(pairs)
        return self.teacher.score(
            [(self.queries[q], join_title(*passages[p], self.title_separator)) for q, p in pairs]
        ).tolist()

    def _verdict(self, score: float) -> Verdict:
        if self.teacher is None:
            return Verdict()
        relevance = self.teacher.probability(score)
        if self.positive_above is not None and relevance > self.positive_above:
            return Verdict(RELABELLED, score)
        if self.negative_below is not None and relevance >= self.negative_below:
            return Verdict(TEACHER, score)
        return Verdict(None, score)


def join_title(title: str, text: str, separator: str) -> str:
    """A passage as one text."""
    return f"{title}{separator}{text}" if title else text


def _batches(pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
    for first in range(0, len(pairs), _BATCH_PAIRS):
        yield pairs[first : first + _BATCH_PAIRS]


def select(
    orders: Mapping[str, Sequence[Candidate]],
    judge: Callable[[Sequence[Pair]], list[Verdict]],
    *,
    n: int | None,
    dropped: Counter[str],
) -> dict[str, Selection]:
    """Take each query's first n candidates that are negatives.

    Args:
        orders: query id -> candidates in the order in which they are taken.
        judge: gives one verdict for each pair.
        n: how many negatives a query is to have; None for all.
        dropped: reason -> number of candidates it dropped; those whose turn came before the query
            had its negatives are added.

    Returns:
        Query id -> what was taken, for all of them.
    """
    selections = {query_id: Selection() for query_id in orders}
    done = dict.fromkeys(orders, 0)
    waiting = [query_id for query_id, order in orders.items() if order]
    while waiting:
        batch: list[tuple[str, Candidate]] = []
        for query_id in waiting:
            start, order = done[query_id], orders[query_id]
            end = len(order)
            if n is not None:
                # Twice as many in each round, so that there are few rounds and little is in vain.
                end = min(end, start + max(n - len(selections[query_id].taken), start))
            batch += [(query_id, candidate) for candidate in order[start:end]]
            done[query_id] = end
        verdicts = judge([(query_id, candidate.passage_id) for query_id, candidate in batch])
        for (query_id, candidate), verdict in zip(batch, verdicts, strict=True):
            if n is None or len(selections[query_id].taken) < n:
                _sort_out(candidate, verdict, selections[query_id], dropped)
        waiting = [
            query_id
            for query_id in waiting
            if done[query_id] < len(orders[query_id])
            and (n is None or len(selections[query_id].taken) < n)
        ]
    for selection in selections.values():
        selection.taken.sort(key=lambda judged: judged.candidate.rank)
        selection.relabelled.sort(key=lambda judged: judged.candidate.rank)
    return selections


def _sort_out(
    candidate: Candidate, verdict: Verdict, selection: Selection, dropped: Counter[str]
) -> None:
    judged = Judged(candidate, verdict.teacher_score)
    if verdict.reason is None:
        selection.taken.append(judged)
        return
    dropped[verdict.reason] += 1
    if verdict.reason == RELABELLED:
        selection.relabelled.append(judged)
