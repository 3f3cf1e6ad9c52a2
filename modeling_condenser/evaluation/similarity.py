"""Similarity tasks: graded pairs (STS-b) by rank correlation, triplets (Wikipedia sections) by
accuracy.

Condenser's Table 1 and Table 2 have both tasks. A correlation is not a mean over pairs, so
`compare_spearman` tests it in its own way. Triplets are compared by `significance.compare`.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from modeling_condenser.hub.contract import Similarity

from .measures import Evaluation, make_evaluation
from .significance import Comparison, bootstrap_interval, randomisation_test

_EIN_DOR_COLUMNS = {"anchor": "Sentence1", "positive": "Sentence2", "negative": "Sentence3"}
_STSB_COLUMNS = "genre file year number score sentence1 sentence2 licence source".split()


def read_graded_pairs(
    path: str | Path, *, columns: Mapping[str, str] | None = None
) -> list[tuple[str, str, float]]:
    """Read pairs of sentences and the scores that people gave them.

    Args:
        path: a table (.csv, .tsv, .jsonl, .json or .parquet; .gz may follow) with columns
            sentence1, sentence2 and score, or a file of the STS benchmark, such as sts-test.csv
            (Cer et al. 2017), which has tabs and no header.
        columns: our name of a column -> the file's, where they differ.

    Raises:
        ValueError: a column is missing, a score is not a number, or there is no pair.
    """
    rows = _read_columns(path, ("sentence1", "sentence2", "score"), columns)
    scores = pd.to_numeric(pd.Series([row[2] for row in rows]), errors="coerce")
    if not np.isfinite(scores).all():
        wrong = rows[int(np.isfinite(scores).argmin())][2]
        raise ValueError(f"{path}: the score {wrong!r} of a pair is not a number")
    return [(a, b, score) for (a, b, _), score in zip(rows, scores.tolist(), strict=True)]


def read_triplets(
    path: str | Path, *, columns: Mapping[str, str] | None = None
) -> list[tuple[str, str, str]]:
    """Read triplets: anchor, positive, negative.

    Args:
        path: a table with these columns, or Sentence1, Sentence2 and Sentence3 as in Ein Dor et
            al.'s files (2018).
        columns: our name of a column -> the file's, where they differ.
    """
    return _read_columns(path, ("anchor", "positive", "negative"), columns)


def _read_columns(
    path: str | Path, names: tuple[str, ...], columns: Mapping[str, str] | None
) -> list[tuple[Any, ...]]:
    table = _read_table(Path(path))
    known = _EIN_DOR_COLUMNS if "Sentence1" in table.columns else {}
    wanted = [{**known, **(columns or {})}.get(name, name) for name in names]
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
    ending = Path(path.name.removesuffix(".gz")).suffix.lower()
    if ending in (".jsonl", ".json"):
        return pd.read_json(path, lines=ending == ".jsonl", dtype=False)
    if ending == ".parquet":
        return pd.read_parquet(path)
    as_text: dict[str, Any] = {"dtype": str, "keep_default_na": False}
    # The benchmark's own files have tabs, no header, and quotes without a meaning.
    own = {"sep": "\t", "header": None, "quoting": csv.QUOTE_NONE, **as_text}
    first = pd.read_csv(path, **own, nrows=1)
    if first.shape[1] >= 7 and pd.to_numeric(first[4], errors="coerce").notna().all():
        return pd.read_csv(path, **own, names=_STSB_COLUMNS).replace("", None)
    return pd.read_csv(path, sep="\t" if ending == ".tsv" else ",", **as_text)


def pair_similarities(
    first: np.ndarray, second: np.ndarray, *, similarity: Similarity
) -> np.ndarray:
    """Compare vectors, (N, D) and (N, D), row by row: (N,) float64, greater for more similar.

    Cosine is 0 if a vector is all zeros; "euclidean" is the negative distance.
    """
    a, b = first.astype(np.float64), second.astype(np.float64)
    if similarity == "euclidean":
        return -np.linalg.norm(a - b, axis=1)
    products = np.einsum("nd,nd->n", a, b)  # (N,)
    if similarity == "cosine":
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        products /= np.where(lengths > 0, lengths, 1.0)
    return products


def evaluate_graded_pairs(similarities: np.ndarray, scores: np.ndarray) -> Evaluation:
    """Correlate similarities, (N,), with the scores that people gave, (N,): Spearman and Pearson.

    Raises:
        ValueError: all similarities or all scores are equal.
    """
    for name, values in (("similarities", similarities), ("scores", scores)):
        if np.ptp(values) == 0:
            raise ValueError(
                f"all {name} are equal, so they have no correlation: check the file, and whether"
                " the encoder gives every text the same vector"
            )
    spearman = stats.spearmanr(similarities, scores).statistic
    pearson = stats.pearsonr(similarities, scores).statistic
    return Evaluation({"Spearman": float(spearman), "Pearson": float(pearson)}, per_query={})


def evaluate_triplets(
    anchors: np.ndarray, positives: np.ndarray, negatives: np.ndarray, *, similarity: Similarity
) -> Evaluation:
    """Measure how often the anchor is more similar to the positive than to the negative.

    A triplet whose two similarities are equal counts as wrong, so that an encoder that gives one
    vector to every text scores 0 and not 1. All vectors are (N, D). The values of the measure
    "triplet accuracy" are keyed by the triplet's number, from "0".
    """
    to_positive = pair_similarities(anchors, positives, similarity=similarity)
    to_negative = pair_similarities(anchors, negatives, similarity=similarity)
    right = (to_positive > to_negative).astype(np.float64)  # (N,)
    values = {str(i): value for i, value in enumerate(right.tolist())}
    return make_evaluation({"triplet accuracy": values})


def spearman_interval(
    similarities: np.ndarray, scores: np.ndarray, *, seed: int = 0
) -> tuple[float, float]:
    """95 % bootstrap interval of Spearman's correlation, drawing pairs."""
    return bootstrap_interval(_spearman, similarities, scores, seed=seed)


def compare_spearman(
    system: np.ndarray, baseline: np.ndarray, scores: np.ndarray, *, seed: int = 0
) -> Comparison:
    """Compare two systems by Spearman's correlation of their similarities, (N,), with scores, (N,).

    The p-value is that of a paired randomisation test: the ranks that the two systems give to
    random pairs are swapped, and the difference of the correlations is computed again. Ranks are
    swapped instead of similarities because a dot product and a cosine have no common scale.

    Returns:
        Both correlations (as `mean_system` and `mean_baseline`), their difference, p-value and
        interval. Pairs are neither better nor worse, so these counts stay 0.
    """
    ranks_a, ranks_b, ranks = (stats.rankdata(x) for x in (system, baseline, scores))

    def swapped_difference(swapped: np.ndarray) -> np.ndarray:  # (B, N) -> (B,)
        first, second = (np.where(swapped == side, ranks_a, ranks_b) for side in (0, 1))
        return _correlation(first, ranks) - _correlation(second, ranks)

    def difference(a: np.ndarray, b: np.ndarray, graded: np.ndarray, axis: int) -> np.ndarray:
        return _spearman(a, graded, axis) - _spearman(b, graded, axis)

    p_value = randomisation_test(swapped_difference, n=len(scores), seed=seed)
    mean_system, mean_baseline = (float(_correlation(x, ranks)) for x in (ranks_a, ranks_b))
    return Comparison(
        mean_system,
        mean_baseline,
        difference=mean_system - mean_baseline,
        p_value=p_value,
        p_adjusted=p_value,
        interval=bootstrap_interval(difference, system, baseline, scores, seed=seed),
    )


def _spearman(values: np.ndarray, scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """Spearman's correlation; NaN where all values or all scores are equal."""
    ranks, graded = (stats.rankdata(x, axis=axis) for x in (values, scores))
    with np.errstate(invalid="ignore"):
        return _correlation(ranks, graded, axis)


def _correlation(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    """Pearson's correlation."""
    a, b = a - a.mean(axis, keepdims=True), b - b.mean(axis, keepdims=True)
    return (a * b).sum(axis) / np.sqrt((a * a).sum(axis) * (b * b).sum(axis))
