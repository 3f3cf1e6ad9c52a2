"""Encoders on graded pairs and triplets, against plain transformers and scipy."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from modeling_condenser.evaluation.evaluate import evaluate
from tests.publishing.making import plain_vectors


def write_csv(file: Path, header: list[str], rows: list[list[object]]) -> Path:
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return file


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_graded_pairs_give_the_correlation_of_cosines_with_scores(
    bert_folder: Path, texts: list[str], tmp_path: Path
) -> None:
    first, second = texts[:12], texts[20:32]
    scores = [(i * 7) % 12 / 2 for i in range(12)]
    rows = [list(row) for row in zip(first, second, scores, strict=True)]
    file = write_csv(tmp_path / "pairs.csv", ["sentence1", "sentence2", "score"], rows)
    model = f"{bert_folder},pooling={{}},similarity=cosine,name={{}}"
    outcome = evaluate(
        {
            "systems": [model.format("mean", "mean")],
            "baseline": model.format("max", "max"),
            "collection": str(file),
            "task": "graded_pairs",
            "output_dir": str(tmp_path / "out"),
        },
        progress=False,
    )
    for result in outcome.report.results:
        vectors = [
            plain_vectors(bert_folder, side, pooling=result.system).numpy()
            for side in (first, second)
        ]
        expected = stats.spearmanr(cosine(*vectors), scores).statistic
        assert result.evaluation.means["Spearman"] == pytest.approx(expected, abs=1e-9)
    assert 0 < outcome.report.comparisons["mean", "Spearman"].p_adjusted <= 1
    assert "Spearman" in outcome.summary and "from max" in outcome.summary
    assert outcome.file == tmp_path / "out" / "pairs" / "report.md"


def test_triplets_give_the_share_that_is_in_order(
    bert_folder: Path, texts: list[str], tmp_path: Path
) -> None:
    sides = [texts[:15], texts[15:30], texts[30:45]]
    rows = [list(row) for row in zip(*sides, strict=True)]
    file = write_csv(tmp_path / "t.csv", ["anchor", "positive", "negative"], rows)
    outcome = evaluate(
        {
            "systems": [f"{bert_folder},pooling=cls,similarity=euclidean"],
            "collection": str(file),
            "task": "triplets",
            "output_dir": str(tmp_path / "out"),
        },
        progress=False,
    )
    anchor, positive, negative = (plain_vectors(bert_folder, side).numpy() for side in sides)
    right = np.linalg.norm(anchor - positive, axis=1) < np.linalg.norm(anchor - negative, axis=1)
    [result] = outcome.report.results
    assert 0 < right.mean() < 1
    assert result.evaluation.means == {"triplet accuracy": pytest.approx(right.mean())}


def test_a_system_without_vectors_is_refused(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "t.csv", ["anchor", "positive", "negative"], [["a", "b", "c"]])
    settings = {"systems": ["bm25"], "collection": str(file), "task": "triplets"}
    with pytest.raises(ValueError, match="bm25 has no vectors"):
        evaluate({**settings, "output_dir": str(tmp_path / "out")}, progress=False)
    assert not (tmp_path / "out").exists()
