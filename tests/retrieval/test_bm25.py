"""BM25 against the formula, written out."""

import math
from collections import Counter

import pytest
from datasets import Dataset

from modeling_condenser.retrieval.bm25 import Bm25

PASSAGES = {
    "p1": ("cats", "grey cats chase grey mice"),
    "p2": ("", "dogs chase cats"),
    "p3": ("mice", "small mice sleep"),
    "p4": ("", "trains leave stations every hour during daytime"),
}


def make_passages(passages: dict[str, tuple[str, str]]) -> Dataset:
    rows = [{"_id": i, "title": title, "text": text} for i, (title, text) in passages.items()]
    return Dataset.from_list(rows)


def lucene_bm25(query: str, *, k1: float, b: float) -> dict[str, float]:
    """Score PASSAGES by Lucene's BM25 (Kamphuis et al. 2020, "Lucene (accurate)")."""
    words = {i: f"{title} {text}".split() for i, (title, text) in PASSAGES.items()}
    mean_length = sum(map(len, words.values())) / len(words)
    scores = dict.fromkeys(words, 0.0)
    for term in query.split():
        frequency = sum(term in document for document in words.values())
        idf = math.log(1 + (len(words) - frequency + 0.5) / (frequency + 0.5))
        for i, document in words.items():
            count = Counter(document)[term]
            if count:
                norm = k1 * (1 - b + b * len(document) / mean_length)
                scores[i] += idf * count / (count + norm)
    return {i: score for i, score in scores.items() if score > 0}


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75), (0.0, 0.0)])
def test_scores_follow_the_formula(k1: float, b: float) -> None:
    queries = {"q1": "grey cats", "q2": "mice mice chase", "q3": "hour"}
    run = Bm25(make_passages(PASSAGES), k1=k1, b=b).search(queries)
    for query_id, query in queries.items():
        assert run[query_id] == pytest.approx(lucene_bm25(query, k1=k1, b=b), rel=1e-6)


def test_stopwords_and_case_do_not_count() -> None:
    bm25 = Bm25(make_passages(PASSAGES))
    run = bm25.search({"plain": "dogs cats", "dressed": "The DOGS and the Cats", "only": "the and"})
    assert run["dressed"] == run["plain"]
    assert run["only"] == {}


def test_words_that_no_passage_holds_find_nothing() -> None:
    assert Bm25(make_passages(PASSAGES)).search({"q": "quantum zebra", "e": ""}) == {
        "q": {},
        "e": {},
    }


def test_ties_at_the_cut_off_go_to_the_lower_id() -> None:
    passages = dict.fromkeys("dbac", ("", "same words here")) | {"e": ("", "other")}
    run = Bm25(make_passages(passages)).search({"q": "words"}, depth=2)
    assert list(run["q"]) == ["a", "b"]


def test_wrong_arguments_are_refused() -> None:
    passages = make_passages(PASSAGES)
    with pytest.raises(ValueError, match="0 passages to index"):
        Bm25(passages.select([]))
    with pytest.raises(ValueError, match="b=1.4: expected k1 >= 0 and 0 <= b <= 1"):
        Bm25(passages, b=1.4)
    with pytest.raises(ValueError, match="depth 0: expected at least 1"):
        Bm25(passages).search({"q": "cats"}, depth=0)
