"""Retrieval measures as a module of the `evaluate` library: evaluate.load("<this folder>").

Stand-alone, since it travels to the Hub: it needs evaluate, datasets and ir-measures.
`evaluate` reads the imports below with a regex that sees one module a line.
"""

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import datasets
import evaluate
import ir_measures

_DESCRIPTION = """\
Measures of ranked passages by judgements, as papers on dense retrieval report them. See README.md.
"""

_INPUTS = """
Args:
    predictions, references: rows as README.md describes them, matched by query_id.
    measures: names, such as ["MRR@10", "R@100"].
    per_query: whether to return the value of each query too, below "per_query".
"""

_STRING = datasets.Value("string")
_RUN = {"query_id": _STRING, "passage_ids": [_STRING], "scores": [datasets.Value("float64")]}
_QRELS = {"query_id": _STRING, "passage_ids": [_STRING], "grades": [datasets.Value("int64")]}

Rows = Sequence[Mapping[str, Any]]
Values = dict[str, dict[str, float]]  # measure -> query id -> value


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class RetrievalMeasures(evaluate.Metric):
    """The module that `evaluate.load` gives."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="MacAvaney et al. (2022): Streamlining Evaluation with ir-measures.",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": _RUN, "references": _QRELS}),
            reference_urls=["https://ir-measur.es", "https://github.com/usnistgov/trec_eval"],
        )

    def _compute(
        self,
        *,
        predictions: Rows,
        references: Rows,
        measures: Sequence[str] | None = None,
        per_query: bool = False,
    ) -> dict[str, Any]:
        for name, rows in (("predictions", predictions), ("references", references)):
            if len({row["query_id"] for row in rows}) < len(rows):
                raise ValueError(f"{name} has two rows of one query: merge them")
        values = retrieval(predictions, references, measures or ["MRR@10", "nDCG@10", "R@100"])
        if not all(values.values()):
            raise ValueError("no query of references has a relevant passage")
        means = {name: fmean(by_query.values()) for name, by_query in values.items()}
        return {**means, "per_query": values} if per_query else means


def retrieval(predictions: Rows, references: Rows, measures: Sequence[str]) -> Values:
    """Measures of a run by judgements."""
    for name, rows in (("predictions", predictions), ("references", references)):
        for row in rows:
            if len(set(row["passage_ids"])) < len(row["passage_ids"]):
                raise ValueError(f"{name} has a passage twice for query {row['query_id']!r}")
    judged = {
        row["query_id"]: dict(zip(row["passage_ids"], row["grades"], strict=True))
        for row in references
    }
    qrels = {q: grades for q, grades in judged.items() if max(grades.values(), default=0) > 0}
    # ir-measures sees ranks, because it breaks ties in other ways; and numbers of queries, because
    # its program for ERR refuses other ids.
    query_of = {str(number): query for number, query in enumerate(qrels)}
    rankings, run = _rankings(predictions), {}
    for number, query in query_of.items():
        # A passage with the id of its query is the query itself, unless it is relevant.
        found = rankings.get(query, [])
        kept = [p for p in found if p != query or qrels[query].get(p, 0) > 0]
        if kept:
            run[number] = {passage: -float(rank) for rank, passage in enumerate(kept, start=1)}
    numbered = {number: qrels[query] for number, query in query_of.items()}
    values = {name: dict.fromkeys(qrels, 0.0) for name in measures}
    for name in measures:
        for metric in ir_measures.iter_calc([_parse(name)], numbered, run):
            values[name][query_of[metric.query_id]] = float(metric.value)
    return values


def _parse(name: str) -> ir_measures.Measure:
    try:
        measure = ir_measures.parse_measure(name.replace("R-Prec", "Rprec"))
        is_known = ir_measures.DefaultPipeline.supports(measure)
    except (AssertionError, NameError, ValueError):
        is_known = False
    # A cut-off of 0 ends the process in trec_eval's code.
    if not is_known or re.search(r"[=@]0\b(?!\.)", name):
        raise ValueError(
            f"unknown measure {name!r}: expected one that README.md lists, with a cut-off if it "
            "needs one, as in MRR@10"
        )
    return measure


def _rankings(predictions: Rows) -> dict[str, list[str]]:
    """The passages of each query: best first, ties by passage id ascending."""
    rankings = {}
    for row in predictions:
        if any(map(math.isnan, row["scores"])):
            raise ValueError(f"query {row['query_id']!r} has a score that is NaN")
        costs = [-score for score in row["scores"]]
        ranked = sorted(zip(costs, row["passage_ids"], strict=True))
        rankings[row["query_id"]] = [passage for _, passage in ranked]
    return rankings
