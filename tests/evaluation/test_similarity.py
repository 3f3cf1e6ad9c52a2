"""Correlations, triplets and their tests: scipy, brute force and enumeration as sources."""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from modeling_condenser.evaluation.similarity import (
    GradedEvaluation,
    evaluate_graded_pairs,
    evaluate_triplets,
    read_items,
)


def graded(n: int, *, noise: float, seed: int = 0) -> GradedEvaluation:
    """Similarities, and scores in steps of a half with many ties, as those of STS-b."""
    truth = np.random.default_rng(0).random(n)
    similarities = truth + noise * np.random.default_rng(1 + seed).normal(size=n)
    return evaluate_graded_pairs(similarities, np.round(truth * 10) / 2)


def test_triplets_are_right_where_the_positive_is_nearer():
    actual = evaluate_triplets(np.array([0.5, 0.2, -1.0, 0.4]), np.array([0.1, 0.3, -2.0, 0.4]))
    # The last is a tie, which counts as wrong.
    assert actual.per_query["triplet accuracy"] == {"0": 1.0, "1": 0.0, "2": 1.0, "3": 0.0}
    assert actual.means == {"triplet accuracy": 0.5}


def test_the_bootstrap_interval_is_that_of_drawing_pairs_and_correlating_anew():
    actual = graded(60, noise=0.3)
    mean = stats.spearmanr(actual.similarities, actual.scores).statistic
    assert actual.means["Spearman"] == pytest.approx(mean, abs=1e-12)
    draws = np.random.default_rng(9).integers(60, size=(1000, 60))
    naive = [stats.spearmanr(actual.similarities[d], actual.scores[d]).statistic for d in draws]
    low, high = actual.interval("Spearman")
    assert (low, high) == pytest.approx(tuple(np.percentile(naive, [2.5, 97.5])), abs=0.015)
    assert low < mean < high


def naive_swap_p(a: np.ndarray, b: np.ndarray, scores: np.ndarray) -> float:
    """The permutation test by enumeration, with numpy's correlation."""

    def difference(swapped: tuple[int, ...]) -> float:
        mask = np.array(swapped, dtype=bool)
        first, second = np.where(mask, b, a), np.where(mask, a, b)
        return np.corrcoef(first, scores)[0, 1] - np.corrcoef(second, scores)[0, 1]

    observed = abs(difference((0,) * len(a)))
    swaps = product((0, 1), repeat=len(a))
    return float(np.mean([abs(difference(s)) >= observed - 1e-12 for s in swaps]))


def test_few_pairs_get_the_exact_p_value():
    a, b = graded(9, noise=0.1), graded(9, noise=1.0, seed=2)
    comparison = a.compare("Spearman", b)
    ranks = map(stats.rankdata, (a.similarities, b.similarities, a.scores))
    assert comparison.p_value == comparison.p_adjusted == pytest.approx(naive_swap_p(*ranks))
    means = (comparison.mean_system, comparison.mean_baseline)
    assert means == (a.means["Spearman"], b.means["Spearman"])
    assert comparison.difference == means[0] - means[1]


def test_few_pairs_have_an_interval_although_some_draws_are_of_one_pair(recwarn):
    few = evaluate_graded_pairs(np.array([0.1, 0.9, 0.4]), np.arange(3.0))
    assert few.interval("Spearman") == (-1.0, 1.0) and not recwarn.list


def test_systems_of_one_order_do_not_differ():
    actual = graded(40, noise=0.2)
    same = evaluate_graded_pairs(np.exp(actual.similarities), actual.scores)
    comparison = same.compare("Spearman", actual)
    assert (comparison.p_value, comparison.interval) == (1.0, (0.0, 0.0))
    with pytest.raises(ValueError, match="All similarities are equal"):
        evaluate_graded_pairs(np.ones(3), np.arange(3.0))


PAIRS = [
    ("A girl, styling her hair.", 'He said "no".', 2.5),
    ("None", "東京\u2028大学", 0.0),
    ("1984", "A plane\nis taking off.", 5.0),
]


def rows_of(path: Path, task: str) -> list[tuple[object, ...]]:
    return list(read_items(path, task).itertuples(index=False, name=None))


def test_pairs_and_triplets_are_read_from_tables_and_the_benchmarks_own_files(tmp_path):
    table = pd.DataFrame(PAIRS, columns=["sentence1", "sentence2", "score"])
    table.to_json(tmp_path / "test.jsonl.gz", orient="records", lines=True)
    assert rows_of(tmp_path / "test.jsonl.gz", "graded_pairs") == PAIRS
    # No header, and quotes mean nothing.
    (tmp_path / "sts-test.csv").write_text(
        'main-captions\tMSRvid\t2012test\t0024\t2.500\tA "girl" is, styling\tA girl is "brushing\n'
        "main-news\theadlines\t2016\t0001\t5\tNone\tTwo.\tlicence\thttp://x\n"
    )
    expected = [('A "girl" is, styling', 'A girl is "brushing', 2.5), ("None", "Two.", 5.0)]
    assert rows_of(tmp_path / "sts-test.csv", "graded_pairs") == expected
    (tmp_path / "triplets.csv").write_text('Sentence1,Sentence2,Sentence3\n"a, b",c,d\n')
    assert rows_of(tmp_path / "triplets.csv", "triplets") == [("a, b", "c", "d")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence1,sentence2\na,b\n", r"has columns \['sentence1', 'sentence2'\], expected"),
        ("sentence1,sentence2,score\na,b,1\na,b,high\n", "Unable to parse string .high."),
        ("sentence1,sentence2,score\na,b,1\na,b,\n", "null or empty values"),
        ("g\tf\ty\t1\t2.5\ta\tb\ng\tf\ty\t2\t2.5\ta\n", "null or empty values"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, content, message):
    (tmp_path / "test.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_items(tmp_path / "test.csv", "graded_pairs")
