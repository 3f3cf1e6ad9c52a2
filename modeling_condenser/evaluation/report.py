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
from typing import Any

import pandas as pd

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.fingerprint import checksum_qrels, fingerprint_judgements
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
from modeling_condenser.repository.markdown import counted, p_in_words
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
        lines = [self.content["title"]]
        for system, means in self.means.items():
            lines.append(f"{system}:")
            for measure, mean in means.items():
                line = f"  {measure:<{max(map(len, means))}}  {mean:.4f}"
                if c := self.comparisons.get((system, measure)):
                    line += f"   {c.difference:+.4f} from {self.results[0].system},"
                    line += f" {p_in_words(c.p_adjusted)}"
                lines.append(line)
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
        folder: created if missing; replaces the files of an earlier report and keeps others.
        results: one for each system, with the same measures and queries; the others are compared
            with the first. The first measure is the main one, which wins, losses and groups of
            queries are about.
        collection: that was searched; None for graded pairs and triplets.
        n_items: number of pairs or triplets; by default the number of queries.
        comparisons: (system, measure) -> comparison with the baseline, for measures that are not
            means over items.
        costs: system -> cost of encoding.
        command: that makes the report again.
        seed: of all tests and intervals.

    Raises:
        ValueError: the systems have different queries.
    """
    from .plots import draw_report

    folder, first = Path(folder), results[0]
    main = next(iter(first.evaluation.means))
    values: dict[str, Values] = {r.system: r.evaluation.per_query.get(main, {}) for r in results}
    queries = {q: collection.queries[q] for q in values[first.system]} if collection else {}
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
        "measures": list(first.evaluation.means),
        "baseline": first.system,
        "systems": {
            r.system: {
                **_describe_system(r, against_baseline, seed=seed),
                "cost": asdict(costs[r.system]) if costs and r.system in costs else None,
            }
            for r in results
        },
        "pairs": _describe_pairs(correct(pairs), values, seed=seed),
        "wins": {s: _extremes(values, s, queries, sign=1) for s in values if s != first.system},
        "losses": {s: _extremes(values, s, queries, sign=-1) for s in values if s != first.system},
        "breakdowns": [
            _break_down(values, groups, by=by, seed=seed)
            for by, groups in (
                ("answer type", group_by_type(queries)),
                ("query length", group_by_length(queries)),
            )
            if groups
        ],
        "sha256": _checksums(collection) if collection else {},
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
        _write_values(folder / "per_query.tsv", results, queries)
    write_json(folder / "report.json", content)
    return report


def _describe_system(
    result: SystemResult,
    against_baseline: Mapping[tuple[str, str], Comparison],
    *,
    seed: int,
) -> dict[str, Any]:
    name, evaluation, run_file = result.system, result.evaluation, result.run_file
    intervals = {m: mean_interval(v, seed=seed) for m, v in evaluation.per_query.items()}
    return {
        "measures": {
            measure: {
                "mean": mean,
                "interval": _bounds(intervals[measure]) if measure in intervals else None,
                "against_baseline": _figures(against_baseline.get((name, measure))),
            }
            for measure, mean in evaluation.means.items()
        },
        "settings": dict(result.settings),
        "record": dict(result.record),
        "run_file": f"{run_file.parent.name}/{run_file.name}" if run_file else None,
        "run_sha256": checksum_file(run_file) if run_file else None,
    }


def _describe_pairs(
    pairs: Mapping[tuple[str, str, str], Comparison], values: Mapping[str, Values], *, seed: int
) -> list[dict[str, Any]]:
    names = list(dict.fromkeys((system, other) for system, other, _ in pairs))
    t_tests = [compare_in_groups(values[a], values[b], seed=seed) for a, b in names]
    p_values = [p for p in t_tests if p is not None]  # all or none: the queries are the same
    return [
        {
            "system": system,
            "other": other,
            "measures": {
                m: _figures(c) for (*pair, m), c in pairs.items() if pair == [system, other]
            },
            "t_test": p,
        }
        for (system, other), p in zip(names, holm(p_values) or t_tests, strict=True)
    ]


def _extremes(
    values: Mapping[str, Values], system: str, queries: Mapping[str, str], *, sign: int
) -> list[dict[str, Any]]:
    """The queries with the greatest gains (sign 1) or losses (sign -1); equal ones by id."""
    own, base = values[system], next(iter(values.values()))
    changed = [(q, own[q] - base[q]) for q in queries if sign * (own[q] - base[q]) > 1e-9]
    return [
        {"id": q, "query": queries[q], "value": own[q], "difference": difference}
        for q, difference in sorted(changed, key=lambda c: (-sign * c[1], c[0]))[:_EXTREMES]
    ]


def _break_down(
    values: Mapping[str, Values], groups: Mapping[str, Sequence[str]], *, by: str, seed: int
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
    described: dict[str, Any] = {
        group: {"n_queries": len(ids), "systems": {}} for group, ids in groups.items()
    }
    for (group, system), part in parts.items():
        described[group]["systems"][system] = {
            "mean": sum(part.values()) / len(part),
            "against_baseline": _figures(compared.get((group, system))),
        }
    n_grouped = sum(map(len, groups.values()))
    return {"by": by, "groups": described, "n_left_out": len(values[baseline]) - n_grouped}


def _figures(comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    own = {"interval": _bounds(comparison.interval), "is_significant": comparison.is_significant}
    return {**comparison._asdict(), **own}


def _bounds(interval: tuple[float, float]) -> list[float] | None:
    """An interval in JSON, which has no infinity."""
    return list(interval) if all(map(math.isfinite, interval)) else None


def _checksums(collection: Collection) -> dict[str, str]:
    sums = {"queries, judgements and answers": fingerprint_judgements(collection)}
    if collection.qrels:
        sums["judgements, as sorted TREC lines"] = checksum_qrels(collection.qrels)
    return sums


def _write_values(file: Path, results: Sequence[SystemResult], queries: Mapping[str, str]) -> None:
    columns = {
        f"{result.system} {measure}": by_query
        for result in results
        for measure, by_query in result.evaluation.per_query.items()
    }
    texts = {query: " ".join(text.split()) for query, text in queries.items()}
    pd.DataFrame({"text": texts, **columns}).to_csv(file, sep="\t", index_label="query_id")
