"""Compare several systems on one task, and find everything that a report states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

from modeling_condenser.measures.question_types import group_by_length, group_by_type
from modeling_condenser.measures.significance import (
    Comparison,
    Values,
    compare_all,
    compare_in_groups,
    correct,
    holm,
    mean_interval,
)
from modeling_condenser.runs.run_folder import describe_machine

from .cost import EncodingCost
from .system_results import SystemResult

_WINS = 10  # queries that are listed for each system


class GroupKey(NamedTuple):
    """A system in a group of queries."""

    group: str
    system: str


@dataclass(frozen=True)
class Breakdown:
    """The main measure by groups of queries.

    Attributes:
        by: "answer type" or "query length".
        sizes: group -> number of queries.
        means: group and system -> mean.
        comparisons: group and system -> comparison with the baseline, corrected together.
        n_left_out: queries without a group.
    """

    by: str
    sizes: Mapping[str, int]
    means: Mapping[GroupKey, float]
    comparisons: Mapping[GroupKey, Comparison]
    n_left_out: int


@dataclass(frozen=True)
class Report:
    """Everything that a report states about several systems on one task.

    Attributes:
        results: one for each system, in the order of the tables, with the same measures.
        baseline: the system that the others are compared with; None for a single system.
        n_items: queries, pairs or triplets.
        intervals: (system, measure) -> 95 % interval of the mean.
        comparisons: (system, measure) -> comparison with the baseline, corrected together.
        pairs: (system, other system, measure) -> comparison, corrected together.
        group_p_values: (system, other system) -> p-value of the thesis's t-test in the main
            measure, corrected together; empty if there are too few queries for ten groups.
        wins: system -> (query id, difference from the baseline) of the greatest gains.
        losses: the same of the greatest losses.
        queries: query id -> text; empty for graded pairs and triplets.
        breakdowns: of the main measure.
        costs: system -> cost of encoding.
        run_files: system -> place of its TREC run, as seen from the report, and SHA-256.
        judgements: name -> SHA-256.
        command: that makes the report again.
        seed: of all tests and intervals.
        machine: from `describe_machine`.
        pictures: name ("means", "answer type", ...) -> file.
    """

    results: Sequence[SystemResult]
    baseline: str | None
    n_items: int
    intervals: Mapping[tuple[str, str], tuple[float, float]]
    comparisons: Mapping[tuple[str, str], Comparison]
    pairs: Mapping[tuple[str, str, str], Comparison]
    group_p_values: Mapping[tuple[str, str], float]
    wins: Mapping[str, Sequence[tuple[str, float]]]
    losses: Mapping[str, Sequence[tuple[str, float]]]
    queries: Mapping[str, str]
    breakdowns: Sequence[Breakdown]
    costs: Mapping[str, EncodingCost] = field(default_factory=dict)
    run_files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    judgements: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    seed: int = 0
    machine: Mapping[str, Any] = field(default_factory=describe_machine)
    pictures: dict[str, str] = field(default_factory=dict)

    @property
    def measures(self) -> list[str]:
        return list(self.results[0].evaluation.means)

    @property
    def main_measure(self) -> str:
        return self.measures[0]

    @property
    def systems(self) -> list[str]:
        return [result.system for result in self.results]

    def values(self, measure: str) -> dict[str, Values]:
        """System -> query id -> value; empty for a measure that is not a mean over items."""
        found: dict[str, Values] = {
            r.system: r.evaluation.per_query.get(measure, {}) for r in self.results
        }
        return found if all(found.values()) else {}


def compare_systems(
    results: Sequence[SystemResult],
    *,
    baseline: str | None,
    queries: Mapping[str, str],
    n_items: int | None = None,
    comparisons: Mapping[tuple[str, str], Comparison],
    seed: int = 0,
    **facts: Any,
) -> Report:
    """Make all tests of a report. See `write_report`; `facts` are further fields of `Report`."""
    systems = [result.system for result in results]
    if not results or (baseline is not None and baseline not in systems):
        raise ValueError(f"the baseline is {baseline!r}, expected one of {systems}")
    per_query = {result.system: result.evaluation.per_query for result in results}
    measures = list(results[0].evaluation.means)
    if any(list(result.evaluation.means) != measures for result in results):
        raise ValueError(
            f"the systems were measured in different ways: expected {measures} for all"
        )
    main, base = measures[0], baseline or systems[0]
    others = [system for system in systems if system != base]
    against_base = {
        (system, measure): (per_query[system][measure], per_query[base][measure])
        for system in others
        for measure in per_query[base]
    }
    pairs = {
        (later, earlier, measure): (per_query[later][measure], per_query[earlier][measure])
        for earlier, later in combinations(systems, 2)
        for measure in per_query[base]
    }
    values = {system: by.get(main, {}) for system, by in per_query.items()}
    differences = {
        s: [(q, value - values[base][q]) for q, value in sorted(values[s].items())] for s in others
    }
    ids = values[base].keys()
    texts = {q: queries[q] for q in ids} if queries else {}
    groups: dict[str, Mapping[str, Sequence[str]]]
    groups = {"answer type": group_by_type(texts), "query length": group_by_length(texts)}
    return Report(
        results=results,
        baseline=base if others else None,
        n_items=n_items or len(ids),
        intervals={
            (system, measure): mean_interval(values, seed=seed)
            for system, by_measure in per_query.items()
            for measure, values in by_measure.items()
        },
        comparisons=correct({**compare_all(against_base, seed=seed), **comparisons}),
        pairs=compare_all(pairs, seed=seed),
        group_p_values=_group_p_values(values, seed=seed),
        wins={s: _extremes(found, sign=1) for s, found in differences.items()},
        losses={s: _extremes(found, sign=-1) for s, found in differences.items()},
        queries=texts,
        breakdowns=[
            break_down(values, members, by=by, baseline=base, seed=seed)
            for by, members in groups.items()
            if members
        ],
        seed=seed,
        **facts,
    )


def _extremes(differences: Sequence[tuple[str, float]], *, sign: int) -> list[tuple[str, float]]:
    """The greatest gains (sign 1) or losses (sign -1); equal ones by query id."""
    changed = [(q, d) for q, d in differences if sign * d > 1e-9]
    return sorted(changed, key=lambda item: (-sign * item[1], item[0]))[:_WINS]


def _group_p_values(values: Mapping[str, Values], *, seed: int) -> dict[tuple[str, str], float]:
    pairs = [(later, earlier) for earlier, later in combinations(values, 2) if values[later]]
    found = [compare_in_groups(values[a], values[b], seed=seed) for a, b in pairs]
    p_values = [p for p in found if p is not None]
    return dict(zip(pairs, holm(p_values), strict=True)) if len(p_values) == len(pairs) else {}


def break_down(
    values: Mapping[str, Values],
    groups: Mapping[str, Sequence[str]],
    *,
    by: str,
    baseline: str,
    seed: int = 0,
) -> Breakdown:
    """Compare systems within groups of queries, with p-values corrected over all of them.

    Args:
        values: system -> query id -> value of one measure.
        groups: name -> query ids, disjoint.
        by: what the groups are made by.
        baseline: one of the systems.
        seed: of the tests.
    """
    parts = {
        GroupKey(group, system): {q: by_query[q] for q in ids}
        for group, ids in groups.items()
        for system, by_query in values.items()
    }
    return Breakdown(
        by=by,
        sizes={group: len(ids) for group, ids in groups.items()},
        means={key: sum(part.values()) / len(part) for key, part in parts.items()},
        comparisons=compare_all(
            {
                key: (part, parts[GroupKey(key.group, baseline)])
                for key, part in parts.items()
                if key.system != baseline
            },
            seed=seed,
        ),
        n_left_out=len(values[baseline]) - sum(map(len, groups.values())),
    )
