"""A report as Markdown. Each table says below it how its figures were compared."""

from collections.abc import Mapping, Sequence
from typing import Any

from modeling_condenser.measures.significance import ALPHA, N_RESAMPLES
from modeling_condenser.repository.markdown import (
    code_block,
    counted,
    escape,
    listed,
    p_in_words,
    shorten,
    table,
)

_MARKS = (
    f"▲ and ▼ mark a difference with p < {ALPHA} after the correction; ○ means that no difference"
    " was shown."
)
_TEST = f"a two-sided paired randomisation test ({N_RESAMPLES:,} resamples)"
_T_TEST = "the thesis's paired t-test over the means of ten random groups of queries (section 4.4)"


def render_report(content: Mapping[str, Any]) -> str:
    """Write the content of report.json as Markdown."""
    systems, pictures = content["systems"], content["pictures"]
    costs = {name: system["cost"] for name, system in systems.items() if system["cost"]}
    sections = [*_opening(content), *_results(content)]
    if content["pairs"]:
        sections += _pairs(content)
    for name in content["wins"] if content["breakdowns"] else ():
        sections += _extremes(content, name, "gains", content["wins"][name])
        sections += _extremes(content, name, "loses", content["losses"][name])
    for breakdown in content["breakdowns"]:
        sections += _breakdown(content, breakdown)
    if "recall" in pictures:
        sections += ["## Recall by depth", f"![Recall by depth]({pictures['recall']})"]
    if costs:
        sections += _costs(costs)
    return "\n\n".join([*sections, *_provenance(content)]) + "\n"


def _opening(content: Mapping[str, Any]) -> list[str]:
    text = f"The main measure is {escape(content['measures'][0])}."
    if len(content["systems"]) > 1:
        text += f" The baseline is {escape(content['baseline'])}."
    if content["unanswerable"]:
        text += f" {counted(len(content['unanswerable']), 'query', 'queries')} without relevant"
        text += " passages or answers were left out."
    return [f"# {escape(content['title'])}", text]


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


def _how_tested(content: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> str:
    n_tests = sum(cell["against_baseline"] is not None for cell in cells)
    if not n_tests:
        return "There is only one system, so nothing is compared."
    return (
        f"In brackets: the difference from {escape(content['baseline'])} and the p-value of"
        f" {_TEST}, after Holm's correction over the {counted(n_tests, 'comparison')} of this"
        f" table. {_MARKS}"
    )


def _results(content: Mapping[str, Any]) -> list[str]:
    systems, measures = content["systems"], content["measures"]
    rows = [
        [escape(name), *(_cell(system["measures"][m]) for m in measures)]
        for name, system in systems.items()
    ]
    cells = [figures for system in systems.values() for figures in system["measures"].values()]
    text = _how_tested(content, cells)
    last = list(systems.values())[-1]["measures"]
    untested = [escape(m) for m in measures if last[m]["against_baseline"] is None]
    if untested and len(systems) > 1:
        text += f" {listed(untested)} was not tested, and may differ by chance."
    parts = ["## Results", table(["system", *map(escape, measures)], rows), text]
    if "means" in content["pictures"]:
        parts += [
            f"![Means of each system in each measure]({content['pictures']['means']})",
            "Lines are 95 % bootstrap intervals. The tests are paired, so the table and not the"
            " overlap of the lines shows whether two systems differ.",
        ]
    return parts


def _pairs(content: Mapping[str, Any]) -> list[str]:
    """Each two systems by both tests, as in the thesis's Table 4.3."""
    main, rows = content["measures"][0], []
    for pair in content["pairs"]:
        for measure, c in pair["measures"].items():
            low_high = "{:+.4f} to {:+.4f}".format(*c["interval"]) if c["interval"] else ""
            rows.append(
                [
                    f"{escape(pair['system'])} minus {escape(pair['other'])}",
                    escape(measure),
                    f"{c['difference']:+.4f} {_mark(c)}",
                    low_high,
                    p_in_words(c["p_adjusted"]),
                    f"{c['better']:,} / {c['equal']:,} / {c['worse']:,}",
                    p_in_words(pair["t_test"]) if measure == main else "",
                ]
            )
    header = ["pair", "measure", "difference", "95 % interval", "p", "better / equal / worse"]
    return [
        "## Pairs of systems",
        table([*header, "t-test"], rows, numbers_from=2),
        f"p is of {_TEST}, after Holm's correction over the {counted(len(rows), 'comparison')} of"
        f" this table. {_MARKS} The t-test is {_T_TEST}, in the main measure, after Holm's"
        " correction over the pairs.",
    ]


def _extremes(
    content: Mapping[str, Any], name: str, verb: str, found: Sequence[Mapping[str, Any]]
) -> list[str]:
    main = escape(content["measures"][0])
    if not found:
        return [f"{escape(name)} {verb} on no query in {main}."]
    rows = [
        [escape(q["id"]), shorten(q["query"]), f"{q['value']:.4f}", f"{q['difference']:+.4f}"]
        for q in found
    ]
    header = ["id", "query", main, f"minus {escape(content['baseline'])}"]
    return [f"### Where {escape(name)} {verb} most", table(header, rows, numbers_from=2)]


def _breakdown(content: Mapping[str, Any], breakdown: Mapping[str, Any]) -> list[str]:
    by, groups = breakdown["by"], breakdown["groups"]
    rows = [
        [escape(name), f"{group['n_queries']:,}", *map(_cell, group["systems"].values())]
        for name, group in groups.items()
    ]
    cells = [figures for group in groups.values() for figures in group["systems"].values()]
    text = _how_tested(content, cells)
    if by == "answer type":
        text += (
            " Rules find the type of the answer that a query asks for; the types are those of Li"
            " and Roth, as in the thesis (section 4.4.2)."
            f" {counted(breakdown['n_left_out'], 'query', 'queries')} without a type, such as"
            " yes/no questions and bare phrases, are left out."
        )
    return [
        f"## {escape(content['measures'][0])} by {by}",
        table([by, "queries", *map(escape, content["systems"])], rows),
        text,
        f"![By {by}]({content['pictures'][by]})",
    ]


def _costs(costs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = []
    for name, cost in costs.items():
        low, high = (f"{seconds * 1e3:.1f}" for seconds in cost["quartiles"])
        threads = f", {counted(cost['n_threads'], 'thread')}" if cost["device"] == "cpu" else ""
        rows.append(
            [
                escape(name),
                f"{escape(cost['hardware'])}{threads}",
                f"{cost['n_parameters'] / 1e6:,.1f} M ({cost['dtype']})",
                f"{cost['seconds_per_step'] * 1e3:.1f}",
                f"{low} to {high}",
                f"{cost['batch_size'] / cost['seconds_per_step']:,.0f}",
                f"{cost['peak_memory_bytes'] / 1e6:,.0f} MB",
            ]
        )
    one = next(iter(costs.values()))
    header = ["system", "hardware", "parameters", "ms a step", "quartiles", "texts a second"]
    return [
        "## Time and memory of encoding",
        table([*header, "peak memory"], rows, numbers_from=2),
        f"A step encodes {one['batch_size']} texts of {one['length']} random tokens, as in the"
        f" thesis's Figure 4.2. The time is the median of {one['n_steps']} steps. Systems whose"
        " quartiles overlap cannot be told apart. The memory is that of weights and step in a new"
        " process, without its libraries. Times are those of this hardware and its load.",
    ]


def _provenance(content: Mapping[str, Any]) -> list[str]:
    hardware, systems = content["hardware"], content["systems"]
    versions = [f"{name} {version}" for name, version in content["versions"].items()]
    parts = [
        "## How this was made",
        "The command was:",
        code_block(content["command"]),
        f"All tests and intervals use the seed {content['seed']}. The machine has"
        f" {counted(hardware['cores'], 'core')} ({escape(hardware['cpu'])}) and"
        f" {escape(listed(hardware['gpus'])) or 'no GPU'}. Versions: {escape(listed(versions))}.",
    ]
    lines = [
        f"- {escape(name)}: {_single_values({**system['settings'], **system['record']})}"
        for name, system in systems.items()
    ]
    parts += ["Settings of the systems:", "\n".join(lines)]
    sums = {s["run_file"]: s["run_sha256"] for s in systems.values() if s["run_file"]}
    rows = [[escape(name), f"`{sha}`"] for name, sha in {**sums, **content["sha256"]}.items()]
    if rows:
        parts.append(table(["file or data", "SHA-256"], rows, numbers_from=9))
    return parts


def _single_values(facts: Mapping[str, Any]) -> str:
    values = {name: v for name, v in facts.items() if isinstance(v, str | int | float)}
    return ", ".join(
        f"{escape(name.replace('_', ' '))} {escape(v if v != '' else repr(v))}"
        for name, v in values.items()
    )
