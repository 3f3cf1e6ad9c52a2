"""A report in a few lines for the screen: each figure, and whether it differs from the baseline."""

from collections.abc import Mapping, Sequence

from modeling_condenser.repository.markdown import counted, p_in_words

from .findings import RetrievalFindings, SimilarityFindings
from .report_text import Report

Cells = Mapping[tuple[str, str], tuple[float, float | None]]
"""(system, measure) -> difference from the baseline, and its corrected p-value."""


def summarise(report: Report) -> str:
    """The tables of a report as plain text: a line a system and measure."""
    parts = [] if report.retrieval is None else [_of_retrieval(report.retrieval)]
    return "\n\n".join([*parts, *map(_of_similarity, report.similarity)])


def _of_retrieval(found: RetrievalFindings) -> str:
    results = found.results
    values = {system.name: system.evaluation.means for system in results.systems}
    cells = {(c.system, c.measure): (c.difference, c.p_adjusted) for c in found.contrasts}
    title = f"{results.collection.name}, {results.split}: " + counted(
        len(found.query_ids), "query", "queries"
    )
    return _table(title, values, cells, found.measures, baseline=results.baseline)


def _of_similarity(found: SimilarityFindings) -> str:
    results = found.results
    values = {system.system: system.values for system in results.systems}
    cells = {(c.system, c.measure): (c.difference, c.p_adjusted) for c in found.contrasts}
    title = f"{results.task}, {results.split}: {counted(results.n_items, 'item')}"
    measures = list(next(iter(values.values())))
    return _table(title, values, cells, measures, baseline=results.baseline)


def _table(
    title: str,
    values: Mapping[str, Mapping[str, float]],
    cells: Cells,
    measures: Sequence[str],
    *,
    baseline: str | None,
) -> str:
    width = max(map(len, measures))
    lines = [title]
    for system, by_measure in values.items():
        lines.append(f"{system}:")
        for measure in measures:
            line = f"  {measure:<{width}}  {by_measure[measure]:.4f}"
            if (system, measure) in cells:
                difference, p = cells[system, measure]
                line += f"   {difference:+.4f} from {baseline}, {p_in_words(p)}"
            lines.append(line)
    if cells:
        lines.append(f"p is two-sided, by Holm's correction over the {len(cells)} tests.")
    return "\n".join(lines)
