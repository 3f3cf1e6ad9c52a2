"""Measure a run, by judgements (qrels) or by the strings that answer each query.

    MRR, MRR@k         reciprocal rank of the first relevant passage, 0 if it is not in the first k
    nDCG, nDCG@k       gains are the grades themselves, the discount is log2(rank + 1)
    R@k                share of the relevant passages that are among the first k
    MAP, MAP@k         mean over the relevant passages of the precision at their rank
    R-Prec             precision at rank r, for r relevant passages
    P@k, Success@k     share of relevant passages among the first k; whether there is one
    Hit@k              whether one of the first k contains an answer string (Karpukhin et al. 2020)

A grade of 1 or more is relevant; `(rel=2)` raises the threshold, as in MRR(rel=2)@10. Ties are
broken by passage id, ascending. The mean is over all queries that have a relevant passage; a query
without results counts as 0. All but Hit@k are computed by ir_measures.
"""

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import ir_measures
from ir_measures.measures.base import ParamInfo

from modeling_condenser.collection.dpr import AnswerMatcher
from modeling_condenser.retrieval.runs import Run, rank_passages

DEFAULT_MEASURES = ("MRR@10", "nDCG@10", "R@100")
DEFAULT_ANSWER_MEASURES = ("Hit@20", "Hit@100")

_NUMBER = r"([1-9]\d{0,5})"  # trec_eval's code aborts the process on 0 and on very great numbers
_NAME = re.compile(rf"([A-Za-z][A-Za-z0-9-]*)(?:\(rel={_NUMBER}\))?(?:@{_NUMBER})?")
_GREATEST_GRADE = 1_000_000  # trec_eval's code allocates a table of this size
_QUERIES_AT_ONCE = 500  # whose passages' texts are in memory


class Hit(ir_measures.Measure):
    """Whether an answer string is in one of the first k passages; see `evaluate_answers`."""

    NAME = "Hit"
    SUPPORTED_PARAMS = {"cutoff": ParamInfo(dtype=int, required=True)}


# To add a measure of ir_measures, add a line.
_FAMILIES = {
    "MRR": ir_measures.RR,
    "nDCG": ir_measures.nDCG,
    "R": ir_measures.R,
    "MAP": ir_measures.AP,
    "R-Prec": ir_measures.Rprec,
    "P": ir_measures.P,
    "Success": ir_measures.Success,
    "Hit": Hit(),
}


@dataclass(frozen=True)
class Evaluation:
    """The measures of one run.

    Attributes:
        means: measure -> mean over the evaluated queries.
        per_query: measure -> query id -> value; the same queries for every measure, in the order of
            the judgements.
        unanswerable: ids of judged queries that were left out because nothing is relevant to them.
    """

    means: dict[str, float]
    per_query: dict[str, dict[str, float]]
    unanswerable: tuple[str, ...] = ()


def parse_measure(name: str) -> ir_measures.Measure:
    """Parse the name of a measure, or raise a ValueError that suggests the nearest one."""
    match = _NAME.fullmatch(name)
    if not match or match[1] not in _FAMILIES:
        aliases = {family.lower(): family for family in _FAMILIES} | {"recall": "R"}
        word = re.split(r"[(@]", name)[0].lower()
        nearest = aliases[difflib.get_close_matches(word, aliases, n=1, cutoff=0.0)[0]]
        raise ValueError(
            f"unknown measure {name!r}: expected one of {', '.join(_FAMILIES)}, as in MRR@10 or"
            f" R(rel=2)@1000; did you mean {nearest!r}?"
        )
    family, threshold, cutoff = match.groups()
    stated = {"rel": threshold, "cutoff": cutoff}
    measure = _FAMILIES[family](**{key: int(value) for key, value in stated.items() if value})
    try:
        measure.validate_params()
    except AssertionError as error:
        takes = [
            f"{key} ({'required' if info.required else 'optional'})"
            for key, info in measure.SUPPORTED_PARAMS.items()
            if key in stated
        ]
        raise ValueError(f"measure {name!r}: {family} takes {' and '.join(takes)}") from error
    return measure


def check_measures(names: Sequence[str]) -> dict[str, ir_measures.Measure]:
    """Parse a list of names: name -> measure."""
    if isinstance(names, str) or not names:
        raise ValueError(f'measures is {names!r}, expected a list of names, such as ["MRR@10"]')
    return {name: parse_measure(name) for name in names}


def make_evaluation(
    per_query: dict[str, dict[str, float]], *, unanswerable: Sequence[str] = ()
) -> Evaluation:
    """An evaluation whose means are those of the values per query."""
    means = {name: fmean(values.values()) for name, values in per_query.items()}
    return Evaluation(means, per_query, tuple(unanswerable))


def evaluate_run(
    qrels: Mapping[str, Mapping[str, int]],
    run: Run,
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
) -> Evaluation:
    """Measure a run by judgements.

    All measures have the same queries: a query whose best grade is 1 counts as 0 in MRR(rel=2)@10,
    as with `trec_eval -l 2`. Queries and passages that are not judged are ignored or not relevant.

    Args:
        qrels: query id -> passage id -> grade; 0 or less is not relevant.
        run: query id -> passage id -> score.
        measures: names; see the module's docstring.

    Raises:
        ValueError: an unknown measure, a NaN score, or no judged query in the run.
    """
    wanted = check_measures(measures)
    if any(isinstance(measure, Hit) for measure in wanted.values()):
        raise ValueError("Hit is measured by answer strings: use evaluate_answers")
    best_grades = {query: max(grades.values(), default=0) for query, grades in qrels.items()}
    judged = {query: dict(qrels[query]) for query, grade in best_grades.items() if grade > 0}
    _check_queries(qrels, run, usable=judged, lacking="a relevant passage")
    if (greatest := max(best_grades.values())) > _GREATEST_GRADE:
        raise ValueError(f"the qrels have the grade {greatest}: check the order of their columns")
    # The providers of ir_measures order ties in different ways. Scores -1, -2, ... have no ties.
    ranked = {
        query: {passage: -float(rank) for rank, passage in enumerate(_ranking(query, run[query]))}
        for query in judged
        if run.get(query)
    }
    values = {measure: dict.fromkeys(judged, 0.0) for measure in wanted.values()}
    if ranked:
        for metric in ir_measures.iter_calc(list(values), judged, ranked):
            values[metric.measure][metric.query_id] = float(metric.value)
    return make_evaluation(
        {name: dict(values[measure]) for name, measure in wanted.items()},
        unanswerable=[query for query in qrels if query not in judged],
    )


def evaluate_answers(
    answers: Mapping[str, Sequence[str]],
    run: Run,
    passage_text: Callable[[list[str]], list[str]],
    *,
    measures: Sequence[str] = DEFAULT_ANSWER_MEASURES,
) -> Evaluation:
    """Measure a run by answer strings, as DPR does (Karpukhin et al. 2020).

    A passage is a hit if its text, without the title, contains one of the answers; see
    `AnswerMatcher`. Queries without answers are left out and listed as unanswerable.

    Args:
        answers: query id -> strings.
        run: query id -> passage id -> score.
        passage_text: returns the texts of the passages with these ids, in their order. It is called
            for the passages of several queries at a time, to limit memory.
        measures: "Hit@20" and the like.

    Raises:
        ValueError: another kind of measure, a NaN score, or no query with an answer in the run.
    """
    parsed = check_measures(measures)
    if not all(isinstance(measure, Hit) for measure in parsed.values()):
        raise ValueError("only Hit@k is measured by answer strings: use evaluate_run for others")
    cutoffs = {name: measure.params["cutoff"] for name, measure in parsed.items()}
    asked = [query for query, strings in answers.items() if strings]
    _check_queries(answers, run, usable=asked, lacking="an answer")
    first_hits = dict.fromkeys(asked, math.inf)
    for start in range(0, len(asked), _QUERIES_AT_ONCE):
        rankings = {
            query: _ranking(query, run.get(query, {}))[: max(cutoffs.values())]
            for query in asked[start : start + _QUERIES_AT_ONCE]
        }
        ids = list(dict.fromkeys(passage for ranking in rankings.values() for passage in ranking))
        texts = dict(zip(ids, passage_text(ids), strict=True))
        for query, ranking in rankings.items():
            matcher = AnswerMatcher(answers[query])
            hits = (rank for rank, p in enumerate(ranking, 1) if matcher.is_in(texts[p]))
            first_hits[query] = next(hits, math.inf)
    return make_evaluation(
        {
            name: {q: float(rank <= k) for q, rank in first_hits.items()}
            for name, k in cutoffs.items()
        },
        unanswerable=[query for query, strings in answers.items() if not strings],
    )


def _check_queries(
    judgements: Mapping[str, object], run: Run, *, usable: Collection[str], lacking: str
) -> None:
    if run and not run.keys() & judgements.keys():
        raise ValueError(
            f"none of the {len(run)} queries of the run is judged: the run has {next(iter(run))!r},"
            f" the judgements have {next(iter(judgements), 'nothing')!r}. Take both from the same"
            " collection and split"
        )
    if not usable:
        raise ValueError(f"none of the {len(judgements)} judged queries has {lacking}")


def _ranking(query_id: str, scores: Mapping[str, float]) -> list[str]:
    if any(math.isnan(score) for score in scores.values()):
        raise ValueError(f"query {query_id!r} has a NaN score: look for NaN in the embeddings")
    return [passage for passage, _ in rank_passages(scores)]
