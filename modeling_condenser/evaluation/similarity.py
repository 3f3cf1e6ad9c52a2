"""Similarity tasks of Condenser's Tables 1 and 2.

Graded pairs (STS-b) are measured by rank correlation, triplets (Wikipedia sections) by accuracy.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd
from scipy import stats

from modeling_condenser.collection.rows import read_rows

from .measures import (
    Comparison,
    Evaluation,
    Interval,
    bootstrap_interval,
    make_evaluation,
    randomisation_test,
)

if TYPE_CHECKING:
    from modeling_condenser.encoding.retriever import Retriever

_COLUMNS = {
    "graded_pairs": ["sentence1", "sentence2", "score"],
    "triplets": ["anchor", "positive", "negative"],
}
_EIN_DOR_COLUMNS = {"Sentence1": "anchor", "Sentence2": "positive", "Sentence3": "negative"}


def read_items(path: str | Path, task: str) -> pd.DataFrame:
    """Read pairs of sentences with human scores, or triplets.

    Args:
        path: a table (.csv, .tsv, .jsonl, .json or .parquet; .gz may follow) with columns
            sentence1, sentence2 and score, or anchor, positive and negative. Or a file of the STS
            benchmark (Cer et al. 2017) or of Ein Dor et al. (2018), as published.
        task: "graded_pairs" or "triplets".
    """
    names = _COLUMNS[task]
    table = pd.DataFrame(read_rows(Path(path))).rename(columns=_EIN_DOR_COLUMNS)
    if not table.columns.isin(names).sum() == len(names):
        raise ValueError(f"{path} has columns {list(table.columns)}, expected {', '.join(names)}.")
    table = table[names]
    if task == "graded_pairs":
        table = table.assign(score=pd.to_numeric(table["score"]).astype(float))
    if table.replace("", None).isna().any(axis=None):
        raise ValueError(f"{path} has null or empty values: give {', '.join(names)} in every row.")
    return table


def measure_similarity(retriever: "Retriever", items: pd.DataFrame) -> Evaluation:
    """Measure an encoder on the pairs or triplets of `read_items`, by its own similarity."""
    from sentence_transformers import SimilarityFunction  # imports torch

    compare = SimilarityFunction.to_similarity_pairwise_fn(retriever.contract.similarity)
    first, *others = (
        retriever.encode_passages(list(items[name])).astype(np.float64)  # (N, D)
        for name in items.columns.drop("score", errors="ignore")
    )
    similarities = [compare(first, other).numpy() for other in others]  # (N,) each
    if "score" in items:
        return evaluate_graded_pairs(similarities[0], items["score"].to_numpy())
    return evaluate_triplets(*similarities)


@dataclass(frozen=True, kw_only=True)
class GradedEvaluation(Evaluation):
    """Spearman's correlation of similarities, (N,), with human scores, (N,).

    It is not a mean over pairs, so it needs its own tests.
    """

    similarities: np.ndarray
    scores: np.ndarray

    @property
    def n_items(self) -> int:
        return len(self.scores)

    def interval(self, measure: str, *, seed: int = 0) -> Interval | None:
        """95 % bootstrap interval, drawing pairs."""
        return bootstrap_interval(_spearman, self.similarities, self.scores, seed=seed)

    def compare(self, measure: str, other: Self, *, seed: int = 0) -> Comparison:
        """Compare with another system on the same pairs by a paired randomisation test.

        It swaps the systems' ranks of random pairs, because a dot product and a cosine have no
        common scale, and computes the difference of the correlations again.
        """
        samples = (self.similarities, other.similarities, self.scores)
        ranks, other_ranks, score_ranks = map(stats.rankdata, samples)

        def swapped_difference(swapped: np.ndarray) -> np.ndarray:  # (B, N) -> (B,)
            first = np.where(swapped == 0, ranks, other_ranks)
            second = np.where(swapped == 0, other_ranks, ranks)
            return correlate(first, score_ranks) - correlate(second, score_ranks)

        def difference(a: np.ndarray, b: np.ndarray, scores: np.ndarray, axis: int) -> np.ndarray:
            return _spearman(a, scores, axis) - _spearman(b, scores, axis)

        means = (self.means[measure], other.means[measure])
        p_value = randomisation_test(swapped_difference, n=self.n_items, seed=seed)
        interval = bootstrap_interval(difference, *samples, seed=seed)
        return Comparison(*means, means[0] - means[1], p_value, interval, p_adjusted=p_value)


def evaluate_graded_pairs(similarities: np.ndarray, scores: np.ndarray) -> GradedEvaluation:
    """Correlate similarities, (N,), with human scores, (N,): measure "Spearman"."""
    for name, values in (("similarities", similarities), ("scores", scores)):
        if np.ptp(values) == 0:
            raise ValueError(
                f"All {name} are equal, so they have no correlation: check the file, and whether "
                "the encoder gives every text the same vector."
            )
    means = {"Spearman": float(_spearman(similarities, scores))}
    return GradedEvaluation(means, per_query={}, similarities=similarities, scores=scores)


def _spearman(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    return correlate(stats.rankdata(a, axis=axis), stats.rankdata(b, axis=axis), axis)


def correlate(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    """Pearson's correlation of arrays (.., N), 0 for equal values.

    scipy's function takes ten times as long.
    """
    a, b = a - a.mean(axis, keepdims=True), b - b.mean(axis, keepdims=True)
    product, scale = (a * b).sum(axis), np.sqrt((a * a).sum(axis) * (b * b).sum(axis))
    return np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)


def evaluate_triplets(to_positive: np.ndarray, to_negative: np.ndarray) -> Evaluation:
    """Measure how often the anchor is more similar to the positive: measure "triplet accuracy".

    Equal similarities, (N,) both, count as wrong: an encoder with the same vector for every text
    scores 0.
    """
    is_right = (to_positive > to_negative).tolist()
    values = {str(row): float(right) for row, right in enumerate(is_right)}
    return make_evaluation({"triplet accuracy": values})
