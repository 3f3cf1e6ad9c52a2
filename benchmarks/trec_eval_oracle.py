"""Every measure against trec_eval's own printed output.

    python -m benchmarks.trec_eval_oracle FOLDER

FOLDER holds `figures.json`, which names the `trec_eval` command behind each file of expected
output, and those files with their qrels and runs. Each figure of a measure that this project has,
per query and in the mean, is computed with trec_eval's order of ties and the command's options
(-c, -l, -M) and must be the printed one to its last decimal; otherwise the exit status is 1. The
last column counts the figures that differ with the project's own rules (ties by id ascending,
queries that the run lacks count 0, a ranking is not cut off).
"""

import argparse
import json
import math
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness import print_table
from modeling_condenser.collection.msmarco import read_trec_qrels
from modeling_condenser.evaluation.measures import Evaluation, evaluate_run, make_evaluation
from modeling_condenser.retrieval.runs import read_run

# trec_eval's name -> ours; k is a cut-off.
_NAMES = {
    r"map": "MAP{rel}",
    r"Rprec": "R-Prec{rel}",
    r"recip_rank": "MRR{rel}",
    r"ndcg": "nDCG",
    r"ndcg_cut_(?P<k>\d+)": "nDCG@{k}",
    r"P_(?P<k>\d+)": "P{rel}@{k}",
    r"recall_(?P<k>\d+)": "R{rel}@{k}",
    r"map_cut_(?P<k>\d+)": "MAP{rel}@{k}",
    r"success_(?P<k>\d+)": "Success{rel}@{k}",
}


class Figure(NamedTuple):
    """One line of trec_eval's output: `measure query value`."""

    name: str
    query: str
    printed: str


@dataclass(frozen=True)
class Command:
    """A call of trec_eval: its options -c, -l and -M, and its two files."""

    counts_missing: bool
    level: int
    depth: int | None
    qrels: Path
    run: Path

    @classmethod
    def parse(cls, words: str, folder: Path) -> "Command":
        parser = argparse.ArgumentParser(prog=words, allow_abbrev=False)
        parser.add_argument("-q", action="store_true")
        parser.add_argument("-c", action="store_true")
        parser.add_argument("-m", action="append")
        parser.add_argument("-l", type=int, default=1)
        parser.add_argument("-M", type=int)
        parser.add_argument("files", nargs=2)
        options = parser.parse_args(shlex.split(words)[1:])
        return cls(options.c, options.l, options.M, *(folder / file for file in options.files))

    def our_name(self, name: str) -> str | None:
        """Our name of one of trec_eval's measures; None where we have none."""
        rel = f"(rel={self.level})" if self.level > 1 else ""
        for pattern, ours in _NAMES.items():
            if match := re.fullmatch(pattern, name):
                return ours.format(rel=rel, **match.groupdict())
        return None

    def evaluate(self, names: list[str]) -> Evaluation:
        """Measure the run with the ties and the queries of this project."""
        run = read_run(self.run, words_behind_tag=True)
        return evaluate_run(read_trec_qrels(self.qrels), run, measures=names)

    def evaluate_as_trec_eval(self, names: list[str], *, depth: int | None) -> Evaluation:
        """Measure the run with the ties and the queries that trec_eval and its options have.

        Scores are compared as float32, ties go by id, descending; without -c, queries that the run
        lacks do not count; queries without a relevant passage count as 0.
        """
        run, qrels = read_run(self.run, words_behind_tag=True), read_trec_qrels(self.qrels)
        ordered = {
            query: sorted(scores, key=lambda p: (np.float32(scores[p]), p), reverse=True)[:depth]
            for query, scores in run.items()
        }
        ranked = {q: {p: -float(i) for i, p in enumerate(ids)} for q, ids in ordered.items()}
        counted = [query for query in qrels if self.counts_missing or query in ranked]
        found = evaluate_run({query: qrels[query] for query in counted}, ranked, measures=names)
        return make_evaluation(
            {
                name: {query: values.get(query, 0.0) for query in counted}
                for name, values in found.per_query.items()
            }
        )


class Outcome(NamedTuple):
    """How the figures of one file compare."""

    n_figures: int
    n_wrong: int
    largest_difference: float
    n_other_under_ours: int


def check(command: Command, figures: list[Figure]) -> Outcome:
    """Compute all figures of a file; print those that are not the printed ones."""
    names = {f.name: command.our_name(f.name) for f in figures}
    wanted = list(dict.fromkeys(name for name in names.values() if name))
    found = command.evaluate_as_trec_eval(wanted, depth=command.depth)
    ours = command.evaluate(wanted)
    values = [(f, _value(found, names[f.name], f.query)) for f in figures if names[f.name]]
    n_other = sum(f"{_value(ours, names[f.name], f.query):.4f}" != f.printed for f, _ in values)
    if command.depth:  # a ranking that is cut off has cut-off measures
        cut = {name: f"{command.our_name(name)}@{command.depth}" for name in ("recip_rank", "map")}
        whole = command.evaluate_as_trec_eval(list(cut.values()), depth=None)
        values += [(f, _value(whole, cut[f.name], f.query)) for f in figures if f.name in cut]
    wrong = [(f, value) for f, value in values if f"{value:.4f}" != f.printed]
    for f, value in wrong:
        print(f"WRONG {f.name} {f.query}: {value:.6f}, expected {f.printed}")
    largest = max(abs(value - float(f.printed)) for f, value in values)
    return Outcome(len(values), len(wrong), largest, n_other)


def _value(evaluation: Evaluation, name: str | None, query: str) -> float:
    assert name is not None
    if query == "all":
        return evaluation.means[name]
    return evaluation.per_query[name].get(query, math.nan)


def cases(folder: Path) -> Iterator[tuple[str, Command, list[Figure]]]:
    """Name, command and expected figures of every case that `figures.json` lists."""
    listed = json.loads((folder / "figures.json").read_text())
    trec = folder / listed["trec_eval"]["folder"]
    for name, words in listed["trec_eval"]["expected_output"].items():
        lines = (trec / name).read_text().splitlines()
        figures = [Figure(*(word.strip() for word in line.split("\t"))) for line in lines]
        yield name, Command.parse(words, trec), figures
    cacm = listed["cacm"]
    command = Command.parse(f"trec_eval {cacm['qrels']} {cacm['run']}", folder / cacm["folder"])
    figures = [Figure(name, "all", f"{value:.4f}") for name, value in cacm["trec_eval"].items()]
    yield "CACM, BM25", command, figures


def main() -> None:
    """Check all cases and print a row for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    rows, n_wrong, not_ours = [], 0, set()
    for name, command, figures in cases(parser.parse_args().folder):
        outcome = check(command, figures)
        n_wrong += outcome.n_wrong
        not_ours |= {f.name for f in figures if command.our_name(f.name) is None}
        rows.append([name, *outcome])
    print_table(
        ["expected output", "figures", "wrong", "largest difference", "other under ours"], rows
    )
    print(f"\nNot measures of this project: {', '.join(sorted(not_ours))}")
    if n_wrong:
        sys.exit(f"{n_wrong} figures differ from trec_eval's.")


if __name__ == "__main__":
    main()
