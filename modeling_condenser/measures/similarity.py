"""Similarity tasks: graded pairs (STS-b) by rank correlation, triplets (Wikipedia sections) by
accuracy.

Condenser's Table 1 and Table 2 have both tasks. A correlation is not a mean over pairs, so
`compare_spearman` tests it in its own way. Triplets are compared by `significance.compare`.
"""

import csv
import gzip
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from modeling_condenser.repository.contract import Similarity

from .significance import N_RESAMPLES, Comparison, bootstrap_interval, randomisation_test

_STSB_FIELDS = 7  # genre, file, year, number, score, sentence1, sentence2


class GradedPair(NamedTuple):
    """Two texts, and how similar people find them."""

    sentence1: str
    sentence2: str
    score: float


class Triplet(NamedTuple):
    """A text, one that belongs with it, and one that does not."""

    anchor: str
    positive: str
    negative: str


class Correlations(NamedTuple):
    """Correlations of a system's similarities with the scores that people gave."""

    spearman: float
    pearson: float


class TripletEvaluation(NamedTuple):
    """How often the anchor is more similar to the positive than to the negative."""

    accuracy: float
    per_triplet: dict[str, float]
    """Number of the triplet, from "0" -> 1.0 or 0.0; the input of `significance.compare`."""


def read_graded_pairs(
    path: str | Path, *, columns: Mapping[str, str] | None = None
) -> list[GradedPair]:
    """Read graded pairs.

    Args:
        path: a table (.csv, .tsv, .jsonl, .json or .parquet; .gz may follow) with columns
            sentence1, sentence2 and score, or a file of the STS benchmark, such as sts-test.csv
            (Cer et al. 2017), which has tabs and no header.
        columns: our name of a column -> the file's, where they differ.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing, a score is not a finite number, or there is no pair.
    """
    path = Path(path)
    stsb = None if columns else _read_stsb(path)
    rows = stsb if stsb is not None else _read_columns(path, GradedPair._fields, columns or {})
    pairs = []
    for number, (first, second, score) in enumerate(rows, 1):
        value = _number(score)
        if value is None:
            raise ValueError(f"{path}: row {number} has the score {score!r}, expected a number")
        pairs.append(GradedPair(first, second, value))
    return pairs


def read_triplets(path: str | Path, *, columns: Mapping[str, str] | None = None) -> list[Triplet]:
    """Read triplets.

    Args:
        path: a table with columns anchor, positive and negative, or Sentence1, Sentence2 and
            Sentence3 as in Ein Dor et al.'s files (2018).
        columns: our name of a column -> the file's, where they differ.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing, a text is null, or there is no triplet.
    """
    path = Path(path)
    if not columns and {"Sentence1", "Sentence2", "Sentence3"} <= set(_read_table(path).columns):
        columns = {"anchor": "Sentence1", "positive": "Sentence2", "negative": "Sentence3"}
    return [Triplet(*row) for row in _read_columns(path, Triplet._fields, columns or {})]


def _read_columns(
    path: Path, names: tuple[str, ...], columns: Mapping[str, str]
) -> list[tuple[Any, ...]]:
    """The rows of a table, reduced to our columns."""
    unknown = columns.keys() - set(names)
    if unknown:
        raise ValueError(f"columns maps {min(unknown)!r}, expected some of {', '.join(names)}")
    table = _read_table(path)
    wanted = [columns.get(name, name) for name in names]
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        raise ValueError(
            f"{path} has no column {missing[0]!r}, only {', '.join(map(str, table.columns))}: give"
            f" the names, as in columns: {{{names[0]}: NAME}}"
        )
    table = table[wanted]
    if not len(table) or table.isna().any(axis=None):
        raise ValueError(f"{path} has no rows or has null values, expected {', '.join(names)}")
    return list(table.itertuples(index=False, name=None))


def _read_table(path: Path) -> pd.DataFrame:
    match Path(path.name.removesuffix(".gz")).suffix.lower():
        case ".jsonl":
            return pd.read_json(path, lines=True, dtype=False)
        case ".json":
            return pd.read_json(path, dtype=False)
        case ".parquet":
            return pd.read_parquet(path)
        case suffix:
            separator = "\t" if suffix == ".tsv" else ","
            return pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False)


def _read_stsb(path: Path) -> list[tuple[str, str, str]] | None:
    """Sentences and score of the STS benchmark's own layout; None if the file has another one.

    Quotes have no meaning in it, and licences may follow the sentences.
    """
    if Path(path.name.removesuffix(".gz")).suffix.lower() not in (".csv", ".tsv", ".txt", ""):
        return None
    rows = _tab_separated(path)
    first = next(rows, [])
    if len(first) < _STSB_FIELDS or _number(first[4]) is None:
        return None
    found = [(first[5], first[6], first[4])]
    for number, row in enumerate(rows, 2):
        if len(row) < _STSB_FIELDS:
            raise ValueError(f"{path}: row {number} has {len(row)} fields, expected {_STSB_FIELDS}")
        found.append((row[5], row[6], row[4]))
    return found


def _tab_separated(path: Path) -> Iterator[list[str]]:
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "rt", encoding="utf-8-sig", newline="") as lines:
        yield from csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def pair_similarities(
    first: np.ndarray, second: np.ndarray, *, similarity: Similarity
) -> np.ndarray:
    """Compare vectors row by row, in float64.

    Args:
        first: (N, D) vectors.
        second: (N, D) vectors.
        similarity: "cosine" (0 if a vector is all zeros), "dot", or "euclidean" for the negative
            distance.

    Returns:
        (N,) float64, greater for more similar.

    Raises:
        ValueError: the shapes differ, or a vector is not finite.
    """
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(f"vectors of shapes {first.shape} and {second.shape}, expected one (N, D)")
    a, b = first.astype(np.float64), second.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a vector contains NaN or infinity: check the encoder's weights")
    if similarity == "euclidean":
        return -np.linalg.norm(a - b, axis=1)
    products = np.einsum("nd,nd->n", a, b)  # (N,)
    if similarity == "cosine":
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        products /= np.where(lengths > 0, lengths, 1.0)
    return products


def evaluate_graded_pairs(similarities: np.ndarray, scores: np.ndarray) -> Correlations:
    """Correlate similarities, (N,), with the scores that people gave, (N,).

    Raises:
        ValueError: the lengths differ, there are fewer than two pairs, a value is not finite, or
            all similarities or all scores are equal.
    """
    values, graded = _checked_pairs(similarities, scores)
    return Correlations(
        spearman=float(_correlation(_ranks(values), _ranks(graded))),
        pearson=float(stats.pearsonr(values, graded).statistic),
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
        ValueError: there is no triplet, the shapes differ, or a vector is not finite.
    """
    if not len(anchors):
        raise ValueError("there is no triplet to evaluate, expected at least one")
    to_positive = pair_similarities(anchors, positives, similarity=similarity)
    to_negative = pair_similarities(anchors, negatives, similarity=similarity)
    right = (to_positive > to_negative).astype(np.float64)  # (N,)
    return TripletEvaluation(
        accuracy=float(right.mean()),
        per_triplet={str(i): value for i, value in enumerate(right.tolist())},
    )


def spearman_interval(
    similarities: np.ndarray,
    scores: np.ndarray,
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """95 % bootstrap interval of Spearman's correlation, drawing pairs; see `bootstrap_interval`.

    Raises:
        ValueError: see `evaluate_graded_pairs`.
    """
    values, graded = _checked_pairs(similarities, scores)
    return bootstrap_interval(_spearman, values, graded, n_resamples=n_resamples, seed=seed)


def compare_spearman(
    system: np.ndarray,
    baseline: np.ndarray,
    scores: np.ndarray,
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare two systems by Spearman's correlation on the same pairs.

    The p-value is that of a paired randomisation test: the ranks that the two systems give to
    random pairs are swapped, and the difference of the correlations is computed again. Ranks are
    swapped instead of similarities because a dot product and a cosine have no common scale.

    Args:
        system: (N,) similarities.
        baseline: (N,) similarities of the same pairs.
        scores: (N,) that people gave.
        n_resamples: for the test and for the interval; see `significance.compare`.
        seed: for both.

    Returns:
        Both correlations (as `mean_system` and `mean_baseline`), their difference, p-value and
        interval. Pairs are neither better nor worse, so these counts stay 0.

    Raises:
        ValueError: see `evaluate_graded_pairs`.
    """
    (a, graded), (b, _) = _checked_pairs(system, scores), _checked_pairs(baseline, scores)
    ranks_a, ranks_b, ranks = _ranks(a), _ranks(b), _ranks(graded)
    spearman_a, spearman_b = (float(_correlation(x, ranks)) for x in (ranks_a, ranks_b))

    def swapped_difference(swapped: np.ndarray) -> np.ndarray:  # (B, N) -> (B,)
        # The sums in a correlation change by sums over the swapped pairs: one matrix product.
        changes = np.stack(
            [ranks_b - ranks_a, (ranks_b - ranks_a) * ranks, ranks_b**2 - ranks_a**2]
        )
        change = swapped @ changes.T  # (B, 3)
        correlations = []
        for x, sign in ((ranks_a, 1.0), (ranks_b, -1.0)):
            total = sign * change[:, 0]  # the ranks are centred, so their sum is 0 before the swap
            with_scores = x @ ranks + sign * change[:, 1]
            variance = x @ x + sign * change[:, 2] - total**2 / len(x)
            correlations.append(with_scores / np.sqrt(variance * (ranks @ ranks)))
        return correlations[0] - correlations[1]

    def difference(a: np.ndarray, b: np.ndarray, graded: np.ndarray, axis: int) -> np.ndarray:
        return _spearman(a, graded, axis) - _spearman(b, graded, axis)

    p_value = randomisation_test(swapped_difference, n=len(a), n_resamples=n_resamples, seed=seed)
    return Comparison(
        mean_system=spearman_a,
        mean_baseline=spearman_b,
        difference=spearman_a - spearman_b,
        p_value=p_value,
        p_adjusted=p_value,
        interval=bootstrap_interval(difference, a, b, graded, n_resamples=n_resamples, seed=seed),
    )


def _checked_pairs(similarities: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as (N,) float64."""
    values, graded = (np.asarray(x, dtype=np.float64) for x in (similarities, scores))
    if values.ndim != 1 or values.shape != graded.shape or len(values) < 2:
        raise ValueError(
            f"similarities of shape {values.shape} and scores of shape {graded.shape}, expected"
            " one (N,) for both, N at least 2"
        )
    for name, x in (("similarities", values), ("scores", graded)):
        if not np.isfinite(x).all() or np.ptp(x) == 0:
            raise ValueError(
                f"the {name} are not finite or all equal, so they have no correlation: expected"
                " different finite numbers; check the file, and whether the encoder gives every"
                " text the same vector"
            )
    return values, graded


def _spearman(values: np.ndarray, scores: np.ndarray, axis: int) -> np.ndarray:
    """Spearman's correlation along an axis; NaN where all values or all scores are equal."""
    with np.errstate(invalid="ignore"):
        return _correlation(_ranks(values, axis), _ranks(scores, axis), axis)


def _ranks(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Ranks with ties averaged, minus their mean."""
    return stats.rankdata(values, axis=axis) - (values.shape[axis] + 1) / 2


def _correlation(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    """Pearson's correlation of centred values."""
    return (a * b).sum(axis) / np.sqrt((a * a).sum(axis) * (b * b).sum(axis))
