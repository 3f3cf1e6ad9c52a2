"""A report as Markdown, and its summary for the screen.

Each table says below it how its figures were compared.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modeling_condenser.measures.significance import ALPHA, N_RESAMPLES, Comparison
from modeling_condenser.repository.markdown import (
    code_block,
    counted,
    escape,
    listed,
    p_in_words,
    shorten,
    table,
)

from .system_comparison import Breakdown, GroupKey, Report

_MARKS = (
    f"▲ and ▼ mark a difference with p < {ALPHA} after the correction; ○ means that no difference"
    " was shown."
)
_TEST = f"a two-sided paired randomisation test ({N_RESAMPLES:,} resamples)"
_T_TEST = "the thesis's paired t-test over the means of ten random groups of queries (section 4.4)"


def render_report(report: Report) -> str:
    """The whole report, ending with a line break."""
    sections = [_opening(report), _results(report)]
    if report.baseline is not None and report.values(report.main_measure):
        sections += [_pairs(report), _wins_and_losses(report)]
    sections += [_breakdown(report, breakdown) for breakdown in report.breakdowns]
    if "recall" in report.pictures:
        sections.append(f"## Recall by depth\n\n![Recall by depth]({report.pictures['recall']})")
    if report.costs:
        sections.append(_costs(report))
    sections.append(_provenance(report))
    return "\n\n".join(sections) + "\n"


def summarise(report: Report) -> str:
    """The results for the screen: one line for each system and measure."""
    width = max(map(len, report.measures))
    lines = [_title(report)]
    for result in report.results:
        lines.append(f"{result.system}:")
        for measure, mean in result.evaluation.means.items():
            line = f"  {measure:<{width}}  {mean:.4f}"
            if c := report.comparisons.get((result.system, measure)):
                line += f"   {c.difference:+.4f} from {report.baseline}, {p_in_words(c.p_adjusted)}"
            lines.append(line)
    if report.comparisons:
        lines.append(f"p is two-sided, by Holm's correction over {_n_tests(report.comparisons)}.")
    return "\n".join(lines)


def _title(report: Report) -> str:
    first = report.results[0]
    items = counted(report.n_items, *(("query", "queries") if report.queries else ("item",)))
    return f"{first.collection}, {first.split}: {counted(len(report.results), 'system')} on {items}"


def _n_tests(comparisons: Mapping[Any, Comparison]) -> str:
    return counted(len(comparisons), "comparison")


def _opening(report: Report) -> str:
    main = report.main_measure
    lines = [f"# {escape(_title(report))}", f"The main measure is {escape(main)}."]
    unanswerable = len(report.results[0].evaluation.unanswerable)
    if unanswerable:
        lines[-1] += f" {counted(unanswerable, 'query', 'queries')} without relevant passages"
        lines[-1] += " or answers were left out."
    if report.baseline is None:
        return "\n\n".join([*lines, "It is the only system, so nothing is compared."])
    lines[-1] += f" The baseline is {escape(report.baseline)}."
    for system in report.systems:
        if c := report.comparisons.get((system, main)):
            lines.append(_verdict(report, system, c))
    return "\n\n".join(lines)


def _verdict(report: Report, system: str, c: Comparison) -> str:
    """One system in the main measure, as a sentence."""
    outcome = "The difference is significant" if c.is_significant else "No difference was shown"
    counts = ""
    if report.queries:
        counts = (
            f" It is better on {counted(c.better, 'query', 'queries')}, equal on {c.equal:,} and"
            f" worse on {c.worse:,}."
        )
    return (
        f"{escape(system)} scores {c.mean_system:.4f} in {escape(report.main_measure)},"
        f" {c.difference:+.4f} from {escape(report.baseline)}. {outcome} (95 % interval"
        f" {c.interval[0]:+.4f} to {c.interval[1]:+.4f}, {p_in_words(c.p_adjusted)}).{counts}"
    )


def _mark(c: Comparison) -> str:
    if not c.is_significant:
        return "○"
    return "▲" if c.difference > 0 else "▼"


def _cell(mean: float, c: Comparison | None) -> str:
    """A mean, and whether it differs from the baseline's."""
    if c is None:
        return f"{mean:.4f}"
    return f"{mean:.4f} {_mark(c)} ({c.difference:+.4f}, {p_in_words(c.p_adjusted)})"


def _how_tested(report: Report, comparisons: Mapping[Any, Comparison]) -> str:
    return (
        f"In brackets: the difference from {escape(report.baseline)} and the p-value of {_TEST},"
        f" after Holm's correction over the {_n_tests(comparisons)} of this table. {_MARKS}"
    )


def _results(report: Report) -> str:
    rows = [
        [
            escape(result.system),
            *(
                _cell(mean, report.comparisons.get((result.system, measure)))
                for measure, mean in result.evaluation.means.items()
            ),
        ]
        for result in report.results
    ]
    parts = ["## Results", table(["system", *map(escape, report.measures)], rows)]
    if report.comparisons:
        parts.append(_how_tested(report, report.comparisons))
        tested = {measure for _, measure in report.comparisons}
        untested = [escape(measure) for measure in report.measures if measure not in tested]
        if untested:
            parts[-1] += f" {listed(untested)} was not tested, and may differ by chance."
    if "means" in report.pictures:
        parts += [
            f"![Means of each system in each measure]({report.pictures['means']})",
            "Lines are 95 % bootstrap intervals. The tests are paired, so the table and not the"
            " overlap of the lines shows whether two systems differ.",
        ]
    return "\n\n".join(parts)


def _pairs(report: Report) -> str:
    """Each two systems by both tests, as in the thesis's Table 4.3."""
    measures = list(dict.fromkeys(measure for _, _, measure in report.pairs))
    rows = []
    for system, other in dict.fromkeys((system, other) for system, other, _ in report.pairs):
        cells = [
            f"{c.difference:+.4f} {_mark(c)} ({p_in_words(c.p_adjusted)})"
            for c in (report.pairs[system, other, measure] for measure in measures)
        ]
        t_test = p_in_words(report.group_p_values.get((system, other)))
        rows.append([f"{escape(system)} minus {escape(other)}", *cells, t_test])
    return "\n\n".join(
        [
            "## Pairs of systems",
            table(
                ["pair", *map(escape, measures), f"t-test in {escape(report.main_measure)}"], rows
            ),
            f"A cell contains the difference and the p-value of {_TEST}, after Holm's correction"
            f" over the {_n_tests(report.pairs)} of this table. {_MARKS} The last column has the"
            f" p-value of {_T_TEST}, after Holm's correction over the pairs.",
        ]
    )


def _wins_and_losses(report: Report) -> str:
    measures = [measure for measure in report.measures if report.values(measure)]
    rows = [
        [
            escape(system),
            *(
                f"{c.better:,} / {c.equal:,} / {c.worse:,}"
                for c in (report.comparisons[system, measure] for measure in measures)
            ),
        ]
        for system in report.wins
    ]
    parts = [
        f"## Wins and losses against {escape(report.baseline)}",
        table(["better / equal / worse", *map(escape, measures)], rows),
    ]
    for system in report.wins if report.queries else ():
        parts += _extremes(report, system, "gains", report.wins[system])
        parts += _extremes(report, system, "loses", report.losses[system])
    return "\n\n".join(parts)


def _extremes(
    report: Report, system: str, verb: str, differences: Sequence[tuple[str, float]]
) -> list[str]:
    main = report.main_measure
    if not differences:
        return [f"{escape(system)} {verb} on no query in {escape(main)}."]
    value = report.values(main)[system]
    rows = [
        [escape(q), shorten(report.queries[q]), f"{value[q]:.4f}", f"{difference:+.4f}"]
        for q, difference in differences
    ]
    header = ["id", "query", escape(main), "difference"]
    return [f"### Where {escape(system)} {verb} most", table(header, rows, numbers_from=2)]


def _breakdown(report: Report, breakdown: Breakdown) -> str:
    rows = [
        [
            escape(group),
            f"{size:,}",
            *(
                _cell(breakdown.means[key], breakdown.comparisons.get(key))
                for key in (GroupKey(group, system) for system in report.systems)
            ),
        ]
        for group, size in breakdown.sizes.items()
    ]
    parts = [
        f"## {escape(report.main_measure)} by {breakdown.by}",
        table([breakdown.by, "queries", *map(escape, report.systems)], rows),
    ]
    if breakdown.comparisons:
        parts.append(_how_tested(report, breakdown.comparisons))
    if breakdown.by == "answer type":
        parts.append(
            "Rules find the type of the answer that a query asks for. They agree with about nine"
            " in ten of Li and Roth's labels; the classes are theirs, as in the thesis (section"
            f" 4.4.2). {counted(breakdown.n_left_out, 'query', 'queries')} without a type, such as"
            " yes/no questions and bare phrases, are left out."
        )
    parts.append(f"![By {breakdown.by}]({report.pictures[breakdown.by]})")
    return "\n\n".join(parts)


def _costs(report: Report) -> str:
    rows = []
    for system, cost in report.costs.items():
        low, high = (f"{seconds * 1e3:.1f}" for seconds in cost.quartiles)
        threads = f", {counted(cost.n_threads, 'thread')}" if cost.device == "cpu" else ""
        rows.append(
            [
                escape(system),
                f"{escape(cost.hardware)}{threads}",
                f"{cost.n_parameters / 1e6:,.1f} M ({cost.dtype})",
                f"{cost.seconds_per_step * 1e3:.1f}",
                f"{low} to {high}",
                f"{cost.texts_per_second:,.0f}",
                f"{cost.peak_memory_bytes / 1e6:,.0f} MB",
            ]
        )
    one = next(iter(report.costs.values()))
    header = ["system", "hardware", "parameters", "ms a step", "quartiles", "texts a second"]
    return "\n\n".join(
        [
            "## Time and memory of encoding",
            table([*header, "peak memory"], rows, numbers_from=2),
            f"A step encodes {one.batch_size} texts of {one.length} random tokens, as in the"
            f" thesis's Figure 4.2. The time is the median of {one.n_steps} steps. Systems whose"
            " quartiles overlap cannot be told apart. The memory is that of weights and step in a"
            " new process, without its libraries. Times are those of this hardware and its load.",
            f"![{report.main_measure} by time and memory]({report.pictures['costs']})",
        ]
    )


def _provenance(report: Report) -> str:
    parts = ["## How this was made"]
    if report.command:
        parts += ["The command was:", code_block(report.command)]
    hardware = report.machine.get("hardware", {})
    gpus = [escape(gpu) for gpu in hardware.get("gpus", [])]
    versions = [f"{name} {v}" for name, v in report.machine.get("versions", {}).items()]
    parts.append(
        f"All tests and intervals use the seed {report.seed}. The machine has"
        f" {counted(hardware.get('cores', 0), 'core')} ({escape(hardware.get('cpu', 'unknown'))})"
        f" and {listed(gpus) or 'no GPU'}. Versions: {escape(listed(versions))}."
    )
    settings = {r.system: _facts({**r.settings, **r.record}) for r in report.results}
    lines = [f"- {escape(name)}: {facts}." for name, facts in settings.items() if facts]
    if lines:
        parts += ["Settings of the systems:", "\n".join(lines)]
    files = [[escape(s), f"`{file}`", f"`{sha}`"] for s, (file, sha) in report.run_files.items()]
    if files:
        parts.append(table(["system", "TREC run file", "SHA-256"], files, numbers_from=9))
    sums = [[escape(name), f"`{sha}`"] for name, sha in report.judgements.items()]
    if sums:
        parts.append(table(["judged by", "SHA-256"], sums, numbers_from=9))
    per_query = ", and `per_query.tsv` all values of all queries" if report.queries else ""
    parts.append(f"`report.json` contains all figures{per_query}.")
    return "\n\n".join(parts)


def _facts(facts: Mapping[str, Any]) -> str:
    """The entries of settings or records that are single values."""
    return ", ".join(
        f"{escape(name.replace('_', ' '))} {escape(repr(value) if value == '' else value)}"
        for name, value in facts.items()
        if isinstance(value, str | int | float | Path)
    )
