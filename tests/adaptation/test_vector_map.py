"""The map of vectors, against a loop over the equations."""

import numpy as np
import pytest
import torch

from modeling_condenser.adaptation.queries import Query
from modeling_condenser.adaptation.recipe import MapSettings
from modeling_condenser.adaptation.vector_map import (
    Teacher,
    apply_map,
    distillation_loss,
    draw,
    fit_maps,
    select_queries,
    whiten,
)

SETTINGS = MapSettings(
    teacher_temperature=0.3, temperature=0.05, contrast_weight=0.1, judged_weight=0.4
)


class Words:
    """Stands for BM25: the scores of each query's text are given."""

    def __init__(self, scores):
        self.given = scores

    def scores(self, query):
        return self.given[query]


def naive_loss(similarities, teacher, own, is_judged):
    total = 0.0
    for student, known, place, judged in zip(similarities, teacher, own, is_judged, strict=True):
        target = np.exp(known / 0.3) / np.exp(known / 0.3).sum()
        if judged:
            target = 0.6 * target + 0.4 * (np.arange(len(known)) == place)
        logits = student / 0.05
        log_p = logits - np.log(np.exp(logits).sum())
        total += (target * (np.log(target) - log_p)).sum()
        kept = [
            j for j in range(len(known)) if j == place or known[j] < 0.95 * max(known[place], 0)
        ]
        total += 0.1 * (np.log(np.exp(logits[kept]).sum()) - logits[place])
    return total / len(own)


def test_the_loss_is_that_of_the_equations():
    random = np.random.default_rng(0)
    similarities, teacher = random.uniform(-1, 1, (3, 6)), random.normal(size=(3, 6))
    teacher[0, 2] = teacher[0, 1] * 0.97 if teacher[0, 1] > 0 else 0.1
    own = np.array([1, 0, 5])
    given = similarities, teacher, own, np.array([True, False, False])
    found = distillation_loss(*map(torch.from_numpy, given), SETTINGS)
    assert found.item() == pytest.approx(naive_loss(*given), rel=1e-9)


def standardise(scores):
    return (scores - scores.mean()) / (scores.std() or 1)


def test_the_teacher_standardises_by_the_scores_of_all_passages():
    passages = unit(np.random.default_rng(2).normal(size=(50, 8)))
    words = Words({"a": np.arange(50.0), "b": np.zeros(50)})
    teacher = Teacher(words, passages, weight=0.25)
    queries, vectors = [Query("a", 49, "file"), Query("b", 0, "file")], passages[:2]
    kept, rows = select_queries(queries, vectors, teacher), np.array([3, 49])
    found = teacher.fuse(teacher.parts(["a", "b"], vectors, rows), kept.moments)
    lexical = [standardise(words.scores(text))[rows] for text in "ab"]
    dense = [standardise(vector @ passages.T)[rows] for vector in vectors]
    np.testing.assert_allclose(found, 0.25 * np.stack(lexical) + 0.75 * np.stack(dense), rtol=1e-4)


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def world():
    """Passages whose first 4 numbers say what BM25 sees, and whose other 12 hide it."""
    random = np.random.default_rng(0)
    meaning = unit(random.normal(size=(200, 4)))
    passages = unit(np.hstack([meaning, 2 * random.normal(size=(200, 12))]))
    vectors = unit(np.hstack([meaning, 2 * random.normal(size=(200, 12))]))
    queries = [Query(f"q{i}", i, "title" if i % 2 else "span") for i in range(200)]
    words = Words({f"q{i}": meaning[i] @ meaning.T for i in range(200)})
    return queries, vectors, Teacher(words, passages, weight=1.0)


def mean_rank(queries, vectors, passages):
    scores = vectors @ passages.T
    own = np.array([scores[i, query.passage] for i, query in enumerate(queries)])
    return (scores > own[:, None]).sum(axis=1).mean()


def test_a_map_learns_from_the_teacher_what_the_vectors_hide(world):
    queries, vectors, teacher = world
    training = select_queries(queries, vectors, teacher)
    assert len(training.queries) == 200  # BM25 ranks each own passage first
    half = training.without("title")
    assert {query.kind for query in half.queries} == {"span"}
    settings = MapSettings(steps=150, learning_rate=1e-2, whitening=0.0, scales=[1.0])
    [matrix] = fit_maps(half, teacher, settings)
    others = training.without("span")
    before = mean_rank(others.queries, others.vectors, teacher.passages)
    moved = apply_map(others.vectors, matrix), apply_map(teacher.passages, matrix)
    assert mean_rank(others.queries, *moved) < before / 2
    np.testing.assert_allclose(np.linalg.norm(moved[1], axis=1), 1, rtol=1e-5)
    [again] = fit_maps(half, teacher, settings)
    np.testing.assert_array_equal(matrix, again)


def test_judged_queries_fill_a_part_of_each_batch():
    random, settings = np.random.default_rng(0), MapSettings(batch_size=16, judged_share=0.25)
    is_judged = np.arange(40) < 3  # fewer than 4 places
    chosen = draw(random, is_judged, settings)
    assert is_judged[chosen].sum() == 4
    assert len(set(chosen[~is_judged[chosen]])) == 12
    assert len(draw(random, np.zeros(40, dtype=bool), settings)) == 16
    assert set(draw(random, is_judged[:5], settings)[:2]) == {3, 4}  # few made queries


def test_the_map_learns_judgements_that_the_teacher_does_not_know(world):
    queries, vectors, teacher = world
    blind = Teacher(Words({query.text: np.zeros(200) for query in queries}), teacher.passages, 1.0)
    judged = [query._replace(kind="judged") if query.passage % 2 else query for query in queries]
    training = select_queries(judged, vectors, blind)
    settings = MapSettings(steps=150, learning_rate=1e-2, whitening=0.0, scales=[1.0])
    [matrix] = fit_maps(training, blind, settings)
    others = [query for query in queries if not query.passage % 2]
    before = mean_rank(others, vectors[::2], teacher.passages)
    moved = apply_map(vectors[::2], matrix), apply_map(teacher.passages, matrix)
    assert mean_rank(others, *moved) < 0.8 * before


def test_each_scale_has_its_map_in_whitened_vectors(world):
    queries, vectors, teacher = world
    training = select_queries(queries, vectors, teacher)
    maps = fit_maps(training, teacher, MapSettings(steps=5, scales=[0.0, 1.0, 2.0]))
    np.testing.assert_allclose(maps[0], whiten(training.vectors, 0.5))
    np.testing.assert_allclose(maps[2] - maps[1], maps[1] - maps[0], atol=1e-5)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_whitening_makes_second_moments_a_power_of_what_they_were(power):
    random = np.random.default_rng(0)
    vectors = random.normal(size=(500, 6)) * [8, 4, 2, 1, 1, 0.5]
    before = np.linalg.eigvalsh(vectors.T @ vectors)
    moved = vectors @ whiten(vectors, power)
    after = np.linalg.eigvalsh(moved.T @ moved)
    np.testing.assert_allclose(after, before[-1] ** power * before ** (1 - power), rtol=1e-3)


def test_queries_that_nobody_can_answer_are_left_out():
    passages = unit(np.random.default_rng(1).normal(size=(60, 8)))
    words = Words({"lexical": np.eye(60)[0], "file": np.eye(60)[1], "neither": np.eye(60)[2]})
    queries = [Query("lexical", 0, "title"), Query("file", 5, "file"), Query("neither", 7, "title")]
    vectors = np.stack([-passages[0], -passages[5], -passages[7]])
    kept = select_queries(queries, vectors, Teacher(words, passages, weight=0.5))
    assert [query.text for query in kept.queries] == ["lexical", "file"]
    assert kept.hard.shape == (2, 16)
