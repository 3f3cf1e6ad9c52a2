"""Compare systems on one task, and write a report.

report.json      all figures, and what they were made from
report.md        the same as text, tables and pictures
per_query.tsv    one line for each query: id, text, and each system's value in each measure
*.png            means, groups of queries, recall by depth
"""

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
from .measures import Evaluation
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
        lines = [self.content["title"]]
        for system, means in self.means.items():
            lines.append(f"{system}:")
            for measure, mean in means.items():
                lines.append(f"  {measure:<{max(map(len, means))}}  {mean:.4f}")
                if c := self.comparisons.get((system, measure)):
                    p, baseline = p_in_words(c.p_adjusted), self.content["baseline"]
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

    folder, first = Path(folder), results[0]
    evaluations = {result.system: result.evaluation for result in results}
    main, *_ = measures = list(first.evaluation.means)
    figures, compared = _compare({m: (m, evaluations) for m in measures}, seed=seed)
    queries: dict[str, str] = {}
    if collection:
        queries = {q: collection.queries[q] for q in first.evaluation.per_query[main]}
    n_items, noun = first.evaluation.n_items, ("query", "queries") if queries else ("item", "items")
    content = {
        "title": f"{first.collection}, {first.split}: {counted(len(results), 'system')} on"
        f" {counted(n_items, *noun)}",
        "collection": first.collection,
        "split": first.split,
        "unanswerable": first.evaluation.unanswerable,
        "baseline": first.system,
        "systems": {r.system: _describe(r, (costs or {}).get(r.system)) for r in results},
        "results": figures,
        "pairs": _compare_pairs(evaluations, main, seed=seed),
        "breakdowns": _break_down(evaluations, main, queries, seed=seed),
        "qrels_sha256": checksum_qrels(collection.qrels) if collection else None,
        "command": command,
        "seed": seed,
        **describe_machine(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    content["pictures"] = draw_report(content, folder)
    report = Report(folder, results, compared, content)
    report.file.write_text(_render(report), encoding="utf-8")
    write_json(folder / "report.json", content)
    if queries:
        table = pd.DataFrame({"text": pd.Series(queries).str.split().str.join(" ")})
        for system, evaluation in evaluations.items():
            table = table.join(pd.DataFrame(evaluation.per_query).add_prefix(f"{system} "))
        table.to_csv(folder / "per_query.tsv", sep="\t", index_label="query_id")
    return report


def _render(report: Report) -> str:
    """The report as Markdown."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["markdown"] = markdown.escape
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        report.content,
        md=markdown,
        alpha=ALPHA,
        n_resamples=N_RESAMPLES,
        n_tests=len(report.comparisons),
    )


def _describe(result: SystemResult, cost: Mapping[str, Any] | None) -> dict[str, Any]:
    run = result.run_file
    return {
        "settings": dict(result.settings),
        "record": dict(result.record),
        "run_file": f"{run.parent.name}/{run.name}" if run else None,
        "run_sha256": checksum_file(run) if run else None,
        "cost": cost,
    }


def _compare(
    rows: Mapping[str, tuple[str, Mapping[str, Evaluation]]], *, seed: int
) -> tuple[dict[str, Any], dict[tuple[str, str], Comparison]]:
    """Compare systems with the first one in each row of a table: a measure and its evaluations.

    Returns:
        Row -> system -> figures; and (system, row) -> comparison, corrected over the table (Holm).
    """
    compared = correct(
        {
            (system, row): evaluation.compare(measure, next(iter(evaluations.values())), seed=seed)
            for row, (measure, evaluations) in rows.items()
            for system, evaluation in list(evaluations.items())[1:]
        }
    )
    figures = {
        row: {
            system: {
                "mean": evaluation.means[measure],
                "interval": evaluation.interval(measure, seed=seed),
                "against_baseline": _as_dict(compared.get((system, row))),
            }
            for system, evaluation in evaluations.items()
        }
        for row, (measure, evaluations) in rows.items()
    }
    return figures, compared


def _as_dict(c: Comparison | None) -> dict[str, Any] | None:
    return {**c._asdict(), "is_significant": c.is_significant} if c else None


def _break_down(
    evaluations: Mapping[str, Evaluation], measure: str, queries: Mapping[str, str], *, seed: int
) -> dict[str, Any]:
    """Compare systems with the first one in groups of queries, corrected over each grouping."""
    found = {}
    for by, groups in group_queries(queries).items():
        parts = {
            group: (measure, {system: e.select(measure, ids) for system, e in evaluations.items()})
            for group, ids in groups.items()
        }
        figures, _ = _compare(parts, seed=seed)
        found[by] = {g: {"n_queries": len(groups[g]), "systems": figures[g]} for g in groups}
    return found


def _compare_pairs(
    evaluations: Mapping[str, Evaluation], main: str, *, seed: int
) -> list[dict[str, Any]]:
    """Both tests of each two systems, as in the thesis's Table 4.3, each corrected (Holm)."""
    pairs = [(system, other) for other, system in combinations(evaluations, 2)]
    compared = correct(
        {
            (system, other, m): evaluations[system].compare(m, evaluations[other], seed=seed)
            for system, other in pairs
            for m in evaluations[system].means
        }
    )
    measures: dict[tuple[str, str], dict[str, Any]] = {pair: {} for pair in pairs}
    for (system, other, measure), comparison in compared.items():
        measures[system, other][measure] = _as_dict(comparison)
    values = {s: e.per_query[main] for s, e in evaluations.items() if e.per_query}
    t_tests = [
        compare_in_groups(values[a], values[b], seed=seed) if values else None for a, b in pairs
    ]
    adjusted = holm([p for p in t_tests if p is not None]) or t_tests  # all are None, or none is
    return [
        {"system": a, "other": b, "measures": measures[a, b], "t_test": p}
        for (a, b), p in zip(pairs, adjusted, strict=True)
    ]
