"""Compare systems on one task, and write a report.

report.json      all figures, and what they were made from
report.md        the same as text, tables and pictures
report.html      the same as one file, with the pictures in it
per_query.tsv    one line for each query: id, text, and each system's value in each measure
*.png            means, groups of queries, recall by depth
"""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, count, product
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, Template
from markdown_it import MarkdownIt  # transformers needs typer, which needs rich, which needs this

from modeling_condenser.collection.collection import Collection, checksum_qrels
from modeling_condenser.files.atomic import checksum_file, read_json, write_json
from modeling_condenser.files.run_folder import describe_machine
from modeling_condenser.publishing import markdown
from modeling_condenser.publishing.markdown import counted, p_in_words

from .answer_types import group_queries
from .changed_queries import find_changed
from .measures import Evaluation, make_evaluation
from .plots import draw_report
from .significance import (
    ALPHA,
    MARKS,
    N_RESAMPLES,
    Comparison,
    compare_in_groups,
    correct,
    holm,
    mark,
)
from .system_results import SystemResult

_TEMPLATE = Path(__file__).with_name("report.md.jinja")
_WEB_PAGE = Path(__file__).with_name("web_page.html.jinja")

REPORT_FILE = "report.json"
_LEAST_QUERIES = 20  # of a group, whose mean would be chance otherwise

Systems = Mapping[str, Evaluation]
"""Name -> measures of the same queries; the first system is the baseline."""


@dataclass(frozen=True)
class Report:
    """The result of an evaluation; `print(report)` shows measures and differences.

    Attributes:
        folder: of the report's files.
        results: one for each system, the baseline first.
        content: all figures, as in report.json.
    """

    folder: Path
    results: Sequence[SystemResult]
    content: Mapping[str, Any]

    @property
    def file(self) -> Path:
        """The report as Markdown."""
        return self.folder / "report.md"

    @property
    def means(self) -> dict[str, dict[str, float]]:
        """System -> measure -> mean."""
        return {result.system: result.evaluation.means for result in self.results}

    @property
    def comparisons(self) -> dict[tuple[str, str], Comparison]:
        """(system, measure) -> comparison with the baseline, corrected together (Holm)."""
        return {
            (system, measure): Comparison(**figures["against_baseline"])
            for measure, by_system in self.content["results"].items()
            for system, figures in by_system.items()
            if figures["against_baseline"]
        }

    def to_pandas(self) -> pd.DataFrame:
        """A row for each system and measure: mean, bounds, and the difference with its p-value.

        `low` and `high` are the bounds of the 95 % interval of the mean; `difference` from the
        baseline and `p`, after Holm's correction, are not numbers for the baseline itself.
        """
        sizes, comparisons, rows = self.content["bytes_per_vector"], self.comparisons, {}
        for system, measure in product(self.means, self.content["results"]):
            figures = self.content["results"][measure][system]
            low, high = figures["interval"] or (None, None)
            row = {"mean": figures["mean"], "low": low, "high": high}
            if c := comparisons.get((system, measure)):
                row |= {"difference": c.difference, "p": c.p_adjusted}
            if sizes:
                row["bytes_per_vector"] = sizes.get(system)
            rows[system, measure] = row
        return pd.DataFrame([*rows.values()], pd.MultiIndex.from_tuples(rows))

    def _shown(self) -> pd.DataFrame:
        """The table of `to_pandas` as text, with marks."""
        table, comparisons = self.to_pandas(), self.comparisons
        shown = table[["mean"]].map("{:.4f}".format)
        if sizes := self.content["bytes_per_vector"]:
            shown["bytes per vector"] = [
                f"{sizes[s]:,.0f}" if s in sizes else "" for s, _ in table.index
            ]
        if comparisons:
            found = [comparisons.get(key) for key in table.index]
            heading = f"from {self.content['baseline']}"
            shown[heading] = [f"{c.difference:+.4f} {c.mark}" if c else "" for c in found]
            shown["p"] = [p_in_words(c.p_adjusted) if c else "" for c in found]
        return shown

    def __str__(self) -> str:
        lines = map(str.rstrip, self._shown().to_string().splitlines())
        return "\n".join([self.content["title"], "", *lines, "", *self._notes()]).rstrip()

    def _repr_html_(self) -> str:
        title, *notes = map(html.escape, (self.content["title"], *self._notes()))
        return "\n".join([f"<p>{title}</p>", self._shown().to_html(), *notes])

    def _notes(self) -> list[str]:
        """What the marks and the p-values of the table mean."""
        if not self.comparisons:
            return []
        n_tests = counted(len(self.comparisons), "comparison")
        notes = [f"p is two-sided, by Holm's correction over {n_tests}.", MARKS]
        n_items = self.results[0].evaluation.n_items
        if len(self.comparisons) * 2.0 ** (1 - n_items) >= ALPHA:  # the least possible p
            notes.append(
                f"With {counted(n_items, 'query', 'queries')} and {n_tests}, no difference can be "
                "significant: give more queries."
            )
        return notes


def write_report(
    folder: str | Path,
    results: Sequence[SystemResult],
    *,
    collection: Collection | None = None,
    command: str = "",
    seed: int = 0,
) -> Report:
    """Compare systems, and write the report's files.

    Args:
        folder: created if missing. If it has a report that another command made, the new one is
            written to its subfolder report-2, or the next that is free.
        results: of the same measures and queries. The first system is the baseline; groups of
            queries are compared in the first measure.
        collection: None for graded pairs and triplets.
        command: reproduces the report.
        seed: of all tests and intervals.
    """
    folder, first = _own_folder(Path(folder), command), results[0]
    systems = {result.system: result.evaluation for result in results}
    main = next(iter(first.evaluation.means))
    queries, changed, noun = dict[str, str](), {}, ("item", "items")
    if collection:
        queries = {q: collection.queries[q] for q in first.evaluation.per_query[main]}
        changed = {r.system: find_changed(r, first, main, collection) for r in results[1:]}
        noun = ("query", "queries")
    content = {
        "title": f"{first.collection}, {first.split}: {counted(len(results), 'system')} on"
        f" {counted(first.evaluation.n_items, *noun)}",
        "collection": first.collection,
        "split": first.split,
        "shared_queries": dict(collection.shared) if collection else {},
        "unanswerable": first.evaluation.unanswerable,
        "baseline": first.system,
        "systems": {result.system: _describe(result) for result in results},
        "bytes_per_vector": _compare_sizes(results),
        "results": _compare(systems, seed=seed),
        "pairs": _compare_pairs(systems, main, seed=seed),
        "breakdowns": _break_down(systems, main, queries, seed=seed),
        "changed_queries": changed,
        "qrels_sha256": checksum_qrels(collection.qrels) if collection else None,
        "command": command,
        "seed": seed,
        **describe_machine(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    content["pictures"] = draw_report(content, folder)
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["markdown"] = markdown.escape
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    report = Report(folder, results, content)
    text = template.render(content, md=markdown, mark=mark, marks=MARKS, n_resamples=N_RESAMPLES)
    report.file.write_text(text, encoding="utf-8")
    page = as_web_page(content["title"], text, folder, content["pictures"].values())
    report.file.with_suffix(".html").write_text(page, encoding="utf-8")
    write_json(folder / REPORT_FILE, content)
    if queries:
        table = pd.DataFrame({"text": pd.Series(queries).str.split().str.join(" ")})
        for system, evaluation in systems.items():
            table = table.join(pd.DataFrame(evaluation.per_query).add_prefix(f"{system} "))
        table.to_csv(folder / "per_query.tsv", sep="\t", index_label="query_id")
    return report


def as_web_page(title: str, text: str, folder: Path, pictures: Iterable[str]) -> str:
    """Turn Markdown into an HTML page in which its pictures, PNG files of `folder`, are embedded.

    HTML in the text is shown as text, so the page requests nothing.
    """
    for name in pictures:
        content = base64.b64encode((folder / name).read_bytes()).decode()
        text = text.replace(f"]({name})", f"](data:image/png;base64,{content})")
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    template = Template(_WEB_PAGE.read_text(encoding="utf-8"), autoescape=True)
    return template.render(title=title, body=body)


def _own_folder(folder: Path, command: str) -> Path:
    """The first of FOLDER, FOLDER/report-2, ... without the report of another command."""
    places = chain([folder], (folder / f"report-{number}" for number in count(2)))
    mine = {"command": command}
    return next(p for p in places if read_json(p / REPORT_FILE, mine)["command"] == command)


def _describe(result: SystemResult) -> dict[str, Any]:
    run = result.run_file
    return {
        "settings": dict(result.settings),
        "record": dict(result.record),
        "run_file": f"{run.parent.name}/{run.name}" if run else None,
        "run_sha256": checksum_file(run) if run else None,
        "cost": result.cost,
    }


def _compare_sizes(results: Sequence[SystemResult]) -> dict[str, float]:
    """System -> bytes for each vector; empty unless systems differ."""
    sizes = {result.system: result.record.get("bytes_per_vector") for result in results}
    known = {system: size for system, size in sizes.items() if size is not None}
    return known if len(set(known.values())) > 1 else {}


def _compare(systems: Systems, *, seed: int) -> dict[str, Any]:
    """Compare with the first system, corrected (Holm): measure -> system -> figures."""
    baseline, *others = systems
    figures: dict[str, Any] = {measure: {} for measure in systems[baseline].means}
    compared = correct(
        {
            (other, measure): systems[other].compare(measure, systems[baseline], seed=seed)
            for measure in figures
            for other in others
        }
    )
    for measure, by_system in figures.items():
        for system, evaluation in systems.items():
            comparison = compared.get((system, measure))
            by_system[system] = {
                "mean": evaluation.means[measure],
                "interval": evaluation.interval(measure, seed=seed),
                "against_baseline": comparison and comparison._asdict(),
            }
    return figures


def _break_down(
    systems: Systems, main: str, queries: Mapping[str, str], *, seed: int
) -> dict[str, Any]:
    """Compare systems in groups of queries, in one measure; corrected over each grouping."""
    found = {}
    for by, groups in group_queries(queries, at_least=_LEAST_QUERIES).items():
        parts = {}  # a group takes the place of a measure
        for name, evaluation in systems.items():
            values = evaluation.per_query[main]
            parts[name] = make_evaluation({g: {q: values[q] for q in groups[g]} for g in groups})
        figures = _compare(parts, seed=seed)
        found[by] = {g: {"n_queries": len(groups[g]), "systems": figures[g]} for g in groups}
    return found


def _compare_pairs(systems: Systems, main: str, *, seed: int) -> list[dict[str, Any]]:
    """Compare all pairs by two tests, each corrected (Holm)."""
    pairs = [(system, other) for other, system in combinations(systems, 2)]
    compared = correct({(a, b): systems[a].compare(main, systems[b], seed=seed) for a, b in pairs})
    values = {name: evaluation.per_query.get(main, {}) for name, evaluation in systems.items()}
    t_tests = [compare_in_groups(values[a], values[b], seed=seed) for a, b in pairs]
    adjusted = holm([p for p in t_tests if p is not None]) or t_tests  # all are None, or none is
    return [
        {"system": a, "other": b, **compared[a, b]._asdict(), "t_test": p}
        for (a, b), p in zip(pairs, adjusted, strict=True)
    ]
