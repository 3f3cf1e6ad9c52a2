"""Ranks, scores and margins: by hand, by brute force, and beside sentence-transformers."""

from collections import Counter

import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.util import mine_hard_negatives
from tokenizers import Tokenizer, models, pre_tokenizers

from modeling_condenser.mining.miner import Candidate, draw_order, filter_candidates
from modeling_condenser.mining.recipe import MiningRecipe

SCORES = {"b": 9.0, "a": 9.0, "c": 7.5, "plus": 6.0, "d": 5.0, "e": 4.0, "f": -1.0}


def recipe(**settings: object) -> MiningRecipe:
    return MiningRecipe("bm25", "collection", "out", n_negatives=None, **settings)  # type: ignore[arg-type]


def ids(scores: dict[str, float], positives: list[str], **settings: object) -> list[str]:
    found = filter_candidates(recipe(**settings), scores, positives, dropped=Counter())
    return [candidate.passage_id for candidate in found]


def test_ranks_count_from_one_with_the_positive_and_scores_at_a_bound_are_kept():
    assert ids(SCORES, ["plus"]) == ["a", "b", "c", "d", "e", "f"]
    assert ids(SCORES, ["plus"], first_rank=2, last_rank=5) == ["b", "c", "d"]
    assert ids(SCORES, ["plus"], first_rank=8) == ids({}, ["plus"]) == []
    assert ids(SCORES, ["plus"], min_score=4.0, max_score=7.5) == ["c", "d", "e"]


def test_margins_are_from_the_lowest_score_of_a_positive_and_of_its_size():
    assert ids(SCORES, ["plus"], absolute_margin=1.0) == ["d", "e", "f"]
    assert ids(SCORES, ["plus"], relative_margin=0.2) == ["e", "f"]  # at most 4.8
    # A negative positive score: 10 % below -1 is -1.1, not -0.9.
    low = {"x": -0.95, "f": -1.0, "y": -1.05, "z": -1.2}
    assert ids(low, ["f"], relative_margin=0.1) == ["z"]
    assert ids(SCORES, ["b", "e"], absolute_margin=0.0) == ["f"]


@pytest.mark.parametrize(
    ("settings", "positives", "expected"),
    [
        (
            {"min_score": 4.5, "max_score": 8.0, "absolute_margin": 0.5, "relative_margin": 0.5},
            ["plus"],
            {
                "positive": 1,
                "same_text_as_positive": 1,
                "min_score": 1,
                "max_score": 2,
                "relative_margin": 1,
            },
        ),
        # A positive that was not found leaves nothing under a margin.
        (
            {"absolute_margin": 0.0, "relative_margin": 0.0},
            ["plus", "absent"],
            {"positive": 1, "same_text_as_positive": 1, "positive_not_found": 4},
        ),
    ],
)
def test_a_passage_counts_for_the_first_filter_that_drops_it(settings, positives, expected):
    dropped: Counter[str] = Counter()
    rules = recipe(last_rank=6, **settings)
    assert filter_candidates(rules, SCORES, positives, copies=["c"], dropped=dropped) == []
    assert dropped == expected


@pytest.mark.parametrize(
    "settings",
    [{"relative_margin": 0.3, "absolute_margin": 0.05}, {"max_score": 0.6, "min_score": 0.1}],
)
def test_margins_and_bounds_keep_what_sentence_transformers_keeps(settings):
    rng = np.random.default_rng(0)
    vocabulary = {f"w{i}": i for i in range(30)}
    tokenizer = Tokenizer(models.WordLevel({**vocabulary, "[UNK]": 30}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = rng.normal(0.15, 1.0, (31, 8)).astype(np.float32)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, weights)], device="cpu")
    corpus = [" ".join(f"w{j}" for j in rng.choice(30, 4, replace=False)) for _ in range(40)]
    queries = [" ".join(f"w{j}" for j in rng.choice(30, 3, replace=False)) for _ in range(12)]
    pairs = [(i, j) for i in range(12) for j in ([i, i + 12] if i % 3 == 0 else [i])]
    labelled = {"query": [queries[i] for i, _ in pairs], "answer": [corpus[j] for _, j in pairs]}
    further = {"range_max": 38, "num_negatives": 38, "output_format": "labeled-list"}
    mined = mine_hard_negatives(
        Dataset.from_dict(labelled), model, corpus=corpus, verbose=False, **further, **settings
    )
    kept = {query: set() for query in queries}
    for row in mined:
        negatives = zip(row["answer"], row["labels"], strict=True)
        kept[row["query"]] |= {text for text, label in negatives if not label}
    vectors = [model.encode(texts, normalize_embeddings=True) for texts in (queries, corpus)]
    similarity = (vectors[0] @ vectors[1].T).astype(float)  # (12, 40)
    n_kept = 0
    for i, query in enumerate(queries):
        scores = {str(j): float(similarity[i, j]) for j in range(40)}
        found = ids(scores, [str(j) for k, j in pairs if k == i], **settings)
        assert {corpus[int(passage)] for passage in found} == kept[query]
        n_kept += len(found)
    assert 40 < n_kept < 400


CANDIDATES = [Candidate(rank, f"p{rank}", -float(rank)) for rank in range(30, 201)]


def ranks(candidates: list[Candidate] = CANDIDATES, query_id: str = "q1", **changes) -> list[int]:
    return [candidate.rank for candidate in draw_order(recipe(**changes), query_id, candidates)]


def test_a_dropped_candidate_does_not_change_the_order_of_the_others():
    assert sorted(ranks()) == list(range(30, 201)) == ranks(sampling="top") != ranks()
    assert ranks() != ranks(query_id="q2")
    missing = {30, *range(31, 200, 2)}
    left = [candidate for candidate in CANDIDATES if candidate.rank not in missing]
    assert ranks(left) == [rank for rank in ranks() if rank not in missing]
    assert ranks([]) == []
