"""Compare systems on one task, and write a report.

report.json      all figures, and what they were made from
report.md        the same as text, tables and pictures
per_query.tsv    one line for each query: id, text, and each system's value in each measure
*.png            means, groups of queries, recall by depth
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment

from modeling_condenser.collection.collection import Collection, checksum_qrels
from modeling_condenser.hub import markdown
from modeling_condenser.hub.markdown import counted, p_in_words
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.runs.whole_files import checksum_file, write_json

from .answer_types import group_queries
from .measures import Evaluation, make_evaluation
from .significance import ALPHA, N_RESAMPLES, Comparison, compare_in_groups, correct, holm
from .system_results import SystemResult

_TEMPLATE = Path(__file__).with_name("report.md.jinja")


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

    def render(self) -> str:
        """Write the content as Markdown."""
        environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        environment.filters["markdown"] = markdown.escape
        template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
        tested = {measure for _, measure in self.comparisons}
        return template.render(
            self.content,
            md=markdown,
            alpha=ALPHA,
            n_resamples=N_RESAMPLES,
            n_tests=len(self.comparisons),
            untested=[measure for measure in self.content["results"] if measure not in tested],
        )


def write_report(
    folder: str | Path,
    results: Sequence[SystemResult],
    *,
    collection: Collection | None = None,
    costs: Mapping[str, Mapping[str, Any]] | None = None,
    command: str = "",
    seed: int = 0,
) -> Report:
    """Compare systems, and write the report's files.

    Args:
        folder: created if missing.
        results: with the same measures and queries; the others are compared with the first. Groups
            of queries are about the first measure.
        collection: that was searched; None for graded pairs and triplets.
        costs: system -> result of `measure_cost`.
        command: that makes the report again.
        seed: of all tests and intervals.
    """
    from .plots import draw_report

    folder, first, costs = Path(folder), results[0], costs or {}
    evaluations = {result.system: result.evaluation for result in results}
    main, *_ = measures = list(first.evaluation.means)
    pairs = {
        (later, earlier, measure): comparison
        for earlier, later in combinations(evaluations, 2)
        for measure in measures
        if (comparison := evaluations[later].compare(measure, evaluations[earlier], seed=seed))
    }
    compared = correct({(s, m): c for (s, other, m), c in pairs.items() if other == first.system})
    queries = (
        {q: collection.queries[q] for q in first.evaluation.per_query[main]} if collection else {}
    )
    n_items, noun = first.evaluation.n_items, ("query", "queries") if queries else ("item", "items")
    content = {
        "title": f"{first.collection}, {first.split}: {counted(len(results), 'system')} on"
        f" {counted(n_items, *noun)}",
        "collection": first.collection,
        "split": first.split,
        "unanswerable": first.evaluation.unanswerable,
        "baseline": first.system,
        "systems": {r.system: _describe(r, costs.get(r.system)) for r in results},
        "results": {
            m: {s: _figures(e, m, compared.get((s, m)), seed=seed) for s, e in evaluations.items()}
            for m in measures
        },
        "pairs": _describe_pairs(pairs, evaluations, main, seed=seed),
        "breakdowns": {
            by: _break_down(evaluations, main, groups, seed=seed)
            for by, groups in group_queries(queries).items()
        },
        "qrels_sha256": checksum_qrels(collection.qrels) if collection else None,
        "command": command,
        "seed": seed,
        **describe_machine(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    content["pictures"] = draw_report(content, folder)
    report = Report(folder, results, compared, content)
    report.file.write_text(report.render(), encoding="utf-8")
    write_json(folder / "report.json", content)
    if queries:
        table = pd.DataFrame({"text": {q: " ".join(text.split()) for q, text in queries.items()}})
        for system, evaluation in evaluations.items():
            for measure, by_query in evaluation.per_query.items():
                table[f"{system} {measure}"] = by_query
        table.to_csv(folder / "per_query.tsv", sep="\t", index_label="query_id")
    return report


def _describe(result: SystemResult, cost: Mapping[str, Any] | None) -> dict[str, Any]:
    run = result.run_file
    return {
        "settings": dict(result.settings),
        "record": dict(result.record),
        "run_file": f"{run.parent.name}/{run.name}" if run else None,
        "run_sha256": checksum_file(run) if run else None,
        "cost": cost,
    }


def _figures(
    evaluation: Evaluation, measure: str, comparison: Comparison | None, *, seed: int
) -> dict[str, Any]:
    return {
        "mean": evaluation.means[measure],
        "interval": evaluation.interval(measure, seed=seed),
        "against_baseline": _compared(comparison) if comparison else None,
    }


def _compared(c: Comparison) -> dict[str, Any]:
    """A comparison in JSON, which has no infinity."""
    interval = c.interval if math.isfinite(c.interval[0]) else None
    return {**c._asdict(), "interval": interval, "is_significant": c.is_significant}


def _describe_pairs(
    pairs: Mapping[tuple[str, str, str], Comparison],
    evaluations: Mapping[str, Evaluation],
    main: str,
    *,
    seed: int,
) -> list[dict[str, Any]]:
    """Both tests of each two systems, as in the thesis's Table 4.3, each corrected (Holm)."""
    measures: dict[tuple[str, str], dict[str, Any]] = {}
    for (system, other, measure), c in correct(pairs).items():
        measures.setdefault((system, other), {})[measure] = _compared(c)
    values = {s: e.per_query[main] for s, e in evaluations.items() if e.per_query}
    t_tests = [
        compare_in_groups(values[a], values[b], seed=seed) if values else None for a, b in measures
    ]
    adjusted = holm([p for p in t_tests if p is not None]) or t_tests  # all are None, or none is
    return [
        {"system": a, "other": b, "measures": measures[a, b], "t_test": p}
        for (a, b), p in zip(measures, adjusted, strict=True)
    ]


def _break_down(
    evaluations: Mapping[str, Evaluation],
    measure: str,
    groups: Mapping[str, Sequence[str]],
    *,
    seed: int,
) -> dict[str, Any]:
    """Compare systems with the first one within disjoint groups of queries."""
    parts = {
        (group, system): make_evaluation({measure: {q: e.per_query[measure][q] for q in ids}})
        for group, ids in groups.items()
        for system, e in evaluations.items()
    }
    baseline = next(iter(evaluations))
    compared = correct(
        {
            (group, system): comparison
            for (group, system), part in parts.items()
            if system != baseline
            and (comparison := part.compare(measure, parts[group, baseline], seed=seed))
        }
    )
    return {
        group: {
            "n_queries": len(ids),
            "systems": {
                s: _figures(parts[group, s], measure, compared.get((group, s)), seed=seed)
                for s in evaluations
            },
        }
        for group, ids in groups.items()
    }
