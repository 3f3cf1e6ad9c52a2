"""Selecting negatives in rounds gives what judging one candidate after another gives."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from modeling_condenser.mining.candidates import Candidate
from modeling_condenser.mining.miner import Verdict, select

REASONS = [None, None, "answer", "cross_encoder", "relabelled_as_positive"]


@pytest.mark.parametrize(("seed", "n"), [(0, 1), (2, 8), (3, None)])
def test_selection_equals_judging_one_candidate_after_another(seed, n):
    rng = random.Random(seed)
    orders = {}
    for i in range(12):
        ranks = rng.sample(range(1, 60), rng.choice([0, 1, 5, 40]))
        orders[f"q{i}"] = [Candidate(rank, f"p{rank}", float(-rank)) for rank in ranks]
    verdicts = {
        (query_id, candidate.passage_id): Verdict(rng.choice(REASONS), rng.random())
        for query_id, order in orders.items()
        for candidate in order
    }
    judged: list[tuple[str, str]] = []

    def judge(pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        judged.extend(pairs)
        return [verdicts[pair] for pair in pairs]

    dropped: Counter[str] = Counter()
    selections = select(orders, judge, n=n, dropped=dropped)
    expected_dropped: Counter[str] = Counter()
    needed = 0
    for query_id, order in orders.items():
        taken, relabelled = [], []
        for candidate in order:
            if n is not None and len(taken) == n:
                break
            needed += 1
            reason, score = verdicts[query_id, candidate.passage_id]
            if reason is None:
                taken.append((candidate.rank, score))
                continue
            expected_dropped[reason] += 1
            if reason == "relabelled_as_positive":
                relabelled.append((candidate.rank, score))
        own = selections[query_id]
        assert [(c.rank, c.teacher_score) for c in own.negatives] == sorted(taken)
        assert [(c.rank, c.teacher_score) for c in own.relabelled] == sorted(relabelled)
    assert list(selections) == list(orders)
    assert dropped == expected_dropped
    assert len(judged) == len(set(judged))
    assert needed <= len(judged) <= 2 * needed + len(orders)
