"""Condense, fine-tune and evaluate on the built-in collection, on a CPU, in minutes.

Trains a small encoder, continues it by plain MLM (the control), by condensing, and by condensing
with a contrast over the corpus (coCondenser), for no more tokens; fine-tunes each on few labelled
pairs; measures them and BM25 on held-out queries; and tests whether they differ. The same command
continues an interrupted study.
"""

import time
from dataclasses import dataclass
from typing import Any

from .command_line import read_settings


@dataclass(frozen=True)
class DemoFields:
    """The fields of `condenser demo` beside those of a study.

    Attributes:
        steps: pre-training steps of each arm.
        labels: labelled pairs to fine-tune on.
    """

    steps: int | None = None
    labels: int | None = None


def run(words: list[str]) -> None:
    from modeling_condenser.runs.recipe import read_recipe
    from modeling_condenser.study.study import StudyRecipe, run_study

    started = time.perf_counter()
    changes = read_settings("demo", words, DemoFields, StudyRecipe, about=__doc__)
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
    study = {name: value for name, value in settings.items() if name not in ("steps", "labels")}
    if steps := settings.get("steps"):
        share = steps / study["pretraining"]["max_steps"]
        study["pretraining"] = {**study["pretraining"], "max_steps": steps}
        study["arms"] = {name: dict(arm) for name, arm in study["arms"].items()}
        for arm in study["arms"].values():
            if "max_steps" in arm:
                arm["max_steps"] = max(1, round(arm["max_steps"] * share))
    if labels := settings.get("labels"):
        study["finetuning"] = {**study["finetuning"], "train_size": labels}
    return study
