"""Measures of a run against qrels: one mean and one value per query for each.

In: qrels and a run. Out: an `Evaluation`. The formulas are ir_measures' (its pytrec_eval and
MS MARCO providers), under the names that the papers use. Gains of nDCG are the grades themselves,
as in trec_eval; MRR and R count a grade of 1 or more as relevant.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import ir_measures

from .runs import Run, rank_passages

DEFAULT_MEASURES = ("MRR@10", "nDCG@10", "R@100")

_FAMILIES: dict[str, ir_measures.Measure] = {
    "MRR": ir_measures.RR,
    "nDCG": ir_measures.nDCG,
    "R": ir_measures.R,
    "P": ir_measures.P,
    "MAP": ir_measures.AP,
    "Success": ir_measures.Success,
}


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate_run` found.

    Attributes:
        means: measure -> mean over the evaluated queries.
        per_query: measure -> query id -> value; the same queries for every measure, in qrels order.
        unanswerable: ids of judged queries that were left out, since no passage is relevant.
    """

    means: dict[str, float]
    per_query: dict[str, dict[str, float]]
    unanswerable: tuple[str, ...] = ()


def evaluate_run(
    qrels: Mapping[str, Mapping[str, int]], run: Run, *, measures: Sequence[str] = DEFAULT_MEASURES
) -> Evaluation:
    """Score a run.

    The mean is over the queries that have a relevant judged passage. One of them for which the run
    holds nothing counts as 0, as with `trec_eval -c` (plain trec_eval would leave it out). A query
    of the run without qrels is ignored, as trec_eval does. A judged query none of whose passages is
    relevant is left out (no system can score on it) and listed as `unanswerable`; TREC drops such
    topics before averaging, while trec_eval, given one, averages a 0.

    Ties are broken by passage id ascending for every measure. Left alone, the two providers would
    order tied passages in opposite ways, and trec_eval's float32 scores would make new ties.

    Args:
        qrels: query id -> passage id -> grade; 0 or less is not relevant.
        run: query id -> passage id -> score.
        measures: names such as "MRR@10", "nDCG@10", "R@100", "P@5", "MAP@100", "Success@1".

    Returns:
        Means and values per query.

    Raises:
        ValueError: an unknown measure, or no query with a relevant passage.
    """
    parsed = {_parse_measure(name): name for name in measures}
    relevant = {q: dict(grades) for q, grades in qrels.items() if _has_relevant(grades)}
    if not relevant:
        raise ValueError(
            f"none of the {len(qrels)} judged queries has a relevant passage, expected at least"
            " one: a grade above 0 marks a relevant one; check the qrels"
        )
    ranked = {q: _scores_from_ranks(run[q]) for q in relevant if run.get(q)}
    per_query = {name: dict.fromkeys(relevant, 0.0) for name in parsed.values()}
    for metric in ir_measures.iter_calc(list(parsed), relevant, ranked):
        per_query[parsed[metric.measure]][metric.query_id] = float(metric.value)
    means = {name: fmean(values.values()) for name, values in per_query.items()}
    unanswerable = tuple(query_id for query_id in qrels if query_id not in relevant)
    return Evaluation(means=means, per_query=per_query, unanswerable=unanswerable)


def _has_relevant(grades: Mapping[str, int]) -> bool:
    return any(grade > 0 for grade in grades.values())


def _scores_from_ranks(scores: Mapping[str, float]) -> dict[str, float]:
    """Replace scores by -1, -2, …: the same order for every tool, exact in float32."""
    return {passage: -float(rank) for rank, (passage, _) in enumerate(rank_passages(scores), 1)}


def _parse_measure(name: str) -> ir_measures.Measure:
    family, _, cutoff = name.partition("@")
    if family in _FAMILIES and cutoff.isdecimal() and int(cutoff) > 0:
        return _FAMILIES[family] @ int(cutoff)
    nearest = difflib.get_close_matches(family, _FAMILIES, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"unknown measure {name!r}: expected one of {', '.join(_FAMILIES)} with a cut-off;"
        f" did you mean '{nearest}@{cutoff if cutoff.isdecimal() else 10}'?"
    )
