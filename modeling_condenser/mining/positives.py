"""Positives: judgements in, or a run and answer strings; each query's positive passages out."""

from collections import Counter
from collections.abc import Mapping, Sequence

from modeling_condenser.collection.answers import AnswerMatcher
from modeling_condenser.collection.collection import Collection
from modeling_condenser.retrieval.runs import Run, rank_passages

from .candidates import Candidate
from .judging import ANSWER, Pair, PassageTexts, TextJudge, Verdict, select

Positives = Mapping[str, tuple[str, ...]]
"""Query id -> ids of its positives, at least one."""


def judged_positives(collection: Collection) -> dict[str, tuple[str, ...]]:
    """The passages graded above 0, of the queries that have any, in the collection's order."""
    positives = {}
    for query_id in collection.queries:
        grades = collection.qrels.get(query_id, {})
        relevant = tuple(passage_id for passage_id, grade in grades.items() if grade > 0)
        if relevant:
            positives[query_id] = relevant
    return positives


def answered_positives(
    collection: Collection, run: Run, matchers: Mapping[str, AnswerMatcher]
) -> dict[str, tuple[str, ...]]:
    """The first passage of a run that holds an answer (Karpukhin et al. 2020, section 4.2).

    Args:
        collection: whose passages the run names.
        run: of the queries.
        matchers: query id -> finds its answers.

    Returns:
        Query id -> the passage's id; a query whose passages hold none is left out, as in DPR.
    """
    orders = {
        query_id: [
            Candidate(rank, *found)
            for rank, found in enumerate(rank_passages(run.get(query_id, {})), start=1)
        ]
        for query_id in matchers
    }
    ids = {candidate.passage_id for order in orders.values() for candidate in order}
    judge = TextJudge(collection.queries, PassageTexts(collection.passages, ids), matchers)

    def holds_answer(pairs: Sequence[Pair]) -> list[Verdict]:
        reasons = [verdict.reason for verdict in judge.judge(pairs)]
        return [Verdict(None if reason == ANSWER else "no answer") for reason in reasons]

    taken = select(orders, holds_answer, n=1, dropped=Counter())
    return {
        query_id: (selection.taken[0].candidate.passage_id,)
        for query_id, selection in taken.items()
        if selection.taken
    }
