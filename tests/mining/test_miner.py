"""Ranks, scores and margins: by hand, by brute force, and beside sentence-transformers."""

from collections import Counter

import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.util import mine_hard_negatives
from tokenizers import Tokenizer, models, pre_tokenizers

from modeling_condenser.collection.passages import PassageIndex
from modeling_condenser.mining.miner import Candidate, draw_order, find_candidates
from modeling_condenser.mining.recipe import MiningRecipe


def recipe(**settings: object) -> MiningRecipe:
    return MiningRecipe("bm25", "collection", "out", n_negatives=None, **settings)  # type: ignore[arg-type]


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
    columns = {"_id": [str(j) for j in range(40)], "title": [""] * 40, "text": corpus}
    index = PassageIndex(Dataset.from_dict(columns))
    n_kept = 0
    for i, query in enumerate(queries):
        scores = {str(j): float(similarity[i, j]) for j in range(40)}
        positives = [str(j) for k, j in pairs if k == i]
        found = find_candidates(recipe(**settings), scores, positives, index, Counter())
        assert {corpus[int(candidate.passage_id)] for candidate in found} == kept[query]
        n_kept += len(found)
    assert 40 < n_kept < 400


def test_a_dropped_candidate_does_not_change_the_order_of_the_others():
    candidates = [Candidate(rank, "", 0.0) for rank in range(30, 201)]

    def ranks(query: str = "q1", *, every: int = 1, **changes: object) -> list[int]:
        drawn = draw_order(recipe(**changes), query, candidates[::every])
        return [candidate.rank for candidate in drawn]

    assert sorted(ranks()) == list(range(30, 201)) == ranks(sampling="top") != ranks()
    assert ranks() != ranks("q2")
    assert ranks()[:5] == [166, 189, 99, 142, 60]  # as in earlier versions
    assert ranks(every=2) == [rank for rank in ranks() if rank % 2 == 0]


def test_passages_are_found_by_id_and_equal_texts_have_equal_content():
    ids = list("abcdefg")
    texts = ["same", "other", "same", "same ", "", "", ""]
    titles = ["", "", "title", "", "x", "y", "x"]
    index = PassageIndex(Dataset.from_dict({"_id": ids, "title": titles, "text": texts}))
    assert index.rows(["g", "a", "d", "g"]).tolist() == [6, 0, 3, 6]
    assert index.read(["c", "a", "c"]) == {"c": ("title", "same"), "a": ("", "same")}
    assert index.read([]) == {}
    contents = dict(zip(ids, index.content.tolist(), strict=True))
    equal = {(x, y) for x in ids for y in ids if x < y and contents[x] == contents[y]}
    assert equal == {("a", "c"), ("e", "g")}  # without a text, the title counts
    with pytest.raises(ValueError, match="no passage 'z'"):
        index.rows(["a", "z"])
