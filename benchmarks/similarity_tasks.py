"""Condenser's Tables 1 and 2: fine-tune encoders on STS-b or Wikipedia sections, and compare them.

    python -m benchmarks.similarity_tasks stsb DATA mlm=runs/a/encoder condenser=runs/b/encoder

DATA is a folder with train.csv, dev.csv and test.csv: of STS-b (sentence1, sentence2, score), or of
triplets (anchor, positive, negative). Training is the recipe finetune/stsb or
finetune/wikipedia-sections (Condenser A.1), with the settings that are given here. The figures are
Spearman's correlation and the share of triplets whose positive is nearer than the negative, times
100, as means over seeds. The first encoder is the control. In the paper BERT base has, in Table 1,
68.6, 71.4 and 82.5 with 500, 1K and all pairs, Condenser 76.6, 77.8 and 85.6.

Runs are kept in --output_dir, where a second call continues. Choose settings with --split dev.
"""

import argparse
import contextlib
import shlex
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
from modeling_condenser.study.results import mean_evaluation
from scipy import stats

from benchmarks.harness import print_conditions, print_table
from modeling_condenser.evaluation.measures import Evaluation
from modeling_condenser.evaluation.significance import holm, randomisation_test
from modeling_condenser.evaluation.similarity import (
    GradedEvaluation,
    correlate,
    measure_similarity,
    read_items,
)
from modeling_condenser.files.settings import parse_value, read_recipe
from modeling_condenser.finetuning.finetune import finetune
from modeling_condenser.publishing.markdown import p_in_words
from modeling_condenser.retrieval.systems import System

TASKS = {"stsb": ("graded_pairs", "Spearman"), "sections": ("triplets", "triplet accuracy")}
RECIPES = {"stsb": "finetune/stsb", "sections": "finetune/wikipedia-sections"}
NONE = "none"  # the encoder without fine-tuning


def main() -> None:
    """Fine-tune and measure each encoder with each size and seed, and print a page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("data", type=Path, help="folder of train.csv, dev.csv and test.csv")
    parser.add_argument("encoders", nargs="+", help="NAME=FOLDER; the first is the control")
    parser.add_argument("--sizes", nargs="+", default=[NONE, "500", "1000", "all"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument(
        "--settings",
        type=parse_value,
        default={},
        help="in place of the recipe's, such as '{learning_rate: 3e-4, bf16: true}'",
    )
    parser.add_argument("--split", default="test", help="to measure (default: test)")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/similarity"))
    arguments = parser.parse_args()
    found = {}
    for encoder in arguments.encoders:
        name, _, folder = encoder.partition("=")
        for size in arguments.sizes:
            seeds = [0] if size == NONE else arguments.seeds
            found[name, size] = [measure(arguments, name, folder, size, seed) for seed in seeds]
            figures = [e.means[TASKS[arguments.task][1]] for e in found[name, size]]
            print(name, size, figures, file=sys.stderr, flush=True)
    print_page(arguments, found)


def measure(
    arguments: argparse.Namespace, name: str, folder: str, size: str, seed: int
) -> Evaluation:
    """Fine-tune and measure once."""
    similarity = "cosine" if arguments.task == "stsb" else "euclidean"
    system = System(folder, {"pooling": "cls", "similarity": similarity})
    if size != NONE:
        run = {
            **read_recipe(RECIPES[arguments.task]),
            "encoder": folder,
            "data": str(arguments.data / "train.csv"),
            **arguments.settings,
            "seed": seed,
            "subset_seed": seed,
            "output_dir": str(arguments.output_dir / f"{name}-{size}-{seed}"),
            **({} if size == "all" else {"train_size": int(size)}),
        }
        with contextlib.redirect_stdout(sys.stderr):  # the trainer's log
            system = System(str(finetune(run)))
    items = read_items(arguments.data / f"{arguments.split}.csv", TASKS[arguments.task][0])
    return measure_similarity(system, items, name=name).evaluation


def print_page(
    arguments: argparse.Namespace, found: dict[tuple[str, str], list[Evaluation]]
) -> None:
    """Print command, table and conditions."""
    measure = TASKS[arguments.task][1]
    names = list(dict.fromkeys(name for name, _ in found))
    tests = [(name, size) for name, size in found if name != names[0]]
    p_values = [compare(found[key], found[names[0], key[1]], measure) for key in tests]
    adjusted = dict(zip(tests, holm(p_values), strict=True))
    rows = []
    for name in names:
        row = [name]
        for size in arguments.sizes:
            mean, control = (
                100 * fmean(e.means[measure] for e in found[n, size]) for n in (name, names[0])
            )
            test = ""
            if p := adjusted.get((name, size)):
                test = f" ({mean - control:+.1f}, {p_in_words(p)})"
            row.append(f"{mean:.1f}{test}")
        rows.append(row)
    n_items = next(iter(found.values()))[0].n_items
    print(f"# {arguments.task}\n\n```bash\npython -m benchmarks.similarity_tasks", end=" ")
    print(f"{shlex.join(sys.argv[1:])}\n```\n")
    print(f"{measure}, times 100, on {n_items:,} items of the split {arguments.split}; means over")
    print(f"the seeds {', '.join(map(str, arguments.seeds))}, which decide labels and order.\n")
    print_table(["labels", *arguments.sizes], rows)
    print(f"\nIn brackets: the difference from {names[0]}. p is that of a two-sided paired")
    print("randomisation test over items, the same swaps for all seeds, after Holm's correction")
    print(f"over all {len(tests)} tests.\n")
    print_conditions(arguments, ["settings"])


def compare(own: list[Evaluation], control: list[Evaluation], measure: str) -> float:
    """The p-value of the difference of the means over seeds."""
    if not isinstance(own[0], GradedEvaluation):
        return mean_evaluation(own).compare(measure, mean_evaluation(control)).p_value
    pairs = [
        [stats.rankdata(e.similarities) for e in pair]  # (N,) each
        for pair in zip(own, control, strict=True)
    ]
    graded = stats.rankdata(own[0].scores)

    def difference(swapped: np.ndarray) -> np.ndarray:  # (B, N) -> (B,)
        found = [
            correlate(np.where(swapped, b, a), graded) - correlate(np.where(swapped, a, b), graded)
            for a, b in pairs
        ]
        return np.mean(found, axis=0)

    return randomisation_test(difference, n=len(graded))


if __name__ == "__main__":
    main()
