"""The result of one system, in a folder of its own."""

from pathlib import Path
from typing import Any

from modeling_condenser.collection.load import load_collection
from modeling_condenser.evaluation.system_results import Evaluator, SystemResult
from modeling_condenser.retrieval.systems import parse_system


def evaluate_system(
    system: str | Path, collection: Path, out: Path, **settings: Any
) -> SystemResult:
    """`settings` are attributes of `Evaluator`."""
    loaded = load_collection(collection, split=settings.get("split", "test"))
    evaluator = Evaluator(loaded, lambda _: (out, out), **settings)
    return evaluator.evaluate(parse_system(system))
