"""Compare systems on one task, and write a report.

report.json      all figures, and what they were made from
report.md        the same as text, tables and pictures
per_query.tsv    one line for each query: id, text, and each system's value in each measure
*.png            means, groups of queries, recall by depth
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from modeling_condenser.collection.collection import Collection, checksum_qrels
from modeling_condenser.hub.markdown import (
    code_block,
    counted,
    escape,
    listed,
    p_in_words,
    table,
)
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.runs.whole_files import checksum_file, write_json

from .answer_types import group_by_length, group_by_type
from .significance import (
    ALPHA,
    N_RESAMPLES,
    Comparison,
    Values,
    compare,
    compare_in_groups,
    correct,
    holm,
    mean_interval,
)
from .system_results import SystemResult

_MARKS = (
    f"▲ and ▼ mark a difference with p < {ALPHA} after the correction; ○ means that no difference"
    " was shown."
)
_TEST = f"a two-sided paired randomisation test ({N_RESAMPLES:,} resamples)"


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
        n_items: number of pairs or triplets.
        comparisons: (system, measure) -> comparison with the baseline, for measures that are not
            means over items.
        costs: system -> result of `measure_cost`.
        command: that makes the report again.
        seed: of all tests and intervals.
    """
    from .plots import draw_report

    folder, first = Path(folder), results[0]
    measures = list(first.evaluation.means)
    values = {r.system: r.evaluation.per_query.get(measures[0], {}) for r in results}
    queries = {q: collection.queries[q] for q in values[first.system]} if collection else {}
    pairs = {
        (later.system, earlier.system, measure): comparison
        for earlier, later in combinations(results, 2)
        for measure, comparison in later.compare_with(earlier, seed=seed).items()
    }
    with_first = {(s, m): c for (s, other, m), c in pairs.items() if other == first.system}
    against_baseline = correct({**with_first, **(comparisons or {})})
    items = counted(len(queries), "query", "queries") if queries else counted(n_items or 0, "item")
    groups = {"answer type": group_by_type(queries), "query length": group_by_length(queries)}

    def figures(result: SystemResult, measure: str) -> dict[str, Any]:
        evaluation, comparison = result.evaluation, against_baseline.get((result.system, measure))
        by_query = evaluation.per_query.get(measure)
        return _figures(evaluation.means[measure], by_query, comparison, seed=seed)

    content: dict[str, Any] = {
        "title": f"{first.collection}, {first.split}: {counted(len(results), 'system')} on {items}",
        "collection": first.collection,
        "split": first.split,
        "unanswerable": first.evaluation.unanswerable,
        "baseline": first.system,
        "systems": {r.system: _describe(r, (costs or {}).get(r.system)) for r in results},
        "results": {m: {r.system: figures(r, m) for r in results} for m in measures},
        "pairs": _describe_pairs(correct(pairs), values, seed=seed),
        "breakdowns": {
            by: _break_down(values, ids, seed=seed) for by, ids in groups.items() if ids
        },
        "qrels_sha256": checksum_qrels(collection.qrels) if collection else None,
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
        pd.DataFrame({"text": texts, **columns}).to_csv(
            folder / "per_query.tsv", sep="\t", index_label="query_id"
        )
    write_json(folder / "report.json", content)
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


def _break_down(
    values: Mapping[str, Values], groups: Mapping[str, Sequence[str]], *, seed: int
) -> dict[str, Any]:
    """Compare systems with the first one within disjoint groups of queries."""
    baseline = next(iter(values))
    parts = {
        (group, system): {query: by_query[query] for query in ids}
        for group, ids in groups.items()
        for system, by_query in values.items()
    }
    compared = correct(
        {
            (group, system): compare(own, parts[group, baseline], seed=seed)
            for (group, system), own in parts.items()
            if system != baseline
        }
    )

    def figures(group: str, system: str) -> dict[str, Any]:
        own = parts[group, system]
        return _figures(fmean(own.values()), own, compared.get((group, system)), seed=seed)

    return {
        group: {
            "n_queries": len(ids),
            "systems": {system: figures(group, system) for system in values},
        }
        for group, ids in groups.items()
    }


def render_report(content: Mapping[str, Any]) -> str:
    """Write the content of report.json as Markdown."""
    main, pictures = escape(next(iter(content["results"]))), content["pictures"]
    opening = f"The main measure is {main}. The baseline is {escape(content['baseline'])}."
    if n_left_out := len(content["unanswerable"]):
        opening += f" {counted(n_left_out, 'query', 'queries')} without relevant passages or"
        opening += " answers were left out."
    sections = [f"# {escape(content['title'])}", opening, *_results(content)]
    if content["pairs"]:
        sections += _pairs(content)
    for by, groups in content["breakdowns"].items():
        sections += [f"## {main} by {by}", *_breakdown(content, by, groups)]
        sections.append(f"![{main} by {by}]({pictures[by]})")
    if "recall" in pictures:
        sections += ["## Recall by depth", f"![Recall by depth]({pictures['recall']})"]
    costs = {name: system["cost"] for name, system in content["systems"].items() if system["cost"]}
    if costs:
        sections += _costs(costs)
    return "\n\n".join([*sections, *_provenance(content)]) + "\n"


def _mark(c: Mapping[str, Any]) -> str:
    if not c["is_significant"]:
        return "○"
    return "▲" if c["difference"] > 0 else "▼"


def _cell(figures: Mapping[str, Any]) -> str:
    """A mean, and whether it differs from the baseline's."""
    mean, c = f"{figures['mean']:.4f}", figures["against_baseline"]
    if c is None:
        return mean
    return f"{mean} {_mark(c)} ({c['difference']:+.4f}, {p_in_words(c['p_adjusted'])})"


def _how_tested(content: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> str:
    compared = [figures["against_baseline"] for row in rows for figures in row.values()]
    n_tests = len(compared) - compared.count(None)
    if not n_tests:
        return "There is only one system, so nothing is compared."
    return (
        f"In brackets: the difference from {escape(content['baseline'])} and the p-value of"
        f" {_TEST}, after Holm's correction over the {counted(n_tests, 'comparison')} of this"
        f" table. {_MARKS}"
    )


def _results(content: Mapping[str, Any]) -> list[str]:
    results = content["results"]
    rows = [
        [escape(system), *(_cell(figures[system]) for figures in results.values())]
        for system in content["systems"]
    ]
    text = _how_tested(content, results.values())
    untested = [
        m for m, by in results.items() if not any(f["against_baseline"] for f in by.values())
    ]
    if 0 < len(untested) < len(results):
        text += f" {escape(listed(untested))} was not tested, and may differ by chance."
    parts = ["## Results", table(["system", *map(escape, results)], rows), text]
    if "means" in content["pictures"]:
        parts += [
            f"![Means of each system in each measure]({content['pictures']['means']})",
            "Lines are 95 % bootstrap intervals. The tests are paired, so the table and not the"
            " overlap of the lines shows whether two systems differ.",
        ]
    return parts


def _pairs(content: Mapping[str, Any]) -> list[str]:
    """Each two systems by both tests, as in the thesis's Table 4.3."""
    rows = []
    for pair in content["pairs"]:
        t_test = p_in_words(pair["t_test"])
        for measure, c in pair["measures"].items():
            rows.append(
                [
                    f"{escape(pair['system'])} minus {escape(pair['other'])}",
                    escape(measure),
                    f"{c['difference']:+.4f} {_mark(c)}",
                    "{:+.4f} to {:+.4f}".format(*c["interval"]) if c["interval"] else "",
                    p_in_words(c["p_adjusted"]),
                    f"{c['better']:,} / {c['equal']:,} / {c['worse']:,}",
                    t_test,
                ]
            )
            t_test = ""  # of the main measure, which is the first
    header = ["pair", "measure", "difference", "95 % interval", "p", "better / equal / worse"]
    return [
        "## Pairs of systems",
        table([*header, "t-test"], rows, numbers_from=2),
        f"p is of {_TEST}, after Holm's correction over the {counted(len(rows), 'comparison')} of"
        f" this table. {_MARKS} The t-test is the thesis's, over the means of ten random groups of"
        " queries (section 4.4), in the main measure, after Holm's correction over the pairs.",
    ]


def _breakdown(content: Mapping[str, Any], by: str, groups: Mapping[str, Any]) -> list[str]:
    rows = [
        [escape(name), f"{group['n_queries']:,}", *map(_cell, group["systems"].values())]
        for name, group in groups.items()
    ]
    text = _how_tested(content, [group["systems"] for group in groups.values()])
    if by == "answer type":
        text += (
            " Rules find the type of the answer that a query asks for; the types are those of Li"
            " and Roth, as in the thesis (section 4.4.2). Queries without a type, such as yes/no"
            " questions and bare phrases, are left out."
        )
    return [table([by, "queries", *map(escape, content["systems"])], rows), text]


def _costs(costs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = []
    for name, cost in costs.items():
        threads = f", {counted(cost['n_threads'], 'thread')}" if cost["device"] == "cpu" else ""
        low, high = (f"{seconds * 1e3:.1f}" for seconds in cost["quartiles"])
        rows.append(
            [
                escape(name),
                f"{escape(cost['hardware'])}{threads}",
                f"{cost['n_parameters'] / 1e6:,.1f} M ({cost['dtype']})",
                f"{cost['seconds_per_step'] * 1e3:.1f} ({low} to {high})",
                f"{cost['batch_size'] / cost['seconds_per_step']:,.0f}",
                f"{cost['peak_memory_bytes'] / 1e6:,.0f} MB",
            ]
        )
    one = next(iter(costs.values()))
    header = ["system", "hardware", "parameters", "ms a step", "texts a second", "peak memory"]
    return [
        "## Time and memory of encoding",
        table(header, rows, numbers_from=2),
        f"A step encodes {one['batch_size']} texts of {one['length']} random tokens, as in the"
        f" thesis's Figure 4.2. The time is the median of {one['n_steps']} steps, with quartiles."
        " The memory is that of weights and step in a new process, without its libraries.",
    ]


def _provenance(content: Mapping[str, Any]) -> list[str]:
    hardware, systems = content["hardware"], content["systems"]
    versions = [f"{name} {version}" for name, version in content["versions"].items()]
    sums = {system["run_file"]: system["run_sha256"] for system in systems.values()}
    sums["judgements, as sorted TREC lines"] = content["qrels_sha256"]
    rows = [[escape(name), f"`{checksum}`"] for name, checksum in sums.items() if checksum]
    return [
        "## How this was made",
        code_block(content["command"]),
        f"All tests and intervals use the seed {content['seed']}. The machine has"
        f" {counted(hardware['cores'], 'core')} ({escape(hardware['cpu'])}) and"
        f" {escape(listed(hardware['gpus'])) or 'no GPU'}. Versions: {escape(listed(versions))}.",
        *(
            f"{escape(name)}: {_single_values({**system['settings'], **system['record']})}."
            for name, system in systems.items()
        ),
        *([table(["file or data", "SHA-256"], rows, numbers_from=9)] if rows else []),
    ]


def _single_values(facts: Mapping[str, Any]) -> str:
    values = {name: v for name, v in facts.items() if isinstance(v, str | int | float)}
    words = [f"{name.replace('_', ' ')} {value}" for name, value in values.items()]
    return escape(", ".join(words) or "default settings")
