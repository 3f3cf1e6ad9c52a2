"""Compare systems on one task, and write a report.

report.json      all figures, and what they were made from
report.md        the same as text, tables and pictures
per_query.tsv    one line for each query: id, text, and each system's value in each measure
*.png            means, groups of queries, recall by depth, cost
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.fingerprint import checksum_qrels, fingerprint_judgements
from modeling_condenser.hub.markdown import counted, p_in_words
from modeling_condenser.measures.answer_types import group_by_length, group_by_type
from modeling_condenser.measures.significance import (
    Comparison,
    Values,
    compare,
    compare_in_groups,
    correct,
    holm,
    mean_interval,
)
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.runs.whole_files import checksum_file, write_json

from .cost import EncodingCost
from .report_text import render_report
from .system_results import SystemResult

_EXTREMES = 10  # queries that are listed for each system


@dataclass(frozen=True)
class Report:
    """The result of an evaluation; `print(report)` shows measures and differences.

    Attributes:
        folder: of the report's files.
        results: one for each system, the baseline first.
        comparisons: (system, measure) -> comparison with the baseline, corrected together (Holm).
        content: all figures, as in report.json.
    """

    folder: Path
    results: Sequence[SystemResult]
    comparisons: Mapping[tuple[str, str], Comparison]
    content: Mapping[str, Any]

    @property
    def file(self) -> Path:
        """The report as Markdown."""
        return self.folder / "report.md"

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """System -> measure -> mean."""
        return {result.system: result.evaluation.means for result in self.results}

    def __str__(self) -> str:
        lines, baseline = [self.content["title"]], self.content["baseline"]
        for system, means in self.means.items():
            lines.append(f"{system}:")
            for measure, mean in means.items():
                lines.append(f"  {measure:<{max(map(len, means))}}  {mean:.4f}")
                if c := self.comparisons.get((system, measure)):
                    p = p_in_words(c.p_adjusted)
                    lines[-1] += f"   {c.difference:+.4f} from {baseline}, {p}"
        if self.comparisons:
            n_tests = counted(len(self.comparisons), "comparison")
            lines.append(f"p is two-sided, by Holm's correction over {n_tests}.")
        return "\n".join(lines)


def write_report(
    folder: str | Path,
    results: Sequence[SystemResult],
    *,
    collection: Collection | None = None,
    n_items: int | None = None,
    comparisons: Mapping[tuple[str, str], Comparison] | None = None,
    costs: Mapping[str, EncodingCost] | None = None,
    command: str = "",
    seed: int = 0,
) -> Report:
    """Compare systems, and write the report's files.

    Args:
        folder: created if missing.
        results: one for each system, with the same measures and queries; the others are compared
            with the first. The first measure is the main one, which groups of queries are about.
        collection: that was searched; None for graded pairs and triplets.
        n_items: number of pairs or triplets.
        comparisons: (system, measure) -> comparison with the baseline, for measures that are not
            means over items.
        costs: system -> cost of encoding.
        command: that makes the report again.
        seed: of all tests and intervals.
    """
    from .plots import draw_report

    folder, first = Path(folder), results[0]
    measures = list(first.evaluation.means)
    values = {r.system: r.evaluation.per_query.get(measures[0], {}) for r in results}
    queries = {q: collection.queries[q] for q in values[first.system]} if collection else {}
    qrels = collection.qrels if collection else None
    pairs = {
        (later.system, earlier.system, measure): compare(
            later.evaluation.per_query[measure], by_query, seed=seed
        )
        for earlier, later in combinations(results, 2)
        for measure, by_query in earlier.evaluation.per_query.items()
    }
    with_first = {(s, m): c for (s, other, m), c in pairs.items() if other == first.system}
    against_baseline = correct({**with_first, **(comparisons or {})})
    items = counted(len(queries), "query", "queries") if queries else counted(n_items or 0, "item")
    content = {
        "title": f"{first.collection}, {first.split}: {counted(len(results), 'system')} on {items}",
        "collection": first.collection,
        "split": first.split,
        "unanswerable": first.evaluation.unanswerable,
        "baseline": first.system,
        "systems": {
            r.system: {
                "settings": dict(r.settings),
                "record": dict(r.record),
                "run_file": f"{r.run_file.parent.name}/{r.run_file.name}" if r.run_file else None,
                "run_sha256": checksum_file(r.run_file) if r.run_file else None,
                "cost": asdict(costs[r.system]) if costs and r.system in costs else None,
            }
            for r in results
        },
        "results": {
            measure: {
                r.system: _figures(
                    r.evaluation.means[measure],
                    r.evaluation.per_query.get(measure),
                    against_baseline.get((r.system, measure)),
                    seed=seed,
                )
                for r in results
            }
            for measure in measures
        },
        "pairs": _describe_pairs(correct(pairs), values, seed=seed),
        "extremes": {s: _extremes(values, s, queries) for s in values if s != first.system},
        "breakdowns": {
            by: _break_down(values, groups, seed=seed)
            for by, groups in (
                ("answer type", group_by_type(queries)),
                ("query length", group_by_length(queries)),
            )
            if groups
        },
        "judgements_sha256": fingerprint_judgements(collection) if collection else None,
        "qrels_sha256": checksum_qrels(qrels) if qrels else None,
        "command": command,
        "seed": seed,
        **describe_machine(),
    }
    content = json.loads(json.dumps(content, default=str))
    folder.mkdir(parents=True, exist_ok=True)
    content["pictures"] = draw_report(content, folder)
    report = Report(folder, results, against_baseline, content)
    report.file.write_text(render_report(content), encoding="utf-8")
    if queries:
        columns = {
            f"{r.system} {m}": by_query
            for r in results
            for m, by_query in r.evaluation.per_query.items()
        }
        texts = {query: " ".join(text.split()) for query, text in queries.items()}
        table = pd.DataFrame({"text": texts, **columns})
        table.to_csv(folder / "per_query.tsv", sep="\t", index_label="query_id")
    write_json(folder / "report.json", content)
    return report


def _figures(
    mean: float, values: Values | None, comparison: Comparison | None, *, seed: int
) -> dict[str, Any]:
    """A mean, its interval if it is one over queries, and its comparison with the baseline."""
    return {
        "mean": mean,
        "interval": _bounds(mean_interval(values, seed=seed)) if values else None,
        "against_baseline": _compared(comparison) if comparison else None,
    }


def _compared(c: Comparison) -> dict[str, Any]:
    return {**c._asdict(), "interval": _bounds(c.interval), "is_significant": c.is_significant}


def _bounds(interval: tuple[float, float]) -> list[float] | None:
    """An interval in JSON, which has no infinity."""
    return list(interval) if all(map(math.isfinite, interval)) else None


def _describe_pairs(
    pairs: Mapping[tuple[str, str, str], Comparison], values: Mapping[str, Values], *, seed: int
) -> list[dict[str, Any]]:
    names = list(dict.fromkeys((system, other) for system, other, _ in pairs))
    t_tests = [compare_in_groups(values[a], values[b], seed=seed) for a, b in names]
    adjusted = holm([p for p in t_tests if p is not None]) or t_tests  # all are None, or none is
    return [
        {
            "system": a,
            "other": b,
            "measures": {m: _compared(c) for (*pair, m), c in pairs.items() if pair == [a, b]},
            "t_test": p,
        }
        for (a, b), p in zip(names, adjusted, strict=True)
    ]


def _extremes(
    values: Mapping[str, Values], system: str, queries: Mapping[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """The queries with the greatest gains and losses; equal ones by id."""
    own, base = values[system], next(iter(values.values()))
    found = {}
    for name, sign in (("gains", 1), ("losses", -1)):
        changes = [(sign * (base[q] - own[q]), q) for q in queries]
        found[name] = [
            {"id": q, "query": queries[q], "value": own[q], "difference": -sign * change}
            for change, q in sorted(changes)[:_EXTREMES]
            if change < -1e-9
        ]
    return found


def _break_down(
    values: Mapping[str, Values], groups: Mapping[str, Sequence[str]], *, seed: int
) -> dict[str, Any]:
    """Compare systems with the first one within disjoint groups of queries."""
    baseline, *others = values
    parts = {
        (group, system): {query: by_query[query] for query in ids}
        for group, ids in groups.items()
        for system, by_query in values.items()
    }
    compared = correct(
        {
            (group, system): compare(parts[group, system], parts[group, baseline], seed=seed)
            for group in groups
            for system in others
        }
    )
    return {
        group: {
            "n_queries": len(ids),
            "systems": {
                system: _figures(
                    fmean(parts[group, system].values()),
                    parts[group, system],
                    compared.get((group, system)),
                    seed=seed,
                )
                for system in values
            },
        }
        for group, ids in groups.items()
    }
