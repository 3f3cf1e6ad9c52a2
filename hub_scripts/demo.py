"""The demonstration: a study on medical questions."""

import copy
import shlex
import time
from dataclasses import dataclass
from typing import Any

import datasets
import transformers

from modeling_condenser.runs.recipe import read_recipe
from modeling_condenser.study.recipe import StudyRecipe
from modeling_condenser.study.study import run_study

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
    transformers.utils.logging.disable_progress_bar()  # of opening and saving models
    datasets.disable_progress_bars()
    changes = line.read(DemoFields, StudyRecipe)
    recipe = {} if "arms" in changes else read_recipe("study/demo")
    settings = scale_study({"output_dir": "runs/demo", **recipe, **changes})
    command = shlex.join(["condenser", line.verb, *line.words])
    results, out = run_study(settings, command=command), settings["output_dir"]
    print(f"\n{results.tables()}\n")
    minutes, facts = (time.perf_counter() - started) / 60, results.facts
    print(f"{facts['n_passages']} passages, {facts['n_queries']} queries, {minutes:.1f} minutes.")
    print(
        f"Report with curves: {out}/results.md. Run files and model cards are beside it. Search:\n"
    )
    print(f'  condenser search {out} "how is asthma treated"')


def scale_study(settings: dict[str, Any]) -> dict[str, Any]:
    """Apply `steps` and `labels` to a study; arms with steps of their own keep their share."""
    study = copy.deepcopy(settings)
    steps, labels = study.pop("steps", None), study.pop("labels", None)
    if steps:
        share = steps / study["pretraining"]["max_steps"]
        for stage in filter(None, (study["pretraining"], *study["arms"].values())):
            if "max_steps" in stage:
                stage["max_steps"] = max(1, round(stage["max_steps"] * share))
    if labels:
        study["train_sizes"] = [labels]
    return study
