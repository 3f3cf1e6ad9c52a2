"""Every measure against trec_eval's own printed output.

    python -m benchmarks.trec_eval_oracle FOLDER

FOLDER holds `figures.json`, which names the `trec_eval` command behind each file of expected
output, and those files with their qrels and runs. Each figure of our measures, per query and in the
mean, is computed with trec_eval's order of ties and the command's options (-c, -l, -M). It must
equal the printed one to its last decimal; otherwise the exit status is 1.
"""

import argparse
import json
import math
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ir_measures import read_trec_qrels

from benchmarks.harness import print_table
from modeling_condenser.collection.collection import gather_judgements
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
_CALL = argparse.ArgumentParser("trec_eval", allow_abbrev=False)
_CALL.add_argument("-q", action="store_true")
_CALL.add_argument("-c", dest="counts_missing", action="store_true")
_CALL.add_argument("-m", action="append")
_CALL.add_argument("-l", dest="level", type=int, default=1)
_CALL.add_argument("-M", dest="depth", type=int)
_CALL.add_argument("files", nargs=2)


class Figure(NamedTuple):
    """One line of trec_eval's output: `measure query value`."""

    name: str
    query: str
    printed: str


def main() -> None:
    """Check all cases and print a row for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    rows, not_ours = [], set()
    for title, words, folder, figures in _cases(parser.parse_args().folder):
        call = _CALL.parse_args(shlex.split(words)[1:])
        rows.append([title, *check(call, folder, figures)])
        not_ours |= {f.name for f in figures if _our_name(f.name, call.level) is None}
    print_table(["expected output", "figures", "wrong", "largest difference"], rows)
    print(f"\nNot measures of this project: {', '.join(sorted(not_ours))}")
    if n_wrong := sum(row[2] for row in rows):
        sys.exit(f"{n_wrong} figures differ from trec_eval's.")


def _cases(folder: Path) -> Iterator[tuple[str, str, Path, list[Figure]]]:
    """Title, command, folder and expected figures of every case that `figures.json` lists."""
    listed = json.loads((folder / "figures.json").read_text())
    trec = folder / listed["trec_eval"]["folder"]
    for title, words in listed["trec_eval"]["expected_output"].items():
        lines = (trec / title).read_text().splitlines()
        yield title, words, trec, [Figure(*map(str.strip, line.split("\t"))) for line in lines]
    cacm = listed["cacm"]
    figures = [Figure(name, "all", f"{value:.4f}") for name, value in cacm["trec_eval"].items()]
    words = f"trec_eval {cacm['qrels']} {cacm['run']}"
    yield "CACM, BM25", words, folder / cacm["folder"], figures


def check(call: Any, folder: Path, figures: list[Figure]) -> tuple[int, int, float]:
    """Compute all figures of a file, and print those that differ from the expected ones.

    Returns:
        How many figures are ours, how many are wrong, and the largest difference.
    """
    qrels, run = (folder / file for file in call.files)
    names = {figure: _our_name(figure.name, call.level) for figure in figures}
    names = {figure: name for figure, name in names.items() if name}
    measures = list(dict.fromkeys(names.values()))
    found = _evaluate_as_trec_eval(call, qrels, run, measures, depth=call.depth)
    pairs = [(figure, _value(found, name, figure.query)) for figure, name in names.items()]
    if call.depth:  # a ranking that is cut off has cut-off measures
        cut = {f: f"{names[f]}@{call.depth}" for f in names if f.name in ("recip_rank", "map")}
        whole = _evaluate_as_trec_eval(call, qrels, run, list(dict.fromkeys(cut.values())))
        pairs += [(f, _value(whole, name, f.query)) for f, name in cut.items()]
    wrong = [(figure, value) for figure, value in pairs if f"{value:.4f}" != figure.printed]
    for figure, value in wrong:
        print(f"WRONG {figure.name} {figure.query}: {value:.6f}, expected {figure.printed}")
    largest = max(abs(value - float(figure.printed)) for figure, value in pairs)
    return len(pairs), len(wrong), largest


def _our_name(name: str, level: int) -> str | None:
    """Our name of one of trec_eval's measures; None where we have none."""
    rel = f"(rel={level})" if level > 1 else ""
    for pattern, ours in _NAMES.items():
        if match := re.fullmatch(pattern, name):
            return ours.format(rel=rel, **match.groupdict())
    return None


def _evaluate_as_trec_eval(
    call: Any, qrels_file: Path, run_file: Path, names: list[str], *, depth: int | None = None
) -> Evaluation:
    """Measure a run with the ties and the queries that trec_eval and its options have.

    Scores are compared as float32, ties go by id, descending; without -c, queries that the run
    lacks do not count; queries without a relevant passage count as 0.
    """
    judged = ((q.query_id, q.doc_id, q.relevance) for q in read_trec_qrels(str(qrels_file)))
    run, qrels = read_run(run_file), gather_judgements(judged)
    ordered = {
        query: sorted(scores, key=lambda p: (np.float32(scores[p]), p), reverse=True)[:depth]
        for query, scores in run.items()
    }
    ranked = {q: {p: -float(i) for i, p in enumerate(ids)} for q, ids in ordered.items()}
    counted = [query for query in qrels if call.counts_missing or query in ranked]
    found = evaluate_run({query: qrels[query] for query in counted}, ranked, measures=names)
    return make_evaluation(
        {
            name: {query: values.get(query, 0.0) for query in counted}
            for name, values in found.per_query.items()
        }
    )


def _value(evaluation: Evaluation, name: str, query: str) -> float:
    if query == "all":
        return evaluation.means[name]
    return evaluation.per_query[name].get(query, math.nan)


if __name__ == "__main__":
    main()
