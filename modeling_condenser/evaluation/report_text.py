"""A report as Markdown. Each table says below it how its figures were compared."""

from collections.abc import Iterable, Mapping
from typing import Any

from modeling_condenser.hub.markdown import (
    code_block,
    counted,
    escape,
    listed,
    p_in_words,
    shorten,
    table,
)
from modeling_condenser.measures.significance import ALPHA, N_RESAMPLES

_MARKS = (
    f"▲ and ▼ mark a difference with p < {ALPHA} after the correction; ○ means that no difference"
    " was shown."
)
_TEST = f"a two-sided paired randomisation test ({N_RESAMPLES:,} resamples)"


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
    for system, extremes in content["extremes"].items():
        for name, queries in extremes.items():
            if queries:
                heading = f"## Greatest {name} of {escape(system)} in {main}"
                sections += [heading, _queries(queries)]
    if "recall" in pictures:
        sections += ["## Recall by depth", f"![Recall by depth]({pictures['recall']})"]
    costs = {name: system["cost"] for name, system in content["systems"].items()}
    if any(costs.values()):
        sections += _costs({name: cost for name, cost in costs.items() if cost})
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
    n_tests = sum(
        figures["against_baseline"] is not None for row in rows for figures in row.values()
    )
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


def _queries(queries: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        [escape(q["id"]), shorten(q["query"]), f"{q['value']:.4f}", f"{q['difference']:+.4f}"]
        for q in queries
    ]
    return table(["id", "query", "value", "difference from baseline"], rows, numbers_from=2)


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
    sums |= {
        "queries, judgements and answers": content["judgements_sha256"],
        "judgements, as sorted TREC lines": content["qrels_sha256"],
    }
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
