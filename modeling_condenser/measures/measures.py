"""Measures of a run: one mean and one value per query for each.

In: a run, and judgements (qrels) or the strings that answer each query. Out: an `Evaluation`.
The formulas are ir_measures' (trec_eval's own code, and MS MARCO's for MRR with a cut-off), under
the names that the papers use:

    MRR, MRR@k         reciprocal rank of the first relevant passage, 0 if it is not in the first k
    nDCG, nDCG@k       gains are the grades themselves, the discount is log2(rank + 1)
    R@k                share of the relevant passages that are among the first k
    MAP, MAP@k         mean over the relevant passages of the precision at their rank
    R-Prec             precision at rank r, for r relevant passages
    P@k, Success@k     share of relevant ones among the first k; whether there is one
    Hit@k              whether one of the first k holds an answer string (Karpukhin et al. 2020)

A grade of 1 or more is relevant. Where a field asks for more, the name says so, as in ir_measures:
MRR(rel=2)@10, MAP(rel=2) and R(rel=2)@1000 are TREC Deep Learning's. nDCG has no such threshold.

What definitions leave open is settled by `Conventions`. By default ties are broken by passage id
ascending, and the mean is over all queries that have a relevant passage; `TREC_EVAL` does exactly
what trec_eval does.
"""

import difflib
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import ir_measures
import numpy as np
from tqdm.auto import tqdm

from modeling_condenser.collection.answers import AnswerMatcher, Match
from modeling_condenser.retrieval.runs import Run, rank_passages

logger = logging.getLogger(__name__)

DEFAULT_MEASURES = ("MRR@10", "nDCG@10", "R@100")
DEFAULT_ANSWER_MEASURES = ("Hit@20", "Hit@100")

_PASSAGES_AT_ONCE = 50_000  # whose texts are held: some 40 MB of DPR's passages of 100 words

_GREATEST = 1_000_000  # grade or cut-off: trec_eval's code makes a table of all grades up to it

_NAME = re.compile(r"(?P<family>[A-Za-z]+(?:-[A-Za-z]+)?)(?:\(rel=(?P<rel>\d+)\))?(?:@(?P<k>\d+))?")


@dataclass(frozen=True)
class _Family:
    """What the name of a measure may hold beside its first word."""

    measure: ir_measures.Measure
    cutoff: Literal["needed", "possible", "none"]
    has_rel: bool = True


_FAMILIES = {
    "MRR": _Family(ir_measures.RR, "possible"),
    "nDCG": _Family(ir_measures.nDCG, "possible", has_rel=False),
    "R": _Family(ir_measures.R, "needed"),
    "MAP": _Family(ir_measures.AP, "possible"),
    "R-Prec": _Family(ir_measures.Rprec, "none"),
    "P": _Family(ir_measures.P, "needed"),
    "Success": _Family(ir_measures.Success, "needed"),
}
_ANSWER_FAMILY = "Hit"


@dataclass(frozen=True)
class Conventions:
    """How to count what the definitions of the measures leave open.

    Attributes:
        ties: between passages of one score: "id_ascending" compares scores as float64 and puts the
            smaller id first; "trec_eval" compares them as float32, which makes further ties, and
            puts the larger id first. Ids are compared by code point, both times.
        missing: what a judged query counts for which the run holds no passage: "zero", as with
            `trec_eval -c`, or "skip", as without.
        unanswerable: what a judged query counts none of whose passages has a grade above 0, so that
            no system can score: "skip", as TREC drops such topics, or "zero", as trec_eval does
            where a file has one.
        depth: how many passages of a query are looked at, the first of the ranking (`trec_eval
            -M`); None for all.
    """

    ties: Literal["id_ascending", "trec_eval"] = "id_ascending"
    missing: Literal["zero", "skip"] = "zero"
    unanswerable: Literal["skip", "zero"] = "skip"
    depth: int | None = None


OURS = Conventions()
"""What every figure of this project is measured by."""

TREC_EVAL = Conventions(ties="trec_eval", missing="skip", unanswerable="zero")
"""`trec_eval` without options."""

TREC_EVAL_C = Conventions(ties="trec_eval", missing="zero", unanswerable="zero")
"""`trec_eval -c`."""


@dataclass(frozen=True)
class Evaluation:
    """What was measured.

    Attributes:
        means: measure -> mean over the evaluated queries.
        per_query: measure -> query id -> value; the same queries for every measure, in the order of
            the judgements.
        unanswerable: ids of judged queries that were left out, since no passage can be relevant.
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
    """Score a run against judgements.

    All measures are over the same queries. So a query with passages of grade 1 only counts 0 in
    MRR(rel=2)@10, as with `trec_eval -l 2`, though no system can score there. Queries of the run
    that were not judged are ignored, as trec_eval does; passages that were not judged are not
    relevant.

    Ties are broken before ir_measures sees the run, since its providers would order tied passages
    in opposite ways.

    Args:
        qrels: query id -> passage id -> grade; 0 or less is not relevant.
        run: query id -> passage id -> score.
        measures: names such as "MRR@10", "nDCG@10", "R(rel=2)@1000"; see the top of this file.
        conventions: for ties, missing queries and the like.

    Returns:
        Means and values per query.

    Raises:
        ValueError: an unknown measure, a score that is NaN, no query that can be measured, or a run
            none of whose queries is judged.
    """
    parsed = {name: _parse_measure(name) for name in _checked_names(measures)}
    _check_overlap(qrels, run)
    judged = _judged_queries(qrels, run, conventions)
    ranked = {q: _scores_from_ranks(_ranking(q, run[q], conventions)) for q in judged if run.get(q)}
    values = {measure: dict.fromkeys(judged, 0.0) for measure in parsed.values()}
    if ranked:
        for metric in ir_measures.iter_calc(list(values), judged, ranked):
            values[metric.measure][metric.query_id] = float(metric.value)
    per_query = {name: dict(values[measure]) for name, measure in parsed.items()}
    unanswerable = [q for q, grades in qrels.items() if not _has_relevant(grades)]
    return _evaluation(per_query, [] if conventions.unanswerable == "zero" else unanswerable)


def evaluate_answers(
    answers: Mapping[str, Sequence[str]],
    run: Run,
    passage_text: Callable[[list[str]], list[str]],
    *,
    measures: Sequence[str] = DEFAULT_ANSWER_MEASURES,
    match: Match = "string",
    progress: bool = False,
) -> Evaluation:
    """Score a run by the strings that answer its queries, as DPR does (Karpukhin et al. 2020).

    A passage hits if its text, without its title, holds one of the answers; see
    `collection/answers.py`. Ties are broken by passage id ascending. A query without answers is
    left out and listed as unanswerable; one for which the run holds nothing counts 0.

    Args:
        answers: query id -> strings.
        run: query id -> passage id -> score.
        passage_text: texts of the passages with these ids, in their order. It is called with up to
            50,000 different ids at a time (more only for one query's own): only their texts are
            held.
        measures: "Hit@20" and the like.
        match: "regex" where answers are regular expressions (CuratedTREC).
        progress: whether to show a progress bar.

    Returns:
        Means and values per query.

    Raises:
        ValueError: a measure that is not of answers, a score that is NaN, no query with an answer,
            or a run none of whose queries has answers.
    """
    cutoffs = {name: _answer_cutoff(name) for name in _checked_names(measures)}
    _check_overlap(answers, run)
    asked = [q for q, strings in answers.items() if strings]
    if not asked:
        raise ValueError(
            f"none of the {len(answers)} queries has an answer string, expected at least one: check"
            " the file of queries"
        )
    deepest = Conventions(depth=max(cutoffs.values()))
    rankings = ((q, _ranking(q, run[q], deepest)) for q in asked if run.get(q))
    found = dict.fromkeys(asked, math.inf)  # rank of the first hit
    with tqdm(total=len(asked), desc="looking for answers", disable=not progress) as bar:
        for batch in _batches(rankings):
            ids = list(dict.fromkeys(passage for ranking in batch.values() for passage in ranking))
            texts = _texts_by_id(ids, passage_text)
            for q, ranking in batch.items():
                matcher = AnswerMatcher(answers[q], match=match)
                hits = (r for r, passage in enumerate(ranking, 1) if matcher.is_in(texts[passage]))
                found[q] = next(hits, math.inf)
                bar.update()
        bar.update(bar.total - bar.n)  # queries for which the run holds nothing
    per_query = {
        name: {q: float(rank <= cutoff) for q, rank in found.items()}
        for name, cutoff in cutoffs.items()
    }
    return _evaluation(per_query, [q for q, strings in answers.items() if not strings])


def check_measures(names: Sequence[str]) -> None:
    """Refuse measures that nothing here computes, before a search is made for them.

    Raises:
        ValueError: an unknown measure; the message names the nearest.
    """
    for name in _checked_names(names):
        _answer_cutoff(name) if is_answer_measure(name) else _parse_measure(name)


def is_answer_measure(name: str) -> bool:
    """Whether a measure looks for answer strings, so that `evaluate_answers` computes it."""
    return name.partition("@")[0] == _ANSWER_FAMILY


def _evaluation(per_query: dict[str, dict[str, float]], unanswerable: list[str]) -> Evaluation:
    means = {name: fmean(values.values()) for name, values in per_query.items()}
    return Evaluation(means=means, per_query=per_query, unanswerable=tuple(unanswerable))


def _check_overlap(judgements: Mapping[str, object], run: Run) -> None:
    """Refuse a run of other queries, which would be measured as all zeros."""
    apart = [q for q in run if q not in judgements]
    if run and len(apart) == len(run):
        raise ValueError(
            f"none of the {len(run)} queries of the run is judged: the run holds {apart[0]!r} and"
            f" the like, the judgements {next(iter(judgements), 'nothing')!r}; expected the same"
            " ids: take both from the same collection and split"
        )
    if apart:
        logger.info("%d of the run's %d queries are not judged and ignored", len(apart), len(run))


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
            f"the judgements hold the grade {greatest}, expected at most {_GREATEST:,}: check the"
            " order of their columns"
        )
    if greatest < 1:
        raise ValueError(
            f"none of the {len(qrels)} judged queries has a relevant passage, expected at least"
            " one: a grade above 0 marks a relevant one; check the qrels"
        )
    if conventions.missing == "zero":
        return judged
    kept = {q: grades for q, grades in judged.items() if run.get(q)}
    if not kept:
        raise ValueError(
            f"the run holds no passage for any of the {len(judged)} queries that can be measured,"
            ' and missing="skip" leaves them all out: expected at least one; check the run'
        )
    return kept


def _has_relevant(grades: Mapping[str, int]) -> bool:
    return any(grade > 0 for grade in grades.values())


def _ranking(query_id: str, scores: Mapping[str, float], conventions: Conventions) -> list[str]:
    """The passages of a query, best first."""
    for passage, score in scores.items():
        if math.isnan(score):
            raise ValueError(
                f"query {query_id!r} scores passage {passage!r} nan, which has no place in a"
                " ranking: expected a number; look for NaN in the embeddings"
            )
    if conventions.ties == "trec_eval":
        with np.errstate(over="ignore"):
            single = [(float(np.float32(score)), passage) for passage, score in scores.items()]
        ranking = [passage for _, passage in sorted(single, reverse=True)]
    else:
        ranking = [passage for passage, _ in rank_passages(scores)]
    return ranking[: conventions.depth]


def _scores_from_ranks(ranking: Sequence[str]) -> dict[str, float]:
    """Give scores -1, -2, …: the same order for every provider, exact in float32."""
    return {passage: -float(rank) for rank, passage in enumerate(ranking, 1)}


def _batches(rankings: Iterator[tuple[str, list[str]]]) -> Iterator[dict[str, list[str]]]:
    """Rankings by query, in batches of about as many different passages as are held at once."""
    batch: dict[str, list[str]] = {}
    passages: set[str] = set()
    for query_id, ranking in rankings:
        if batch and len(passages) + len(ranking) > _PASSAGES_AT_ONCE:
            yield batch
            batch, passages = {}, set()
        batch[query_id] = ranking
        passages.update(ranking)
    if batch:
        yield batch


def _texts_by_id(ids: list[str], passage_text: Callable[[list[str]], list[str]]) -> dict[str, str]:
    texts = passage_text(ids)
    if len(texts) != len(ids):
        raise ValueError(
            f"passage_text gave {len(texts)} texts for {len(ids)} passage ids, expected one each,"
            " in the same order"
        )
    return dict(zip(ids, texts, strict=True))


def _checked_names(measures: Sequence[str]) -> Sequence[str]:
    if isinstance(measures, str) or not measures:
        raise ValueError(f'measures is {measures!r}, expected a list of names, such as ["MRR@10"]')
    return measures


def _answer_cutoff(name: str) -> int:
    match = _NAME.fullmatch(name)
    cutoff = int(match["k"] or 0) if match and not match["rel"] else 0
    if cutoff and is_answer_measure(name):
        return cutoff
    raise ValueError(
        f"{name!r} is no measure by answer strings, expected {_ANSWER_FAMILY} with a cut-off, as"
        f" 'Hit@20': {'mend it' if is_answer_measure(name) else 'measure it with evaluate_run'}"
    )


def _parse_measure(name: str) -> ir_measures.Measure:
    match = _NAME.fullmatch(name)
    family = _FAMILIES.get(match["family"]) if match else None
    if not match or not family:
        raise ValueError(f"unknown measure {name!r}: {_nearest(name)}")
    rel, k = match["rel"], match["k"]
    if rel and not family.has_rel:
        problem = f"{match['family']} takes all grades as gains and has no threshold: drop (rel=…)"
    elif rel and not 1 <= int(rel) <= _GREATEST:
        problem = f"the lowest grade that counts as relevant must be from 1 to {_GREATEST:,}"
    elif k and family.cutoff == "none":
        problem = f"{match['family']} is cut off at the number of relevant passages: drop @{k}"
    elif not k and family.cutoff == "needed":
        problem = f"{match['family']} needs a cut-off, as in '{name}@100': add it"
    elif k and not 1 <= int(k) <= _GREATEST:
        problem = f"a cut-off must be from 1 to {_GREATEST:,}"
    else:
        # A threshold of 1 is the default; said out loud it would be another measure.
        measure = family.measure(rel=int(rel)) if rel and int(rel) > 1 else family.measure
        return measure @ int(k) if k else measure
    raise ValueError(f"unknown measure {name!r}: {problem}")


def _nearest(name: str) -> str:
    if is_answer_measure(name):
        return "it is measured by answer strings, with evaluate_answers"
    word, _, rest = name.partition("@")
    by_lower = {family.lower(): family for family in (*_FAMILIES, _ANSWER_FAMILY)}
    by_lower |= {"recall": "R", "precision": "P", "recip_rank": "MRR"}
    lower = difflib.get_close_matches(word.partition("(")[0].lower(), by_lower, n=1, cutoff=0.0)[0]
    family = by_lower[lower]
    if family == _ANSWER_FAMILY or _FAMILIES[family].cutoff != "none":
        family = f"{family}@{rest if rest.isdecimal() else 10}"
    return f"expected one of {', '.join(_FAMILIES)}, as in MRR@10; did you mean {family!r}?"
