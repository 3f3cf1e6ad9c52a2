"""Measure a run, by judgements (qrels) or by the strings that answer each query.

The formulas are those of ir_measures, under the names that the papers use:

    MRR, MRR@k         reciprocal rank of the first relevant passage, 0 if it is not in the first k
    nDCG, nDCG@k       gains are the grades themselves, the discount is log2(rank + 1)
    R@k                share of the relevant passages that are among the first k
    MAP, MAP@k         mean over the relevant passages of the precision at their rank
    R-Prec             precision at rank r, for r relevant passages
    P@k, Success@k     share of relevant passages among the first k; whether there is one
    Hit@k              whether one of the first k contains an answer string (Karpukhin et al. 2020)

A grade of 1 or more is relevant. `(rel=2)` raises the threshold, as in TREC Deep Learning's
MRR(rel=2)@10 and R(rel=2)@1000. nDCG has no threshold.

`Conventions` settles what the definitions leave open. By default ties are broken by passage id
ascending, and the mean is over all queries that have a relevant passage. `TREC_EVAL` reproduces
trec_eval exactly.
"""

import difflib
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

import ir_measures
import numpy as np

from modeling_condenser.collection.answers import AnswerMatcher
from modeling_condenser.retrieval.runs import Run, rank_passages

logger = logging.getLogger(__name__)

DEFAULT_MEASURES = ("MRR@10", "nDCG@10", "R@100")
DEFAULT_ANSWER_MEASURES = ("Hit@20", "Hit@100")

_HIT = "Hit"
_IR_MEASURES = {
    "MRR": ir_measures.RR,
    "nDCG": ir_measures.nDCG,
    "R": ir_measures.R,
    "MAP": ir_measures.AP,
    "R-Prec": ir_measures.Rprec,
    "P": ir_measures.P,
    "Success": ir_measures.Success,
}
_NEEDS_CUTOFF, _NO_CUTOFF, _NO_THRESHOLD = {"R", "P", "Success", _HIT}, {"R-Prec"}, {"nDCG", _HIT}
_NAME = re.compile(r"([A-Za-z-]+)(?:\(rel=(\d+)\))?(?:@(\d+))?")
_GREATEST = 1_000_000  # grade, threshold or cut-off: trec_eval allocates a table of this size
_PASSAGES_AT_ONCE = 50_000  # whose texts are in memory: 40 MB of DPR's passages of 100 words


class Measure(NamedTuple):
    """The parts of a measure's name, such as R(rel=2)@1000."""

    family: str
    threshold: int = 1
    cutoff: int | None = None

    @property
    def is_by_answer(self) -> bool:
        """Whether the measure looks for answer strings instead of judged passages."""
        return self.family == _HIT

    @property
    def in_ir_measures(self) -> ir_measures.Measure:
        measure = _IR_MEASURES[self.family]
        if self.threshold > 1:
            measure = measure(rel=self.threshold)
        return measure @ self.cutoff if self.cutoff else measure


def parse_measure(name: str) -> Measure:
    """Parse the name of a measure.

    Raises:
        ValueError: the measure is unknown; the message suggests the nearest one.
    """
    families = (*_IR_MEASURES, _HIT)
    match = _NAME.fullmatch(name)
    if not match or match[1] not in families:
        aliases = {family.lower(): family for family in families} | {"recall": "R"}
        word = re.split(r"[(@]", name)[0].lower()
        nearest = aliases[difflib.get_close_matches(word, aliases, n=1, cutoff=0.0)[0]]
        raise ValueError(
            f"unknown measure {name!r}: expected one of {', '.join(families)}, as in MRR@10 or"
            f" R(rel=2)@1000; did you mean {nearest!r}?"
        )
    family, threshold, cutoff = match.groups()
    if family in _NEEDS_CUTOFF and not cutoff:
        raise ValueError(f"measure {name!r} has no cut-off: add one, as in {family}@100")
    if family in _NO_CUTOFF and cutoff:
        raise ValueError(f"measure {name!r}: {family} takes no cut-off; remove @{cutoff}")
    if family in _NO_THRESHOLD and threshold:
        raise ValueError(f"measure {name!r}: {family} takes no threshold; remove (rel={threshold})")
    if not all(1 <= int(number) <= _GREATEST for number in (threshold, cutoff) if number):
        raise ValueError(f"measure {name!r} has a number outside 1 to {_GREATEST:,}")
    return Measure(family, int(threshold or 1), int(cutoff) if cutoff else None)


def check_measures(names: Sequence[str]) -> dict[str, Measure]:
    """Parse a list of measures.

    Raises:
        ValueError: a measure is unknown, or `names` is empty or a single string.
    """
    if isinstance(names, str) or not names:
        raise ValueError(f'measures is {names!r}, expected a list of names, such as ["MRR@10"]')
    return {name: parse_measure(name) for name in names}


@dataclass(frozen=True)
class Conventions:
    """How to count what the definitions of the measures leave open.

    Attributes:
        ties: "id_ascending" compares scores as float64 and puts the smaller passage id first;
            "trec_eval" compares them as float32 and puts the larger id first.
        missing: a judged query without a passage in the run counts as 0 ("zero", `trec_eval -c`) or
            is left out ("skip").
        unanswerable: a judged query without a relevant passage is left out ("skip") or counts as 0
            ("zero", as in trec_eval).
        depth: measure only the first passages of each ranking (`trec_eval -M`); None for all.
    """

    ties: Literal["id_ascending", "trec_eval"] = "id_ascending"
    missing: Literal["zero", "skip"] = "zero"
    unanswerable: Literal["skip", "zero"] = "skip"
    depth: int | None = None


OURS = Conventions()
"""The conventions of every figure in this project."""

TREC_EVAL = Conventions(ties="trec_eval", missing="skip", unanswerable="zero")
"""`trec_eval` without options."""

TREC_EVAL_C = Conventions(ties="trec_eval", missing="zero", unanswerable="zero")
"""`trec_eval -c`."""


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


def evaluate_run(
    qrels: Mapping[str, Mapping[str, int]],
    run: Run,
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    conventions: Conventions = OURS,
) -> Evaluation:
    """Measure a run by judgements.

    All measures have the same queries: a query whose best grade is 1 counts as 0 in MRR(rel=2)@10,
    as with `trec_eval -l 2`. Queries of the run that are not judged are ignored. Passages that are
    not judged are not relevant.

    Args:
        qrels: query id -> passage id -> grade; 0 or less is not relevant.
        run: query id -> passage id -> score.
        measures: names such as "MRR@10", "nDCG@10", "R(rel=2)@1000"; see the module's docstring.
        conventions: for ties, missing queries and unanswerable queries.

    Raises:
        ValueError: an unknown measure, a NaN score, no query to measure, or a run without any
            judged query.
    """
    parsed = check_measures(measures)
    by_answer = [name for name, measure in parsed.items() if measure.is_by_answer]
    if by_answer:
        raise ValueError(f"{by_answer[0]!r} is measured by answer strings: use evaluate_answers")
    _check_overlap(qrels, run)
    judged = _judged_queries(qrels, run, conventions)
    # The providers of ir_measures order ties in different ways. Scores -1, -2, ... have no ties.
    ranked = {
        q: {passage: -float(rank) for rank, passage in enumerate(_ranking(q, run[q], conventions))}
        for q in judged
        if run.get(q)
    }
    in_ir = {name: measure.in_ir_measures for name, measure in parsed.items()}
    values = {measure: dict.fromkeys(judged, 0.0) for measure in in_ir.values()}
    if ranked:
        for metric in ir_measures.iter_calc(list(values), judged, ranked):
            values[metric.measure][metric.query_id] = float(metric.value)
    skipped = [] if conventions.unanswerable == "zero" else [q for q in qrels if q not in judged]
    return make_evaluation(
        {name: dict(values[measure]) for name, measure in in_ir.items()},
        unanswerable=[q for q in skipped if not _has_relevant(qrels[q])],
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
    `AnswerMatcher`. Queries without answers are left out and listed as unanswerable. Queries
    without a passage in the run count as 0.

    Args:
        answers: query id -> strings.
        run: query id -> passage id -> score.
        passage_text: returns the texts of the passages with these ids, in their order. It is called
            for the passages of several queries at a time, to limit memory.
        measures: "Hit@20" and the like.

    Raises:
        ValueError: another kind of measure, a NaN score, no query with an answer, or a run without
            any query that has answers.
    """
    cutoffs = {}
    for name, measure in check_measures(measures).items():
        if not measure.is_by_answer or measure.cutoff is None:
            raise ValueError(f"{name!r} is not measured by answer strings: use evaluate_run")
        cutoffs[name] = measure.cutoff
    _check_overlap(answers, run)
    asked = [q for q, strings in answers.items() if strings]
    if not asked:
        raise ValueError(f"none of the {len(answers)} queries has an answer: check the queries")
    deepest = Conventions(depth=max(cutoffs.values()))
    rankings = {q: _ranking(q, run[q], deepest) for q in asked if run.get(q)}
    first_hits = dict.fromkeys(asked, math.inf)
    n_queries = max(1, _PASSAGES_AT_ONCE // max(map(len, rankings.values()), default=1))
    for start in range(0, len(rankings), n_queries):
        queries = list(rankings)[start : start + n_queries]
        ids = list(dict.fromkeys(passage for q in queries for passage in rankings[q]))
        texts = dict(zip(ids, passage_text(ids), strict=True))
        for q in queries:
            matcher = AnswerMatcher(answers[q])
            hits = (rank for rank, p in enumerate(rankings[q], 1) if matcher.is_in(texts[p]))
            first_hits[q] = next(hits, math.inf)
    return make_evaluation(
        {name: {q: float(r <= k) for q, r in first_hits.items()} for name, k in cutoffs.items()},
        unanswerable=[q for q, strings in answers.items() if not strings],
    )


def make_evaluation(
    per_query: dict[str, dict[str, float]], *, unanswerable: Sequence[str] = ()
) -> Evaluation:
    """An evaluation whose means are those of the values per query."""
    means = {name: fmean(values.values()) for name, values in per_query.items()}
    return Evaluation(means=means, per_query=per_query, unanswerable=tuple(unanswerable))


def _check_overlap(judgements: Mapping[str, object], run: Run) -> None:
    unjudged = [q for q in run if q not in judgements]
    if run and len(unjudged) == len(run):
        raise ValueError(
            f"none of the {len(run)} queries of the run is judged: the run has {unjudged[0]!r}, the"
            f" judgements have {next(iter(judgements), 'nothing')!r}. Take both from the same"
            " collection and split"
        )
    if unjudged:
        logger.info("Ignoring %d of the run's %d queries: not judged", len(unjudged), len(run))


def _judged_queries(
    qrels: Mapping[str, Mapping[str, int]], run: Run, conventions: Conventions
) -> dict[str, dict[str, int]]:
    """The judgements of the queries that the mean is over, in their order."""
    judged = {
        q: dict(grades)
        for q, grades in qrels.items()
        if grades and (conventions.unanswerable == "zero" or _has_relevant(grades))
    }
    greatest = max((max(grades.values()) for grades in judged.values()), default=0)
    if greatest > _GREATEST:
        raise ValueError(
            f"the judgements contain the grade {greatest}, expected at most {_GREATEST:,}: check"
            " the order of their columns"
        )
    if greatest < 1:
        raise ValueError(
            f"none of the {len(qrels)} judged queries has a relevant passage (grade above 0):"
            " check the qrels"
        )
    if conventions.missing == "skip":
        judged = {q: grades for q, grades in judged.items() if run.get(q)}
        if not judged:
            raise ValueError('the run is empty for all judged queries, and missing is "skip"')
    return judged


def _has_relevant(grades: Mapping[str, int]) -> bool:
    return any(grade > 0 for grade in grades.values())


def _ranking(query_id: str, scores: Mapping[str, float], conventions: Conventions) -> list[str]:
    """The passages of a query, best first."""
    if any(math.isnan(score) for score in scores.values()):
        raise ValueError(f"query {query_id!r} has a NaN score: look for NaN in the embeddings")
    if conventions.ties == "trec_eval":
        with np.errstate(over="ignore"):
            pairs = [(float(np.float32(score)), passage) for passage, score in scores.items()]
        ranking = [passage for _, passage in sorted(pairs, reverse=True)]
    else:
        ranking = [passage for passage, _ in rank_passages(scores)]
    return ranking[: conventions.depth]
