"""Measure a run, by judgements (qrels) or answer strings, and test whether two systems differ.

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

The paired randomisation test is the one that Smucker, Allan & Carterette (2007) recommend for
retrieval experiments. All tests are about the sample of queries, not about training seeds.
"""

import logging
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import ir_measures
import numpy as np
from scipy import stats

from modeling_condenser.collection.collection import Collection, PassageIndex, Qrels
from modeling_condenser.encoding.embeddings import find_best
from modeling_condenser.retrieval.runs import Run, drop_own_passages, make_run, rank_passages

if TYPE_CHECKING:
    from datasets import Dataset

    from modeling_condenser.encoding.retriever import Retriever

logger = logging.getLogger(__name__)

DEFAULT_MEASURES = ("MRR@10", "nDCG@10", "R@100")
DEFAULT_ANSWER_MEASURES = ("Hit@20", "Hit@100")
_DEPTH_IN_MEMORY = 101  # for R@100, if the query itself is a passage
_SPARE = 32  # passages beyond it, for breaking ties

ALPHA = 0.05  # a difference is called significant if its corrected p-value is below this
N_RESAMPLES = 10_000
_BATCH_VALUES = 2_000_000  # resampled values in memory at once: 16 MB
_N_GROUPS = 10
_ROUNDING = 1e-12
_EQUAL = 1e-9  # one ranking gives values that differ in the last bits if sums change their order

PerQuery = dict[str, dict[str, float]]
"""Measure -> query id -> value."""
Values = Mapping[str, float]
"""Query id -> value of one measure of one system."""
Interval = tuple[float, float]

Key = TypeVar("Key", bound=Hashable)


class Comparison(NamedTuple):
    """A system against a baseline in one measure, over the same queries."""

    mean_system: float
    mean_baseline: float
    difference: float  # mean of the system minus mean of the baseline
    p_value: float  # two-sided, of the paired randomisation test
    interval: Interval | None  # 95 % bootstrap interval of the difference; None with a single query
    p_adjusted: float  # after Holm's correction; `p_value` itself for a comparison made alone
    t_test: float | None = None  # p-value of `compare_in_groups`, corrected like `p_adjusted`
    better: int = 0  # queries on which the system's value is higher
    equal: int = 0
    worse: int = 0

    @property
    def mark(self) -> str:
        """▲ or ▼ for a significant difference, ○ if no difference was shown."""
        if self.p_adjusted >= ALPHA:
            return "○"
        return "▲" if self.difference > 0 else "▼"


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
        if not is_known or name != name.strip() or re.search(r"[=@]0\b(?!\.)", name):
            raise ValueError(
                f"{name!r} is not a measure: expected MRR, nDCG, R, MAP, R-Prec, P, Success, Hit "
                "or another measure of ir-measures whose provider is installed, with a cut-off if "
                "it needs one, as in MRR@10 or R(rel=2)@1000; several have blanks between them, "
                "or are a list."
            )
    return measures


def default_measures(
    qrels: Qrels, answers: Mapping[str, Sequence[str]] | None, *, depth: int | None = None
) -> list[str]:
    """MRR@10, nDCG@10 and R@100, or Hit@20 and Hit@100 where there are only answers.

    Those deeper than `depth` are left out; a ValueError if none is left.
    """
    names = DEFAULT_MEASURES if qrels or not answers else DEFAULT_ANSWER_MEASURES
    cutoffs = {name: int(name.partition("@")[2]) for name in names}
    if depth is None:
        return list(names)
    if not (kept := [name for name, cutoff in cutoffs.items() if cutoff <= depth]):
        raise ValueError(
            f"depth is {depth}, too few passages for {', '.join(names)}: name other measures, such "
            f"as {names[-1].partition('@')[0]}@{depth}, or leave depth out."
        )
    return kept


def evaluate_run(
    qrels: Qrels,
    run: Run,
    *,
    measures: Sequence[str] | None = None,
    answers: Mapping[str, Sequence[str]] | None = None,
    passages: "Dataset | None" = None,
    is_given: bool = True,
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
        is_given: whether others made the run, who may have cut it: that is then warned of.

    Raises:
        ValueError: an unknown measure, or no query that can be measured.
    """
    if measures is None:
        measures = default_measures(qrels, answers)
    parsed, answers = check_measures(measures), answers or {}
    hits = {name: m for name, m in parsed.items() if name.startswith("Hit")}
    graded = {name: m for name, m in parsed.items() if name not in hits}
    if (hits and not answers) or (graded and not qrels):
        kind = "judgements" if graded and not qrels else "answers"
        raise ValueError(f"The collection has no {kind} for {', '.join(parsed)}.")
    judged: Iterable[str] = qrels if graded else answers
    if run and run.keys().isdisjoint(judged):
        raise ValueError(
            "The run has none of the judged queries: take both from one collection and split."
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
    if deeper and is_given:
        logger.warning("The run has %d passages a query, too few for %s.", depth, ", ".join(deeper))
    if n_empty := sum(not ranking for ranking in rankings.values()):
        logger.warning("%d of %d queries have no results, and count as 0.", n_empty, len(rankings))
    values = _measure(graded, qrels, rankings)
    if hits:
        if passages is None:
            raise ValueError(f"{', '.join(hits)} reads the passages: pass the collection's.")
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
            run[str(number)] = {passage: -float(rank) for rank, passage in enumerate(ranking, 1)}
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

    depth = max(measure.params["cutoff"] for measure in measures.values())
    first = {query: ranking[:depth] for query, ranking in rankings.items()}
    found = {passage for ranking in first.values() for passage in ranking}
    titles_and_texts = PassageIndex(passages).read(found)
    judged: Qrels = {}
    for query, ranking in first.items():
        matcher, judged[query] = AnswerMatcher(answers[query]), {}
        for passage in ranking:
            if matcher.is_in(titles_and_texts[passage][1]):
                judged[query][passage] = 1
                break
    return judged


def measure_in_memory(
    retriever: "Retriever", collection: Collection, measures: Sequence[str] | None = None
) -> Evaluation:
    """Encode, search and measure a small collection, such as one of `sample_collection`.

    Nothing is written. The search is by the model's similarity.
    """
    retriever.check_inner_product()
    ids = collection.passages["_id"][:]
    passages = retriever.encode_passages(collection.passages)
    queries = retriever.encode_queries(list(collection.queries.values()))
    scores, rows = find_best(queries, [passages], depth=_DEPTH_IN_MEMORY + _SPARE)
    names = list(collection.queries)
    run = make_run(names, scores, rows, lambda r: [ids[i] for i in r], depth=_DEPTH_IN_MEMORY)
    return evaluate_run(collection.qrels, run, measures=measures, is_given=False)


def compare(system: Values, baseline: Values, *, seed: int = 0) -> Comparison:
    """Compare two systems in one measure; a ValueError unless the queries are the same.

    The test is exact if the systems differ on few queries. The result does not depend on the order
    of the queries.
    """
    values = _paired_values(system, baseline)  # (2, Q)
    differences = values[0] - values[1]  # (Q,)
    differing = differences[differences != 0]  # swapping the other queries has no effect
    better, worse = int((differences > _EQUAL).sum()), int((differences < -_EQUAL).sum())

    def difference(swapped: np.ndarray) -> np.ndarray:  # a swap flips the sign of a difference
        return (differing.sum() - 2 * (swapped @ differing)) / len(differences)

    p_value = randomisation_test(difference, n=len(differing), seed=seed)
    return Comparison(
        float(values[0].mean()),
        float(values[1].mean()),
        difference=float(differences.mean()),
        p_value=p_value,
        interval=bootstrap_interval(np.mean, differences, seed=seed),
        p_adjusted=p_value,
        t_test=compare_in_groups(values, seed=seed),
        better=better,
        equal=len(differences) - better - worse,
        worse=worse,
    )


def correct(comparisons: Mapping[Key, Comparison]) -> dict[Key, Comparison]:
    """The same comparisons, with p-values corrected over all of them (Holm)."""
    adjusted = holm([c.p_value for c in comparisons.values()])
    t_tests = {key: c.t_test for key, c in comparisons.items() if c.t_test is not None}
    adjusted_t = dict(zip(t_tests, holm(list(t_tests.values())), strict=True))
    return {
        key: c._replace(p_adjusted=p, t_test=adjusted_t.get(key))
        for (key, c), p in zip(comparisons.items(), adjusted, strict=True)
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for the number of tests (Holm 1979), which may depend on each other."""
    values = np.asarray(p_values, dtype=np.float64)  # (n,)
    order = np.argsort(values, kind="stable")
    raised = values[order] * np.arange(len(values), 0, -1)  # the smallest by n, the next by n - 1
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(raised), 1.0)
    return adjusted.tolist()


def compare_in_groups(values: np.ndarray, *, seed: int = 0) -> float | None:
    """A paired t-test over the means of ten random groups of queries; `values` are (2, Q).

    The queries are divided at random into groups of nearly equal size, so the p-value depends on
    the seed: prefer the randomisation test. It is two-sided, and None for fewer than ten queries.
    """
    if values.shape[1] < _N_GROUPS:
        return None
    shuffled = np.random.default_rng(seed).permutation(values, axis=1)
    groups = np.array_split(shuffled, _N_GROUPS, axis=1)
    means = np.stack([group.mean(axis=1) for group in groups], axis=1)  # (2, groups)
    differences = means[0] - means[1]
    if np.ptp(differences) <= _ROUNDING:  # t would depend on rounding errors only
        return 1.0 if abs(differences).max() <= _ROUNDING else 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def randomisation_test(
    difference: Callable[[np.ndarray], np.ndarray], *, n: int, seed: int = 0
) -> float:
    """Two-sided p-value of a paired randomisation test of two systems on n items.

    All 2**n swaps are enumerated if they are at most 10,000. `difference` maps swaps, (B, n)
    float64 with a 1 for each item whose values are swapped, to the systems' differences, (B,).
    scipy's `permutation_test` gives the same, and takes three times as long.
    """
    if 2**n <= N_RESAMPLES:
        swaps = (np.arange(2**n)[:, None] >> np.arange(n)) & 1  # (2**n, n)
    else:
        swaps = np.random.default_rng(seed).integers(2, size=(N_RESAMPLES + 1, n), dtype=np.uint8)
        swaps[0] = 0
    batches = np.array_split(swaps, 1 + swaps.size // _BATCH_VALUES)
    differences = np.concatenate([abs(difference(b.astype(np.float64))) for b in batches])
    # The first one is the observed difference.
    return float((differences >= differences[0] - _ROUNDING).mean())


def bootstrap_interval(
    statistic: Callable[..., np.ndarray], *samples: np.ndarray, seed: int = 0
) -> Interval | None:
    """95 % bootstrap interval of a statistic of paired samples, (N,) each; None for a single item.

    The method is "percentile", because BCa gives NaN where all values are equal. scipy's
    `bootstrap` gives the same, and takes twice as long.
    """
    n_items = len(samples[0])
    if n_items < 2:
        return None
    generator, n_at_once = np.random.default_rng(seed), max(1, _BATCH_VALUES // n_items)
    values = []
    for start in range(0, N_RESAMPLES, n_at_once):
        size = (min(n_at_once, N_RESAMPLES - start), n_items)
        items = generator.integers(n_items, size=size)
        values.append(statistic(*(sample[items] for sample in samples), axis=-1))
    low, high = np.percentile(np.concatenate(values), [2.5, 97.5])
    return float(low), float(high)


def _paired_values(first: Values, second: Values) -> np.ndarray:
    """The values of both systems, (2, Q) float64, in the order of the sorted query ids."""
    if not first or first.keys() != second.keys():
        raise ValueError(
            f"The systems were measured on different queries ({len(first)} and {len(second)}): "
            "evaluate both with the same judgements."
        )
    return np.array([[s[query] for query in sorted(s)] for s in (first, second)], dtype=np.float64)
