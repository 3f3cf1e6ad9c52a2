"""Similarity tasks: graded pairs (STS-b) by rank correlation, triplets (Wikipedia sections) by
accuracy.

In: vectors of the two or three sides, or their similarities, and the scores that people gave. Out:
Spearman's and Pearson's correlation or triplet accuracy, and whether two systems differ: values per
triplet for `significance.compare`, and for correlations, which are no mean over pairs, tests of
their own. Condenser's Table 1 has both tasks; `pair_files.py` reads their files.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from modeling_condenser.repository.contract import Similarity

from .significance import Comparison, swap_test

_BATCH_VALUES = 2_000_000  # resampled values held at once: 16 MB an array
_ROWS_AT_ONCE = 8192  # vectors that are turned into float64 together


@dataclass(frozen=True)
class Correlations:
    """How a system's similarities go with the scores that people gave."""

    spearman: float
    """Between the ranks; of equal values, each gets the mean of their ranks."""
    pearson: float
    """Between the values."""


@dataclass(frozen=True)
class TripletEvaluation:
    """How often the anchor is more similar to the positive than to the negative."""

    accuracy: float
    per_triplet: dict[str, float]
    """Number of the triplet, from "0" -> 1.0 or 0.0: what `significance.compare` takes."""


def pair_similarities(
    first: np.ndarray, second: np.ndarray, *, similarity: Similarity
) -> np.ndarray:
    """Compare vectors row by row, in float64.

    Args:
        first: (N, D) vectors.
        second: (N, D) vectors.
        similarity: "cosine" (0 where a vector is all zeros), "dot", or "euclidean" for the negative
            distance.

    Returns:
        (N,) float64, greater for more similar.

    Raises:
        ValueError: the shapes differ, or a vector is not finite.
    """
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(
            f"vectors of shapes {first.shape} and {second.shape}, expected one (N, D) for both:"
            " encode both sides of the same pairs with one encoder"
        )
    values = np.empty(len(first), dtype=np.float64)
    for start in range(0, len(first), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        a, b = first[rows].astype(np.float64), second[rows].astype(np.float64)  # (n, D)
        _check_vectors(a, b, first_row=start)
        if similarity == "euclidean":
            values[rows] = -np.linalg.norm(a - b, axis=1)
            continue
        values[rows] = np.einsum("nd,nd->n", a, b)
        if similarity == "cosine":
            lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
            values[rows] /= np.where(lengths > 0, lengths, 1.0)
    return values


def evaluate_graded_pairs(similarities: np.ndarray, scores: np.ndarray) -> Correlations:
    """Correlate similarities with the scores that people gave.

    Args:
        similarities: (N,) of one system.
        scores: (N,) in any unit, such as 0 to 5.

    Raises:
        ValueError: different lengths, fewer than two pairs, a value that is not finite, or all
            similarities or all scores equal, with which nothing correlates.
    """
    values, graded = _checked_pairs(similarities, scores)
    return Correlations(
        spearman=float(_correlation(_ranks(values), _ranks(graded))),
        pearson=float(_correlation(values - values.mean(), graded - graded.mean())),
    )


def evaluate_triplets(
    anchors: np.ndarray, positives: np.ndarray, negatives: np.ndarray, *, similarity: Similarity
) -> TripletEvaluation:
    """Count the triplets whose positive is more similar to the anchor than the negative is.

    A triplet whose two similarities are equal counts as wrong, so that an encoder that gives one
    vector to every text scores 0 and not 1.

    Args:
        anchors: (N, D) vectors.
        positives: (N, D) vectors.
        negatives: (N, D) vectors.
        similarity: see `pair_similarities`.

    Raises:
        ValueError: no triplet, different shapes, or a vector that is not finite.
    """
    if not len(anchors):
        raise ValueError("no triplet to evaluate, expected at least one: check the file")
    to_positive = pair_similarities(anchors, positives, similarity=similarity)
    to_negative = pair_similarities(anchors, negatives, similarity=similarity)
    right = (to_positive > to_negative).astype(np.float64)  # (N,)
    return TripletEvaluation(
        accuracy=float(right.mean()),
        per_triplet={str(i): value for i, value in enumerate(right.tolist())},
    )


def spearman_interval(
    similarities: np.ndarray, scores: np.ndarray, *, n_resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of Spearman's correlation, by drawing pairs anew.

    Resamples in which all similarities or all scores are equal have no correlation and are left
    out; that happens with a handful of pairs only.

    Args:
        similarities: (N,) of one system.
        scores: (N,).
        n_resamples: resamples.
        seed: of the resamples.

    Raises:
        ValueError: see `evaluate_graded_pairs`.
    """
    values, graded = _checked_pairs(similarities, scores)
    resampled = [
        _resampled_spearman(values, graded, counts)
        for counts in _resamples(len(values), n_resamples=n_resamples, seed=seed)
    ]
    return _percentile_interval(np.concatenate(resampled))


def compare_spearman(
    system: np.ndarray,
    baseline: np.ndarray,
    scores: np.ndarray,
    *,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare two systems by Spearman's correlation on the same pairs.

    The p value is of a paired permutation test: if the systems are alike, a pair's rank in the
    one's similarities might as well be its rank in the other's. So the two ranks of random pairs
    are swapped, and the difference of the two correlations between ranks and ranks of the scores
    is computed anew. Ranks are swapped and not similarities, since a dot product and a cosine have
    no common scale. The interval is by drawing pairs anew, the same for both systems.

    Args:
        system: (N,) similarities.
        baseline: (N,) similarities of the same pairs.
        scores: (N,) that people gave.
        n_resamples: resamples for the test and for the interval. With 2**N <= n_resamples the test
            enumerates all swaps and is exact; otherwise its smallest p value is
            1 / (n_resamples + 1).
        seed: seeds both.

    Returns:
        Both correlations (as `mean_system` and `mean_baseline`), their difference, p value and
        interval.

    Raises:
        ValueError: see `evaluate_graded_pairs`.
    """
    (a, graded), (b, _) = _checked_pairs(system, scores), _checked_pairs(baseline, scores)
    ranks_a, ranks_b, ranks = _ranks(a), _ranks(b), _ranks(graded)
    spearman_a, spearman_b = (float(_correlation(x, ranks)) for x in (ranks_a, ranks_b))
    differences = [
        _resampled_spearman(a, graded, counts) - _resampled_spearman(b, graded, counts)
        for counts in _resamples(len(a), n_resamples=n_resamples, seed=seed)
    ]
    return Comparison(
        mean_system=spearman_a,
        mean_baseline=spearman_b,
        difference=spearman_a - spearman_b,
        p_value=swap_test(
            lambda swapped: _swapped_difference(ranks_a, ranks_b, ranks, swapped),
            n=len(a),
            n_resamples=n_resamples,
            seed=seed,
        ),
        interval=_percentile_interval(np.concatenate(differences)),
    )


def _check_vectors(a: np.ndarray, b: np.ndarray, *, first_row: int) -> None:
    wrong = np.flatnonzero(~(np.isfinite(a).all(axis=1) & np.isfinite(b).all(axis=1)))
    if len(wrong):
        raise ValueError(
            f"a vector of pair {first_row + wrong[0]} (counted from 0) holds NaN or infinity,"
            " expected finite numbers: check the encoder's weights, or encode in float32"
        )


def _checked_pairs(similarities: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as (N,) float64."""
    values, graded = (np.asarray(x, dtype=np.float64) for x in (similarities, scores))
    if values.ndim != 1 or values.shape != graded.shape or len(values) < 2:
        raise ValueError(
            f"similarities of shape {values.shape} and scores of shape {graded.shape}, expected"
            " one (N,) for both, N at least 2"
        )
    for name, x in (("similarity", values), ("score", graded)):
        wrong = np.flatnonzero(~np.isfinite(x))
        if len(wrong):
            raise ValueError(
                f"the {name} of pair {wrong[0]} (counted from 0) is {x[wrong[0]]}, expected a"
                " finite number: mend the file of pairs, or the encoder that made it"
            )
        if np.ptp(x) == 0:
            raise ValueError(
                f"all {len(x)} pairs have the {name} {x[0]:g}, with which nothing correlates:"
                " expected different ones"
                + ("; the encoder gives one vector to all texts" if name == "similarity" else "")
            )
    return values, graded


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of (N,) values, ties averaged, less their mean."""
    return stats.rankdata(values) - (len(values) + 1) / 2


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's correlation of values whose means are 0."""
    return a @ b / np.sqrt((a @ a) * (b @ b))


def _resamples(n: int, *, n_resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each of n pairs is drawn, (B, n) int64, for batches of resamples."""
    rng = np.random.default_rng(seed)
    size = max(1, _BATCH_VALUES // n)
    for start in range(0, n_resamples, size):
        drawn = rng.integers(n, size=(min(size, n_resamples - start), n))  # (B, n)
        rows = np.arange(len(drawn))[:, None] * n
        yield np.bincount((drawn + rows).ravel(), minlength=drawn.size).reshape(drawn.shape)


def _resampled_spearman(values: np.ndarray, scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Spearman's correlation in each resample, (B,); NaN where there is none."""
    a, b = _resampled_ranks(values, counts), _resampled_ranks(scores, counts)  # (B, N)
    covariance = np.einsum("bn,bn,bn->b", counts, a, b)
    variances = np.einsum("bn,bn,bn->b", counts, a, a) * np.einsum("bn,bn,bn->b", counts, b, b)
    with np.errstate(invalid="ignore"):
        return covariance / np.sqrt(variances)


def _resampled_ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`_ranks` of each resample, (B, N), without sorting it: a pair's rank follows from how many
    pairs with smaller and with equal values were drawn."""
    _, place, size = np.unique(values, return_inverse=True, return_counts=True)
    starts = np.cumsum(size) - size
    order = np.argsort(place, kind="stable")
    equal = np.add.reduceat(counts[:, order], starts, axis=1)  # (B, distinct values)
    smaller = np.cumsum(equal, axis=1) - equal
    return (smaller + (equal + 1) / 2 - (len(values) + 1) / 2)[:, place]


def _percentile_interval(values: np.ndarray) -> tuple[float, float]:
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return float(low), float(high)


def _swapped_difference(
    a: np.ndarray, b: np.ndarray, scores: np.ndarray, swapped: np.ndarray
) -> np.ndarray:
    """Difference of the two correlations with the scores (B,), with the ranks of the pairs swapped
    that are 1 in (B, N).

    The sums that a correlation is made of change by sums over the swapped pairs, which one matrix
    product gives.
    """
    change = swapped @ np.stack([b - a, (b - a) * scores, b * b - a * a], axis=1)  # (B, 3)
    correlations = []
    for x, sign in ((a, 1.0), (b, -1.0)):
        total, with_scores, squares = (
            start + sign * change[:, i] for i, start in enumerate((x.sum(), x @ scores, x @ x))
        )
        variance = squares - total**2 / len(x)
        correlations.append(with_scores / np.sqrt(variance * (scores @ scores)))
    return correlations[0] - correlations[1]
