"""Judging: the same negatives as if every candidate had been judged, with fewer judged."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from modeling_condenser.collection.answers import AnswerMatcher
from modeling_condenser.mining import judging
from modeling_condenser.mining.candidates import Candidate
from modeling_condenser.mining.judging import PassageReader, TextJudge, Verdict, select
from tests.mining.making import make_passages

REASONS = [None, None, "answer", "cross_encoder", "relabelled_as_positive"]


def make_orders(rng: random.Random) -> dict[str, list[Candidate]]:
    orders = {}
    for i in range(12):
        ranks = rng.sample(range(1, 60), rng.choice([0, 1, 5, 40]))
        orders[f"q{i}"] = [Candidate(rank, f"p{rank}", float(-rank)) for rank in ranks]
    return orders


@pytest.mark.parametrize(("seed", "n"), [(0, 1), (1, 3), (2, 8), (3, None)])
def test_selection_equals_judging_one_candidate_after_another(seed, n):
    rng = random.Random(seed)
    orders = make_orders(rng)
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


def test_answers_are_looked_for_in_texts_and_not_in_titles_of_the_querys_own_answers(monkeypatch):
    monkeypatch.setattr(judging, "_BATCH", 2)  # so that there are several batches
    passages = make_passages(
        {
            "p1": "The capital is Paris.",
            "p2": "Comparisons are odious.",
            "p3": "Nothing",
            "p4": "paris",
            "p5": "Rome",
        },
        titles={"p3": "Paris"},
    )
    texts = PassageReader(passages, [f"p{i}" for i in range(1, 6)])
    matchers = {"q1": AnswerMatcher(["Paris"]), "q2": AnswerMatcher(["Rome", "Roma"])}
    judge = TextJudge({"q1": "", "q2": "", "q3": ""}, texts, matchers)
    pairs = [("q1", f"p{i}") for i in range(1, 6)] + [("q2", "p1"), ("q2", "p5"), ("q3", "p5")]
    reasons = [verdict.reason for verdict in judge.judge(pairs)]
    assert reasons == ["answer", None, None, "answer", None, None, "answer", None]


def test_texts_are_read_in_any_order_with_repetitions_and_an_unknown_id_is_refused():
    passages = make_passages({f"p{i}": f"text {i}" for i in range(9)}, titles={"p3": "third"})
    texts = PassageReader(passages, ["p7", "p3", "p0", "p3"])
    assert texts.read(["p7", "p3", "p7"]) == {"p3": ("third", "text 3"), "p7": ("", "text 7")}
    assert texts.read([]) == {}
    with pytest.raises(ValueError, match="'px'"):
        PassageReader(passages, ["p1", "px"])
