"""condenser demo: everything on the built-in collection, in minutes, on a CPU.

Trains a small encoder, continues it by plain MLM (the control), by condensing, and by condensing
with a contrast over the corpus (coCondenser), for no more tokens; fine-tunes each on few labelled
pairs; measures them and BM25 on held-out queries; and says whether they differ. A second run starts
where the first stopped.
"""

import argparse
import time
from typing import Any


def run(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="condenser demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output_dir", default="runs/demo", help="(default: runs/demo)")
    parser.add_argument("--encoder", help="Hub name or folder of an encoder to start from")
    parser.add_argument("--steps", type=int, help="pre-training steps of each arm")
    parser.add_argument("--labels", type=int, help="labelled pairs to fine-tune on")
    parser.add_argument("--collection", help="BEIR folder to use instead of the built-in one")
    parser.add_argument("--recipe", help="(default: study/demo; study/from-encoder with --encoder)")
    arguments = parser.parse_args(words)
    started = time.perf_counter()

    from modeling_condenser.runs.recipe import read_recipe
    from modeling_condenser.study.study import run_study

    recipe = arguments.recipe or ("study/from-encoder" if arguments.encoder else "study/demo")
    settings = change_settings(read_recipe(recipe), vars(arguments))
    results = run_study(settings)
    out = arguments.output_dir
    print(f"\n{results.table()}\n\n{results.verdict()}\n")
    print(f"{results.facts['n_passages']} passages, {results.facts['n_queries']} queries;", end=" ")
    print(f"this session took {(time.perf_counter() - started) / 60:.1f} minutes.")
    print(f"Run files, cards and curves are in {out}. Search it:\n")
    print(f'  condenser search {out} "compute the inverse of a matrix"')


def change_settings(settings: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The demo's recipe with what the command line changes."""
    settings = {**settings, "output_dir": arguments["output_dir"]}
    for name in ("encoder", "collection"):
        if arguments[name]:
            settings[name] = arguments[name]
    if arguments["steps"]:
        share = arguments["steps"] / settings["pretraining"]["max_steps"]
        settings["pretraining"] = {**settings["pretraining"], "max_steps": arguments["steps"]}
        settings["arms"] = {
            name: {**arm, "max_steps": max(1, round(arm["max_steps"] * share))}
            if "max_steps" in arm
            else arm
            for name, arm in settings["arms"].items()
        }
    if arguments["labels"]:
        settings["finetuning"] = {**settings["finetuning"], "train_size": arguments["labels"]}
    return settings
