"""Folds of judged questions, and maps that are judged by questions of other folds."""

from statistics import fmean

import numpy as np
import pytest

from modeling_condenser.adaptation.cross_validation import (
    MapEvaluator,
    cross_validate,
    find_named,
    group_by_passage,
    group_questions,
    make_folds,
)
from modeling_condenser.collection.load import load_collection
from tests.adaptation.making import judged, store, unit
from tests.publishing.making import write_collection


def test_near_copies_and_questions_of_a_passage_are_grouped():
    texts = ["What is flu?", "what is FLU", "flu, what is", "What causes flu?", "flu shots", "pain"]
    groups = group_questions(texts)
    assert groups[0] == groups[1] == groups[2]
    assert len(set(groups)) == 4
    queries = judged(np.ones((6, 2)), [[5], [6], [7], [7], [9], [8, 9]])
    together = group_by_passage(groups, queries)
    assert together[0] == together[3] and together[4] == together[5]  # 0 and 2 are copies
    assert len(set(together)) == 2


def test_a_group_is_in_one_fold_and_folds_are_of_equal_size():
    groups = np.repeat(np.arange(30), 2)
    folds = make_folds(groups, seed=3)
    assert (folds[::2] == folds[1::2]).all()
    assert np.bincount(folds).tolist() == [12] * 5
    assert not np.array_equal(folds, make_folds(groups, seed=4))


def test_named_questions_are_those_whose_passage_another_fold_has():
    queries = judged(np.ones((5, 2)), [[7], [7], [8], [8], [9, 7]])
    assert find_named(np.array([0, 1, 2, 2, 3]), queries).tolist() == [1, 1, 0, 0, 1]


def test_a_question_is_ranked_by_a_map_of_other_folds(tmp_path):
    random = np.random.default_rng(0)
    passages = unit(random.normal(size=(120, 8)))
    turn = np.linalg.qr(random.normal(size=(8, 8)))[0].astype(np.float32)
    rows = [{"_id": f"p{i}", "title": "", "text": f"text {i}"} for i in range(120)]
    asked = [{"_id": f"q{i}", "text": f"question {i}"} for i in range(60)]
    pairs = [(f"q{i}", f"p{i}", 1) for i in range(60)]
    folder = write_collection(tmp_path / "c", rows, asked, train=pairs)
    collection = load_collection(folder, split="train")
    embeddings, folds = store(passages, tmp_path), make_folds(np.arange(60))

    def measure(vectors):
        evaluator = MapEvaluator(collection, vectors, {}, embeddings)
        [after] = cross_validate(evaluator, evaluator.queries(), folds, [0.01], use="alone")
        return [fmean(figures["alone"].values()) for figures in (evaluator.measure(None), after)]

    before, after = measure(passages[:60] @ turn)
    assert after > before + 0.5
    # What only the judged questions themselves could teach is not in the figures.
    assert measure(unit(random.normal(size=(60, 8))))[1] < 0.2


def test_a_passage_that_is_the_query_is_not_learned_from(tmp_path):
    passages = [{"_id": f"p{i}", "title": "", "text": f"text {i}"} for i in range(6)]
    asked = [{"_id": name, "text": "text"} for name in ("p0", "p1", "q")]
    pairs = [("p0", "p3", 1), ("p1", "p1", 1), ("q", "p4", 1)]  # p1 is another text than its query
    folder = write_collection(tmp_path / "c", passages, asked, train=pairs)
    collection = load_collection(folder, split="train")
    vectors = unit(np.random.default_rng(0).normal(size=(9, 4)))
    bm25 = {"p0": {"p0": 9.0, "p3": 2.0, "p5": 1.0}, "p1": {"p1": 3.0}}
    queries = MapEvaluator(collection, vectors[6:], bm25, store(vectors[:6], tmp_path)).queries()
    assert queries.excluded == [[0], [], []]
    assert queries.positives == [[3], [1], [4]]
    assert queries.bm25[0, :2].tolist() == [3, 5] and queries.bm25_scores[0, 0] == pytest.approx(
        2.5
    )
    assert 0 not in queries.dense[0, :5] and queries.dense[1, :6].tolist().count(0) == 1
    assert queries.select([2, 0]).excluded == [[], [0]]
