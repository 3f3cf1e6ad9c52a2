"""The result of one system."""

from pathlib import Path
from typing import Any

from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.evaluation.report import SystemResult


def evaluate_system(
    system: str | Path, collection: str | Path, out: Path, **settings: Any
) -> SystemResult:
    """`settings` are fields of `EvaluationRecipe` and `SearchSettings`."""
    report = evaluate(systems=system, collection=collection, output_dir=out, **settings)
    return report.results[0]
