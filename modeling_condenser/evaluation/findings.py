"""What a report says, before it is written: results of several systems in, everything tested out.

Retrieval: values per query for each system, and the collection. Similarity (graded pairs,
triplets): one value a measure, and values per item where the measure is a mean over items. Every
figure that a report prints, and every answer to whether two of them differ, is made here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from modeling_condenser.collection.collection import Collection
from modeling_condenser.measures.breakdown import Breakdown, break_down, group_by_length
from modeling_condenser.measures.contrasts import (
    Contrast,
    GroupTest,
    Pair,
    QueryDifference,
    Values,
    adjust,
    all_pairs,
    contrast,
    group_tests,
    mean_interval,
    wins_and_losses,
)
from modeling_condenser.measures.measures import Evaluation
from modeling_condenser.measures.question_types import group_by_type
from modeling_condenser.measures.significance import Comparison, compare

from .plots import Estimate


@dataclass(frozen=True)
class ReportedSystem:
    """One system's results on a collection.

    Attributes:
        name: in tables and pictures.
        evaluation: measures, in the mean and per query.
        run_file: the TREC run that was measured; the report states its name and checksum.
        settings: what it is and how it encodes: model, pooling, lengths, or k1 and b.
        record: of its search and of the encoding of the passages: seconds, queries per second, …
    """

    name: str
    evaluation: Evaluation
    run_file: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RetrievalResults:
    """Several systems on one split of one collection.

    Attributes:
        collection: its queries' texts and judgements are shown and fingerprinted.
        split: whose queries were searched.
        systems: in the order of the tables; all with the same measures and queries.
        baseline: what the others are compared with; by default the first system.
        main_measure: for pairs, wins, losses and breakdowns; by default the first measure.
    """

    collection: Collection
    split: str
    systems: Sequence[ReportedSystem]
    baseline: str | None = None
    main_measure: str | None = None


@dataclass(frozen=True)
class RetrievalFindings:
    """What the results show.

    Attributes:
        results: with baseline and main measure filled in; no baseline where there is one system.
        measures: in the order of the tables.
        estimates: system -> measure -> mean and interval.
        contrasts: each system against the baseline, in each measure, corrected together.
        pairs: each two systems in the main measure, corrected together; none below two systems.
        group_tests: the thesis's t-test for each of `pairs`.
        others: each two systems without the baseline, in the other measures, corrected together.
        wins: system -> the queries on which it gains most over the baseline in the main measure.
        losses: system -> the queries on which it loses most.
        breakdowns: of the main measure, by answer type and by length.
    """

    results: RetrievalResults
    measures: tuple[str, ...]
    estimates: Mapping[str, Mapping[str, Estimate]]
    contrasts: Sequence[Contrast]
    pairs: Sequence[Contrast]
    group_tests: Sequence[GroupTest]
    others: Sequence[Contrast]
    wins: Mapping[str, Sequence[QueryDifference]]
    losses: Mapping[str, Sequence[QueryDifference]]
    breakdowns: Sequence[Breakdown]

    @property
    def main_measure(self) -> str:
        return self.results.main_measure or self.measures[0]

    @property
    def query_ids(self) -> list[str]:
        """The measured queries, in the order of the judgements."""
        return list(self.results.systems[0].evaluation.per_query[self.measures[0]])

    def values(self, measure: str) -> dict[str, Values]:
        """System -> query id -> value of one measure."""
        return {s.name: s.evaluation.per_query[measure] for s in self.results.systems}

    def contrasts_of(self, system: str) -> dict[str, Contrast]:
        """Measure -> comparison of a system with the baseline; none of the baseline itself."""
        return {c.measure: c for c in self.contrasts if c.system == system}


def analyse_retrieval(
    results: RetrievalResults, *, seed: int = 0, progress: bool = False
) -> RetrievalFindings:
    """Test everything that a report says about retrieval.

    Args:
        results: of one or more systems.
        seed: of tests and intervals.
        progress: whether to show progress bars; large query sets take some seconds a comparison.

    Raises:
        ValueError: the systems do not fit together or with the collection; the message says how.
    """
    results = _completed(results)
    measures = tuple(results.systems[0].evaluation.means)
    values = {
        measure: {s.name: s.evaluation.per_query[measure] for s in results.systems}
        for measure in measures
    }
    main, baseline = results.main_measure or measures[0], results.baseline
    others = [name for name in values[main] if name != baseline]
    against_baseline = [
        Pair(name, baseline, measure, by_system[name], by_system[baseline])
        for measure, by_system in values.items()
        for name in others
        if baseline is not None
    ]
    pairs = all_pairs(values[main], measure=main)
    rest = [
        pair
        for measure in measures
        if measure != main
        for pair in all_pairs({name: values[measure][name] for name in others}, measure=measure)
    ]
    extremes = {
        name: wins_and_losses(values[main][name], values[main][baseline])
        for name in others
        if baseline is not None
    }
    texts = {q: results.collection.queries[q] for q in values[main][results.systems[0].name]}
    groupings: dict[str, Mapping[str, Sequence[str]]] = {
        "answer type": {str(answer): ids for answer, ids in group_by_type(texts).items()},
        "query length": group_by_length(texts),
    }
    return RetrievalFindings(
        results=results,
        measures=measures,
        estimates={
            s.name: _estimates(s.evaluation, seed=seed)
            for s in tqdm(results.systems, desc="intervals", disable=not progress)
        },
        contrasts=contrast(against_baseline, seed=seed, progress=progress),
        pairs=contrast(pairs, seed=seed, progress=progress),
        group_tests=group_tests(pairs, seed=seed),
        others=contrast(rest, seed=seed, progress=progress),
        wins={name: wins for name, (wins, _) in extremes.items()},
        losses={name: losses for name, (_, losses) in extremes.items()},
        breakdowns=[
            break_down(
                values[main],
                groups,
                by=by,
                measure=main,
                baseline=baseline,
                seed=seed,
                progress=progress,
            )
            for by, groups in groupings.items()
        ],
    )


def _estimates(evaluation: Evaluation, *, seed: int) -> dict[str, Estimate]:
    """Measure -> mean and interval of one system."""
    return {
        measure: Estimate(
            evaluation.means[measure], mean_interval(evaluation.per_query[measure], seed=seed)
        )
        for measure in evaluation.means
    }


def _completed(results: RetrievalResults) -> RetrievalResults:
    """Fill in baseline and main measure, after checking that all parts fit together."""
    names = [system.name for system in results.systems]
    _check_names(names, results.baseline)
    first = results.systems[0].evaluation
    for system in results.systems:
        if system.evaluation.means.keys() != first.means.keys():
            raise ValueError(
                f"{system.name} was measured by {', '.join(system.evaluation.means)}, and"
                f" {names[0]} by {', '.join(first.means)}: measure all systems alike"
            )
        for measure, by_query in system.evaluation.per_query.items():
            apart = by_query.keys() ^ first.per_query[measure].keys()
            if apart:
                raise ValueError(
                    f"{system.name} and {names[0]} were measured on different queries"
                    f" ({len(apart)} in one only in {measure}, such as {min(apart)!r}): evaluate"
                    " all runs against the same judgements"
                )
    measures = list(first.means)
    main = results.main_measure or measures[0]
    if main not in measures:
        raise ValueError(f"the main measure {main!r} was not measured: name one of {measures}")
    unknown = first.per_query[main].keys() - results.collection.queries.keys()
    if unknown:
        raise ValueError(
            f"{len(unknown)} measured queries have no text in {results.collection.name}, such as"
            f" {min(unknown)!r}: give the collection and split that the systems searched"
        )
    baseline = results.baseline or (names[0] if len(names) > 1 else None)
    return replace(results, baseline=baseline if len(names) > 1 else None, main_measure=main)


def _check_names(names: Sequence[str], baseline: str | None) -> None:
    if not names:
        raise ValueError("a report of no systems, expected at least one: give its results")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(
            f"two systems are called {min(twice)!r}: rename one, e.g. by `name=…` behind its comma"
        )
    if baseline is not None and baseline not in names:
        raise ValueError(
            f"the baseline {baseline!r} is not among the systems ({', '.join(names)}): name one of"
            " them"
        )


@dataclass(frozen=True)
class ReportedSimilarity:
    """One system's results on graded pairs or triplets.

    Attributes:
        system: its name.
        values: measure -> value, such as "Spearman" or "triplet accuracy".
        per_item: measure -> item id -> value, for measures that are a mean over items; from these
            the comparison with the baseline is made.
        comparisons: measure -> comparison with the baseline, where it was made by other means, such
            as by resampling pairs for a correlation.
        settings: what it is and how it encodes.
    """

    system: str
    values: Mapping[str, float]
    per_item: Mapping[str, Values] = field(default_factory=dict)
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SimilarityResults:
    """Several systems on one split of one similarity task.

    Attributes:
        task: its name.
        split: which of its items were used.
        n_items: pairs or triplets.
        systems: in the order of the table; all with the same measures.
        baseline: what the others are compared with; by default the first system.
    """

    task: str
    split: str
    n_items: int
    systems: Sequence[ReportedSimilarity]
    baseline: str | None = None


@dataclass(frozen=True)
class SimilarityContrast:
    """A system against the baseline in one measure of a similarity task.

    Attributes:
        system: whose value it is.
        measure: such as "Spearman".
        difference: system minus baseline.
        comparison: the test; None if nothing was given from which to make one.
        p_adjusted: after Holm's correction over the task's table.
    """

    system: str
    measure: str
    difference: float
    comparison: Comparison | None
    p_adjusted: float | None


@dataclass(frozen=True)
class SimilarityFindings:
    """A similarity task's results, baseline filled in, and their comparisons."""

    results: SimilarityResults
    contrasts: Sequence[SimilarityContrast]


def analyse_similarity(results: SimilarityResults, *, seed: int = 0) -> SimilarityFindings:
    """Compare each system with the baseline in each measure.

    Raises:
        ValueError: no systems, an unknown baseline, or different measures.
    """
    names = [reported.system for reported in results.systems]
    _check_names(names, results.baseline)
    results = replace(results, baseline=results.baseline or names[0])
    base = results.systems[names.index(results.baseline or names[0])]
    found: list[tuple[ReportedSimilarity, str, Comparison | None]] = []
    for reported in results.systems:
        if reported.values.keys() != base.values.keys():
            raise ValueError(
                f"{reported.system} was measured by {', '.join(reported.values)}, and"
                f" {base.system} by {', '.join(base.values)}: measure all systems alike"
            )
        if reported is not base:
            found += [(reported, m, _compare(reported, base, m, seed)) for m in base.values]
    adjusted = adjust([c.p_value if c else None for _, _, c in found])
    contrasts = [
        SimilarityContrast(r.system, m, r.values[m] - base.values[m], comparison, p)
        for (r, m, comparison), p in zip(found, adjusted, strict=True)
    ]
    return SimilarityFindings(results, contrasts)


def _compare(
    reported: ReportedSimilarity, base: ReportedSimilarity, measure: str, seed: int
) -> Comparison | None:
    if measure in reported.comparisons:
        return reported.comparisons[measure]
    if measure in reported.per_item and measure in base.per_item:
        return compare(reported.per_item[measure], base.per_item[measure], seed=seed)
    return None
