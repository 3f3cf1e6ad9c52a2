"""Measure a run, by judgements (qrels) or by the strings that answer each query.

    MRR, MRR@k         reciprocal rank of the first relevant passage, 0 if it is not in the first k
    nDCG, nDCG@k       gains are the grades themselves, the discount is log2(rank + 1)
    R@k                share of the relevant passages that are among the first k
    MAP, MAP@k         mean over the relevant passages of the precision at their rank
    R-Prec             precision at rank r, for r relevant passages
    P@k, Success@k     share of relevant passages among the first k; whether there is one
    Hit@k              whether one of the first k contains an answer string (Karpukhin et al. 2020)

A grade of 1 or more is relevant; `(rel=2)` raises the threshold, as in MRR(rel=2)@10. Ties are
broken by passage id, ascending. A passage with the id of its query is not counted, unless it is
judged relevant to it (`find_own`). The mean is over all queries that have a relevant passage; a
query without results counts as 0. All but Hit@k are computed by ir-measures, whose other measures
can be named as it names them.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Self

import ir_measures
import numpy as np

from modeling_condenser.collection.collection import Collection, Qrels
from modeling_condenser.retrieval.runs import Run, drop_own_passages, rank_passages

from .significance import Comparison, Interval, bootstrap_interval, compare

if TYPE_CHECKING:
    from datasets import Dataset

    from modeling_condenser.encoding.retriever import Retriever

DEFAULT_MEASURES = ("MRR@10", "nDCG@10", "R@100")
DEFAULT_ANSWER_MEASURES = ("Hit@20", "Hit@100")
_DEPTH_IN_MEMORY = 101  # for R@100, if the query itself is a passage

logger = logging.getLogger(__name__)

PerQuery = dict[str, dict[str, float]]
"""Measure -> query id -> value."""


@dataclass(frozen=True)
class Evaluation:
    """The measures of one run."""

    means: dict[str, float]  # measure -> mean over the evaluated queries
    per_query: PerQuery  # the same queries for every measure, in the order of the judgements
    unanswerable: tuple[str, ...] = ()  # judged queries without a relevant passage, left out

    @property
    def n_items(self) -> int:
        """Number of evaluated queries."""
        return len(next(iter(self.per_query.values())))

    def interval(self, measure: str, *, seed: int = 0) -> Interval | None:
        """95 % bootstrap interval of a mean; None for a single query."""
        values = [value for _, value in sorted(self.per_query[measure].items())]
        return bootstrap_interval(np.mean, np.array(values), seed=seed)

    def compare(self, measure: str, other: Self, *, seed: int = 0) -> Comparison:
        """Compare with another evaluation of the same queries in one measure."""
        return compare(self.per_query[measure], other.per_query[measure], seed=seed)


def make_evaluation(per_query: PerQuery, *, unanswerable: Iterable[str] = ()) -> Evaluation:
    """Average the values of the queries."""
    means = {name: fmean(values.values()) for name, values in per_query.items()}
    return Evaluation(means, per_query, tuple(unanswerable))


def check_measures(names: Sequence[str]) -> dict[str, ir_measures.Measure]:
    """Parse names of measures; a ValueError for none, an unknown one, or a missing cut-off."""
    if not names:
        raise ValueError("measures is empty: name at least one, or leave it out.")
    measures = {}
    for name in names:
        ir_name = name.replace("Hit@", "Success@").replace("R-Prec", "Rprec")
        try:
            measures[name] = ir_measures.parse_measure(ir_name)
            is_known = ir_measures.DefaultPipeline.supports(measures[name])
        except (AssertionError, NameError, ValueError):
            is_known = False
        # A cut-off of 0 ends the process in trec_eval's code.
        if not is_known or re.search(r"[=@]0\b(?!\.)", name):
            raise ValueError(
                f"{name!r} is not a measure: expected MRR, nDCG, R, MAP, R-Prec, P, Success, Hit "
                "or another measure of ir-measures, with a cut-off if it needs one, as in MRR@10 "
                "or R(rel=2)@1000; several measures are a list."
            )
    return measures


def evaluate_run(
    qrels: Qrels,
    run: Run,
    *,
    measures: Sequence[str] | None = None,
    answers: Mapping[str, Sequence[str]] | None = None,
    passages: "Dataset | None" = None,
) -> Evaluation:
    """Measure a run by judgements, by answer strings, or by both.

    All measures have the same queries: those with a relevant passage and, for Hit@k, an answer. A
    query whose best grade is 1 counts as 0 in MRR(rel=2)@10, as with `trec_eval -l 2`. The default
    measures are MRR@10, nDCG@10 and R@100, or Hit@20 and Hit@100 where there are only answers.

    Args:
        qrels: query id -> passage id -> grade; 0 or less is not relevant.
        run: its queries without judgements are ignored.
        measures: names; see the module's docstring.
        answers: query id -> strings, for Hit@k. As in DPR, a passage is a hit if its text, without
            the title, contains one of them; see `AnswerMatcher`.
        passages: of the collection, with the columns `_id`, `title` and `text`; for Hit@k.

    Raises:
        ValueError: an unknown measure, or no query that can be measured.
    """
    if measures is None:
        measures = DEFAULT_MEASURES if qrels or not answers else DEFAULT_ANSWER_MEASURES
    parsed, answers = check_measures(measures), answers or {}
    hits = {name: m for name, m in parsed.items() if name.startswith("Hit")}
    graded = {name: m for name, m in parsed.items() if name not in hits}
    if (hits and not answers) or (graded and not qrels):
        kind = "judgements" if graded and not qrels else "answers"
        raise ValueError(f"The collection has no {kind} for {', '.join(parsed)}.")
    judged: Iterable[str] = qrels if graded else answers
    if run and run.keys().isdisjoint(judged):
        raise ValueError(
            f"None of the {len(run)} queries of the run is judged, such as {next(iter(run))!r}: "
            "take run and judgements from one collection and split."
        )
    counted = drop_own_passages(run, qrels)
    rankings: dict[str, list[str]] = {}
    unanswerable = []
    for query in judged:
        has_relevant = not graded or max(qrels[query].values(), default=0) > 0
        if has_relevant and (not hits or answers.get(query)):
            rankings[query] = [passage for passage, _ in rank_passages(counted.get(query, {}))]
        else:
            unanswerable.append(query)
    if not rankings:
        raise ValueError("None of the judged queries has a relevant passage or an answer.")
    depth = max(map(len, rankings.values()))
    deeper = [name for name, measure in parsed.items() if measure.params.get("cutoff", 0) > depth]
    if deeper:
        logger.warning("The run has %d passages a query, too few for %s.", depth, ", ".join(deeper))
    if n_empty := sum(not ranking for ranking in rankings.values()):
        logger.warning("%d of %d queries have no results, and count as 0.", n_empty, len(rankings))
    values = _measure(graded, qrels, rankings)
    if hits:
        assert passages is not None
        values |= _measure(hits, _judge_by_answers(hits, rankings, answers, passages), rankings)
    return make_evaluation({name: values[name] for name in parsed}, unanswerable=unanswerable)


def _measure(
    measures: Mapping[str, ir_measures.Measure],
    qrels: Qrels,
    rankings: Mapping[str, Sequence[str]],
) -> PerQuery:
    # The providers of ir-measures order ties in different ways, so they get the ranks as scores.
    # The provider of ERR needs query ids that are numbers.
    query_of, run, judged = {}, {}, {}
    for number, (query, ranking) in enumerate(rankings.items()):
        if ranking:
            query_of[str(number)] = query
            run[str(number)] = {passage: -float(rank) for rank, passage in enumerate(ranking)}
            if qrels.get(query):
                judged[str(number)] = dict(qrels[query])
    values = {measure: dict.fromkeys(rankings, 0.0) for measure in measures.values()}
    if values and judged:
        for metric in ir_measures.iter_calc(list(values), judged, run):
            values[metric.measure][query_of[metric.query_id]] = float(metric.value)
    return {name: dict(values[measure]) for name, measure in measures.items()}


def _judge_by_answers(
    measures: Mapping[str, ir_measures.Measure],
    rankings: Mapping[str, Sequence[str]],
    answers: Mapping[str, Sequence[str]],
    passages: "Dataset",
) -> Qrels:
    """Judgements in which the first passage with an answer is relevant."""
    from modeling_condenser.collection.answers import AnswerMatcher
    from modeling_condenser.collection.collection import find_texts

    depth = max(measure.params["cutoff"] for measure in measures.values())
    first = {query: ranking[:depth] for query, ranking in rankings.items()}
    texts = find_texts(passages, {passage for ranking in first.values() for passage in ranking})
    judged: Qrels = {}
    for query, ranking in first.items():
        matcher, judged[query] = AnswerMatcher(answers[query]), {}
        for passage in ranking:
            if matcher.is_in(texts[passage]):
                judged[query][passage] = 1
                break
    return judged


def measure_in_memory(
    retriever: "Retriever", collection: Collection, measures: Sequence[str] | None = None
) -> Evaluation:
    """Encode, search and measure a small collection, such as one of `sample_collection`.

    Nothing is written. The search is by the model's similarity.
    """
    from modeling_condenser.retrieval.dense import search_exact_arrays

    retriever.check_inner_product()
    run = search_exact_arrays(
        retriever.encode_passages(collection.passages),
        list(collection.passages["_id"]),
        query_embeddings=retriever.encode_queries(list(collection.queries.values())),
        query_ids=list(collection.queries),
        depth=_DEPTH_IN_MEMORY,
    )
    return evaluate_run(collection.qrels, run, measures=measures)
