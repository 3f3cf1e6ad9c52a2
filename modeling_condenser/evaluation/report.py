"""Write the report of an evaluation.

report.json      all figures, and what they were made from
report.md        the same as text, tables and pictures
per_query.tsv    one line for each query: id, text, and each system's value in each measure
*.png            means, groups of queries, recall by depth, cost
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.fingerprint import checksum_qrels, fingerprint_judgements
from modeling_condenser.measures.measures import parse_measure
from modeling_condenser.measures.significance import ALPHA, N_RESAMPLES, Comparison
from modeling_condenser.runs.whole_files import checksum_file, write_json

from .cost import EncodingCost
from .report_text import render_report
from .system_comparison import GroupKey, Report, compare_systems
from .system_results import SystemResult

JSON_FILE, MARKDOWN_FILE, PER_QUERY_FILE = "report.json", "report.md", "per_query.tsv"
_PICTURES = {
    "means": "means.png",
    "answer type": "answer_types.png",
    "query length": "query_lengths.png",
    "recall": "recall.png",
    "costs": "costs.png",
}
_MEASURES_IN_PICTURE = 6


def write_report(
    folder: str | Path,
    results: Sequence[SystemResult],
    *,
    baseline: str | None = None,
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
        results: one for each system, with the same measures and queries. The first measure is the
            main one, which pairs, wins, losses and groups of queries are about.
        baseline: the system that the others are compared with; by default the first.
        collection: that was searched; None for graded pairs and triplets.
        n_items: number of pairs or triplets; by default the number of queries.
        comparisons: (system, measure) -> comparison with the baseline, for measures that are not
            means over items.
        costs: system -> cost of encoding.
        command: that makes the report again.
        seed: of all tests and intervals.

    Raises:
        ValueError: there are no results, the baseline is unknown, or the systems have different
            measures or queries.
    """
    folder = Path(folder)
    report = compare_systems(
        results,
        baseline=baseline,
        queries=collection.queries if collection else {},
        n_items=n_items,
        comparisons=comparisons or {},
        costs=costs or {},
        run_files={r.system: _describe_file(r.run_file, folder) for r in results if r.run_file},
        judgements=_checksums(collection) if collection else {},
        command=command,
        seed=seed,
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name in (JSON_FILE, MARKDOWN_FILE, PER_QUERY_FILE, *_PICTURES.values()):
        (folder / name).unlink(missing_ok=True)
    _draw(report, folder)
    (folder / MARKDOWN_FILE).write_text(render_report(report), encoding="utf-8")
    if report.queries:
        (folder / PER_QUERY_FILE).write_text(_per_query_table(report), encoding="utf-8")
    write_json(folder / JSON_FILE, as_json(report))
    return report


def _describe_file(file: Path, folder: Path) -> tuple[str, str]:
    """Where a run file is, as seen from the report (its bare name elsewhere), and its SHA-256."""
    place, root = file.resolve(), folder.resolve()
    inside = place.is_relative_to(root)
    return place.relative_to(root).as_posix() if inside else file.name, checksum_file(file)


def _checksums(collection: Collection) -> dict[str, str]:
    sums = {"queries, judgements and answers": fingerprint_judgements(collection)}
    if collection.qrels:
        sums["judgements, as sorted TREC lines"] = checksum_qrels(collection.qrels)
    return sums


def _draw(report: Report, folder: Path) -> None:
    """Draw all pictures that the report has figures for, and name them in it."""
    from .plots import Estimate, plot_bars, plot_points

    def draw(name: str, plot: Callable[..., Path], panels: Any, **settings: Any) -> None:
        plot(panels, folder / _PICTURES[name], baseline=report.baseline, **settings)
        report.pictures[name] = _PICTURES[name]

    means = {result.system: result.evaluation.means for result in report.results}
    estimates = {
        measure: {s: Estimate(means[s][measure], report.intervals.get((s, measure))) for s in means}
        for measure in report.measures[:_MEASURES_IN_PICTURE]
    }
    if report.queries and report.n_items > 1:
        draw("means", plot_bars, estimates)
    for breakdown in report.breakdowns:
        panels = {
            f"{group} ({size:,})": {
                s: Estimate(breakdown.means[GroupKey(group, s)]) for s in report.systems
            }
            for group, size in breakdown.sizes.items()
        }
        draw(breakdown.by, plot_bars, panels)
    for family in ("R", "Hit") if report.queries else ():
        parsed = {measure: parse_measure(measure) for measure in report.measures}
        cutoffs = {
            m: p.cutoff for m, p in parsed.items() if p.family == family and p.threshold == 1
        }
        if len(cutoffs) > 1:
            points = {s: [(k, means[s][m]) for m, k in cutoffs.items()] for s in means}
            settings = {"y_label": f"{family}@k", "is_logarithmic": True}
            draw("recall", plot_points, {"k, passages": points}, **settings)
    if report.costs:
        quality = {system: means[system][report.main_measure] for system in report.costs}
        costs = {
            "milliseconds for a step": {
                s: [(c.seconds_per_step * 1e3, quality[s])] for s, c in report.costs.items()
            },
            "peak memory of a step (MB)": {
                s: [(c.peak_memory_bytes / 1e6, quality[s])] for s, c in report.costs.items()
            },
        }
        draw("costs", plot_points, costs, y_label=report.main_measure)


def _per_query_table(report: Report) -> str:
    """All values as tab-separated lines; white space within a text becomes one blank."""
    columns = [(s, m) for s in report.systems for m in report.measures]
    lines = ["\t".join(["query_id", "text", *(" ".join(f"{s} {m}".split()) for s, m in columns)])]
    values = {m: report.values(m) for m in report.measures}
    for query_id, text in report.queries.items():
        numbers = [repr(values[m][s][query_id]) for s, m in columns]
        lines.append("\t".join([query_id, " ".join(text.split()), *numbers]))
    return "\n".join(lines) + "\n"


def as_json(report: Report) -> dict[str, Any]:
    """The content of report.json."""
    first = report.results[0]
    return {
        "command": report.command,
        "seed": report.seed,
        **report.machine,
        "tests": {
            "randomisation": f"two-sided, paired, over queries; {N_RESAMPLES} resamples",
            "interval": f"95 % percentile bootstrap over queries; {N_RESAMPLES} resamples",
            "groups": "paired t-test over the means of ten random groups of queries",
            "correction": "Holm, over each list of comparisons",
            "significant_below": ALPHA,
        },
        "collection": first.collection,
        "split": first.split,
        "n_items": report.n_items,
        "unanswerable": list(first.evaluation.unanswerable),
        "measures": report.measures,
        "baseline": report.baseline,
        "judgements_sha256": dict(report.judgements),
        "pictures": report.pictures,
        "costs": {system: asdict(cost) for system, cost in report.costs.items()},
        "systems": [_system_json(report, result) for result in report.results],
        "against_baseline": [
            _comparison_json(c, system=s, baseline=report.baseline, measure=m)
            for (s, m), c in report.comparisons.items()
        ],
        "pairs": [
            _comparison_json(c, system=s, baseline=other, measure=m)
            for (s, other, m), c in report.pairs.items()
        ],
        "group_tests": [
            {"system": s, "baseline": other, "measure": report.main_measure, "p_adjusted": p}
            for (s, other), p in report.group_p_values.items()
        ],
        "wins": report.wins,
        "losses": report.losses,
        "breakdowns": [
            {
                "by": breakdown.by,
                "n_left_out": breakdown.n_left_out,
                "n_queries": breakdown.sizes,
                "means": [{**key._asdict(), "mean": m} for key, m in breakdown.means.items()],
                "against_baseline": [
                    _comparison_json(c, **key._asdict()) for key, c in breakdown.comparisons.items()
                ],
            }
            for breakdown in report.breakdowns
        ],
    }


def _system_json(report: Report, result: SystemResult) -> dict[str, Any]:
    name = result.system
    run_file, checksum = report.run_files.get(name, (None, None))
    return {
        "name": name,
        "means": result.evaluation.means,
        "intervals": {m: _bounds(i) for (s, m), i in report.intervals.items() if s == name},
        "run_file": run_file,
        "run_sha256": checksum,
        "settings": json.loads(json.dumps(dict(result.settings), default=str)),
        "record": json.loads(json.dumps(dict(result.record), default=str)),
    }


def _comparison_json(comparison: Comparison, **names: str | None) -> dict[str, Any]:
    figures = {**comparison._asdict(), "interval": _bounds(comparison.interval)}
    return {**names, **figures, "is_significant": comparison.is_significant}


def _bounds(interval: tuple[float, float]) -> list[float] | None:
    """An interval in JSON, which has no infinity."""
    return list(interval) if all(map(math.isfinite, interval)) else None
