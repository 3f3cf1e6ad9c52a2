"""A report as Markdown: findings in, sentences and tables out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modeling_condenser.measures.contrasts import ALPHA
from modeling_condenser.repository.markdown import (
    code_block,
    counted,
    escape,
    listed,
    p_in_words,
    table,
)

from .cost import EncodingCost
from .findings import RetrievalFindings, SimilarityContrast, SimilarityFindings
from .retrieval_text import render_retrieval

_DEVICES = {"cpu": "CPU", "cuda": "GPU"}


@dataclass(frozen=True)
class Report:
    """Everything that a report states.

    Attributes:
        retrieval: of one collection and split, if there is any.
        similarity: one for each task.
        costs: system -> its costs, one for each device.
        pictures: name ("means", "differences", "answer type", …) -> file beside the report.
        run_files: system -> place, as seen from the report, and SHA-256 of its TREC run.
        judgements: what was judged by: name -> SHA-256.
        seed: of all tests and intervals.
        command: that made the report.
        machine: from `describe_machine`.
    """

    retrieval: RetrievalFindings | None
    similarity: Sequence[SimilarityFindings]
    costs: Mapping[str, Sequence[EncodingCost]]
    pictures: Mapping[str, str]
    run_files: Mapping[str, tuple[str, str]]
    judgements: Mapping[str, str]
    seed: int
    command: str
    machine: Mapping[str, Any]


def render_report(report: Report) -> str:
    """The whole report, ending with a line break."""
    if report.retrieval is None:
        tasks = listed([escape(found.results.task) for found in report.similarity])
        sections = [f"# {tasks}"]
    else:
        sections = render_retrieval(report.retrieval, report.pictures)
    sections += [_similarity(found) for found in report.similarity]
    sections += _costs(report)
    sections.append(_provenance(report))
    return "\n\n".join(sections) + "\n"


def _similarity(found: SimilarityFindings) -> str:
    results = found.results
    by_cell = {(c.system, c.measure): c for c in found.contrasts}
    measures = list(results.systems[0].values)
    rows = [
        [
            escape(reported.system),
            *(
                _similarity_cell(reported.values[m], by_cell.get((reported.system, m)))
                for m in measures
            ),
        ]
        for reported in results.systems
    ]
    parts = [
        f"## {escape(results.task)}, {escape(results.split)}: {counted(results.n_items, 'item')}",
        table(["system", *(escape(measure) for measure in measures)], rows),
    ]
    tested = sum(c.p_adjusted is not None for c in found.contrasts)
    if tested:
        parts.append(
            f"A cell holds the value and, in brackets, the difference from"
            f" {escape(results.baseline or '')} and the p-value of a two-sided paired test over"
            f" items, after Holm's correction over the {counted(tested, 'comparison')} of this"
            f" table. A difference with p < {ALPHA} is called significant."
        )
    if tested < len(found.contrasts):
        parts.append(
            "Where a cell says so, no test was made, and the figures may differ by chance."
        )
    if not found.contrasts:
        parts.append("It is the only system, so nothing is compared.")
    return "\n\n".join(parts)


def _similarity_cell(value: float, c: SimilarityContrast | None) -> str:
    if math.isnan(value):
        return "undefined"  # a correlation with vectors that are all alike
    if c is None:
        return f"{value:.4f}"
    if c.p_adjusted is None:
        return f"{value:.4f} ({c.difference:+.4f}, not tested)"
    outcome = "significant" if c.p_adjusted < ALPHA else "not significant"
    return f"{value:.4f} ({c.difference:+.4f}, {p_in_words(c.p_adjusted)}, {outcome})"


def _costs(report: Report) -> list[str]:
    rows = [_cost_row(system, cost) for system, costs in report.costs.items() for cost in costs]
    if not rows:
        return []
    one = next(cost for costs in report.costs.values() for cost in costs)
    header = ["system", "device", "parameters", "ms a step", "quartiles", "texts a second"]
    header += ["peak memory", "whole process"]
    parts = [
        "## Time and memory of encoding",
        table(header, rows, numbers_from=2),
        f"A step encodes {one.batch_size} texts of {one.length} random tokens, as in the thesis's"
        f" Figure 4.2. The time is the median of {one.n_steps} steps, with the quartiles beside"
        " it: two systems whose quartiles overlap cannot be told apart. On a CPU, the peak memory"
        " is what weights and step added to the resident memory of a fresh process that had"
        " imported its libraries, and the whole process includes these. On a GPU it is what torch"
        " had allocated, without the CUDA context. Times hold for this hardware, these versions"
        " and whatever else the machine was doing.",
    ]
    if "costs" in report.pictures:
        parts.append(f"![Quality over time and memory]({report.pictures['costs']})")
    return ["\n\n".join(parts)]


def _cost_row(system: str, cost: EncodingCost) -> list[str]:
    low, high = (f"{seconds * 1e3:.1f}" for seconds in cost.quartiles)
    threads = f", {counted(cost.n_threads, 'thread')}" if cost.device == "cpu" else ""
    return [
        escape(system),
        f"{_DEVICES[cost.device]}: {escape(cost.hardware)}{threads}",
        f"{cost.n_parameters / 1e6:,.1f} M ({cost.dtype})",
        f"{cost.seconds_per_step * 1e3:.1f}",
        f"{low} to {high}",
        f"{cost.texts_per_second:,.0f}",
        _megabytes(cost.peak_memory_bytes),
        _megabytes(cost.process_memory_bytes),
    ]


def _megabytes(n_bytes: int | None) -> str:
    return "–" if n_bytes is None else f"{n_bytes / 1e6:,.0f} MB"


def _provenance(report: Report) -> str:
    parts = ["## How this was made"]
    if report.command:
        parts += ["The command was:", code_block(report.command)]
    parts.append(f"All tests and intervals use the seed {report.seed}. {_machine(report.machine)}")
    systems = _systems(report)
    if systems:
        parts.append(f"The systems and their settings:\n\n{systems}")
    if report.run_files:
        rows = [
            [escape(s), f"`{name}`", f"`{checksum}`"]
            for s, (name, checksum) in report.run_files.items()
        ]
        parts.append("The rankings lie in TREC run files:")
        parts.append(table(["system", "run file", "SHA-256"], rows, numbers_from=9))
    if report.judgements:
        rows = [[escape(name), f"`{checksum}`"] for name, checksum in report.judgements.items()]
        parts.append("Two reports with these checksums were judged alike:")
        parts.append(table(["judged by", "SHA-256"], rows, numbers_from=9))
    parts.append(
        "`report.json` holds all figures in full"
        + (
            ", and `per_query.tsv` every value of every query."
            if report.retrieval is not None
            else "."
        )
    )
    return "\n\n".join(parts)


def _machine(machine: Mapping[str, Any]) -> str:
    hardware = machine.get("hardware", {})
    gpus = [escape(gpu) for gpu in hardware.get("gpus", [])]
    versions = [f"{name} {version}" for name, version in machine.get("versions", {}).items()]
    return (
        f"The machine has {counted(hardware.get('cores', 0), 'core')}"
        f" ({escape(str(hardware.get('cpu', 'unknown')))}) and {listed(gpus) or 'no GPU'};"
        f" the versions are {escape(listed(versions))}."
    )


def _systems(report: Report) -> str:
    """A line for each system: its settings, and the plain entries of its record."""
    lines = {}
    for found in report.similarity:
        for reported in found.results.systems:
            lines[reported.system] = _facts(reported.settings)
    if report.retrieval is not None:
        for system in report.retrieval.results.systems:
            lines[system.name] = _facts({**system.settings, **system.record})
    return "\n".join(f"- {escape(name)}: {facts}." for name, facts in lines.items() if facts)


def _facts(facts: Mapping[str, Any]) -> str:
    plain = {k: v for k, v in facts.items() if isinstance(v, str | int | float | Path)}
    return ", ".join(
        f"{escape(name.replace('_', ' '))} {escape(repr(value) if value == '' else str(value))}"
        for name, value in plain.items()
    )
