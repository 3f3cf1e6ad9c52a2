"""Condense, fine-tune and evaluate on the built-in collection, on a CPU, in minutes.

Trains a small encoder, continues it by plain MLM (the control), by condensing, and by condensing
with a contrast over the corpus (coCondenser), for no more tokens; fine-tunes each on few labelled
pairs; measures them and BM25 on held-out queries; and tests whether they differ. The same command
continues an interrupted study.
"""

import copy
import time
from dataclasses import dataclass
from typing import Any

from modeling_condenser.runs.recipe import read_recipe
from modeling_condenser.study.study import StudyRecipe, run_study

from .command_line import CommandLine


@dataclass(frozen=True)
class DemoFields:
    """The fields of `condenser demo` beside those of a study.

    Attributes:
        steps: pre-training steps of each arm.
        labels: labelled pairs to fine-tune on.
    """

    steps: int | None = None
    labels: int | None = None


def run(line: CommandLine) -> None:
    started = time.perf_counter()
    changes = line.read(DemoFields, StudyRecipe)
    if "arms" not in changes:
        recipe = "study/from-encoder" if changes.get("encoder") else "study/demo"
        changes = {**read_recipe(recipe), **changes}
    settings = scale_study({"output_dir": "runs/demo", **changes})
    results, out = run_study(settings), settings["output_dir"]
    facts, minutes = results.facts, (time.perf_counter() - started) / 60
    print(f"\n{results.report()}\n")
    print(f"{facts['n_passages']} passages, {facts['n_queries']} queries, {minutes:.1f} minutes.")
    print(f"Run files, cards and curves are in {out}. Search it:\n")
    print(f'  condenser search {out} "compute the inverse of a matrix"')


def scale_study(settings: dict[str, Any]) -> dict[str, Any]:
    """Apply `steps` and `labels` to a study; arms with steps of their own keep their share."""
    study = copy.deepcopy(settings)
    steps, labels = study.pop("steps", None), study.pop("labels", None)
    if steps:
        share = steps / study["pretraining"]["max_steps"]
        for stage in (study["pretraining"], *study["arms"].values()):
            if "max_steps" in stage:
                stage["max_steps"] = max(1, round(stage["max_steps"] * share))
    if labels:
        study["finetuning"]["train_size"] = labels
    return study
