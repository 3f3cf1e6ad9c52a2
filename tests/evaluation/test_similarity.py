"""Correlations, triplets and their tests: scipy, brute force and enumeration as sources."""

import csv
import gzip
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from modeling_condenser.evaluation import significance
from modeling_condenser.evaluation.similarity import (
    compare_spearman,
    evaluate_graded_pairs,
    evaluate_triplets,
    pair_similarities,
    read_graded_pairs,
    read_triplets,
    spearman_interval,
)


def graded(n: int, *, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Similarities, and scores in steps of a half with many ties, as those of STS-b."""
    rng = np.random.default_rng(seed)
    truth = rng.random(n)
    return truth + noise * rng.normal(size=n), np.round(truth * 10) / 2


def test_similarities_are_those_of_the_definitions() -> None:
    first = np.array([[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]], dtype=np.float32)
    second = np.array([[1.0, 1.0], [-3.0, -4.0], [1.0, 0.0]], dtype=np.float32)
    by_name = {
        name: pair_similarities(first, second, similarity=name).tolist()
        for name in ("cosine", "dot", "euclidean")
    }
    assert by_name["cosine"] == pytest.approx([2**-0.5, -1.0, 0.0])
    assert by_name["dot"] == [1.0, -25.0, 0.0]
    assert by_name["euclidean"] == [-1.0, -10.0, -1.0]


def test_correlations_are_scipys() -> None:
    for n, noise in ((2, 0.1), (7, 0.5), (300, 0.2)):
        similarities, scores = graded(n, noise=noise)
        found = evaluate_graded_pairs(similarities, scores).means
        assert found["Spearman"] == pytest.approx(stats.spearmanr(similarities, scores).statistic)
        assert found["Pearson"] == pytest.approx(stats.pearsonr(similarities, scores).statistic)


def test_triplets_are_right_where_the_positive_is_nearer() -> None:
    anchors = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    positives = np.array([[0.0, 2.0], [1.0, 0.0], [0.0, 9.0], [1.0, 1.0]])
    negatives = np.array([[1.0, 1.0], [0.0, 1.0], [0.1, 1.0], [1.0, 1.0]])
    cosine = evaluate_triplets(anchors, positives, negatives, similarity="cosine")
    # The last is a tie, which counts as wrong.
    assert cosine.per_query["triplet accuracy"] == {"0": 1.0, "1": 0.0, "2": 1.0, "3": 0.0}
    assert cosine.means == {"triplet accuracy": 0.5}
    euclidean = evaluate_triplets(anchors, positives, negatives, similarity="euclidean")
    assert euclidean.means == {"triplet accuracy": 0.0}


def test_the_bootstrap_interval_is_that_of_drawing_pairs_and_ranking_anew() -> None:
    similarities, scores = graded(60, noise=0.3)
    rng = np.random.default_rng(9)
    draws = rng.integers(60, size=(3000, 60))
    naive = [stats.spearmanr(similarities[d], scores[d]).statistic for d in draws]
    low, high = spearman_interval(similarities, scores)
    assert (low, high) == pytest.approx(tuple(np.percentile(naive, [2.5, 97.5])), abs=0.015)
    assert low < evaluate_graded_pairs(similarities, scores).means["Spearman"] < high


def naive_swap_p(a: np.ndarray, b: np.ndarray, scores: np.ndarray) -> float:
    """The permutation test by enumeration, with numpy's correlation."""
    ranks = [stats.rankdata(x) for x in (a, b, scores)]

    def difference(swapped: tuple[int, ...]) -> float:
        mask = np.array(swapped, dtype=bool)
        first, second = np.where(mask, ranks[1], ranks[0]), np.where(mask, ranks[0], ranks[1])
        return np.corrcoef(first, ranks[2])[0, 1] - np.corrcoef(second, ranks[2])[0, 1]

    observed = abs(difference((0,) * len(a)))
    swaps = product((0, 1), repeat=len(a))
    return float(np.mean([abs(difference(s)) >= observed - 1e-12 for s in swaps]))


@pytest.mark.parametrize("seed", range(2))
def test_few_pairs_get_the_exact_p_value(seed: int) -> None:
    a, scores = graded(9, noise=0.1, seed=seed)
    b = np.random.default_rng(100 + seed).random(9)
    comparison = compare_spearman(a, b, scores)
    assert comparison.p_value == pytest.approx(naive_swap_p(a, b, scores))
    assert comparison.mean_system == pytest.approx(stats.spearmanr(a, scores).statistic)
    assert comparison.mean_baseline == pytest.approx(stats.spearmanr(b, scores).statistic)
    assert comparison.difference == comparison.mean_system - comparison.mean_baseline


def test_many_pairs_come_near_the_exact_p_value(monkeypatch: pytest.MonkeyPatch) -> None:
    a, scores = graded(13, noise=0.3)
    b = np.random.default_rng(1).random(13)
    exact = compare_spearman(a, b, scores)  # all 8,192 swaps
    monkeypatch.setattr(significance, "N_RESAMPLES", 8000)
    sampled = compare_spearman(a, b, scores)
    assert sampled.p_value == pytest.approx(exact.p_value, abs=0.015)
    assert sampled.p_value != compare_spearman(a, b, scores, seed=1).p_value
    assert sampled == compare_spearman(a, b, scores)


def test_systems_of_one_order_do_not_differ() -> None:
    similarities, scores = graded(40, noise=0.2)
    comparison = compare_spearman(np.exp(similarities), similarities, scores)
    assert comparison.p_value == 1.0
    assert comparison.interval == (0.0, 0.0)
    assert comparison.difference == 0.0


def test_equal_similarities_have_no_correlation() -> None:
    with pytest.raises(ValueError, match="all similarities are equal"):
        evaluate_graded_pairs(np.ones(3), np.arange(3.0))


PAIRS = [
    ("A girl, styling her hair.", 'He said "no".', 2.5),
    ("None", "東京\u2028大学", 0.0),
    ("1984", "A plane\nis taking off.", 5.0),
]


def write_csv(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_graded_pairs_are_read_from_csv_and_json_lines(tmp_path: Path) -> None:
    rows = [[i, score, second, first] for i, (first, second, score) in enumerate(PAIRS)]
    table = write_csv(tmp_path / "test.csv", ["n", "similarity", "b", "a"], rows)
    columns = {"sentence1": "a", "sentence2": "b", "score": "similarity"}
    assert read_graded_pairs(table, columns=columns) == PAIRS
    path = tmp_path / "test.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(
            json.dumps(dict(zip(("sentence1", "sentence2", "score"), pair, strict=True))) + "\n"
            for pair in PAIRS
        )
    assert read_graded_pairs(path) == PAIRS


def test_the_benchmarks_own_files_have_no_header_and_mean_nothing_by_quotes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sts-test.csv"
    path.write_text(
        'main-captions\tMSRvid\t2012test\t0024\t2.500\tA "girl" is, styling\tA girl is "brushing\n'
        "main-news\theadlines\t2016\t0001\t5\tNone\tTwo.\tlicence\thttp://x\n"
    )
    assert read_graded_pairs(path) == [
        ('A "girl" is, styling', 'A girl is "brushing', 2.5),
        ("None", "Two.", 5.0),
    ]


@pytest.mark.parametrize(
    "header", [["anchor", "positive", "negative"], ["Sentence1", "Sentence2", "Sentence3"]]
)
def test_triplets_are_read_with_either_header(tmp_path: Path, header: list[str]) -> None:
    rows = [["a, b", "c", "d"], ['"e"', "f\ng", ""]]
    path = write_csv(tmp_path / "test.csv", header, rows)
    assert read_triplets(path) == [("a, b", "c", "d"), ('"e"', "f\ng", "")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence1,sentence2\na,b\n", "has no column 'score', only sentence1, sentence2"),
        (
            "sentence1,sentence2,score\na,b,1\na,b,high\n",
            "the score 'high' of a pair is not a number",
        ),
        ("sentence1,sentence2,score\n", "has no rows"),
        ("g\tf\ty\t1\t2.5\ta\tb\ng\tf\ty\t2\t2.5\ta\n", "has null values"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "test.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_graded_pairs(tmp_path / "test.csv")
