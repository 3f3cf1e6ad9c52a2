"""Retrieval's findings as Markdown: sentences and tables of several systems on one collection.

Every table says below itself how its figures were compared, and calls untested what was not tested.
"""

from collections.abc import Mapping, Sequence

from modeling_condenser.measures.breakdown import Breakdown, Group
from modeling_condenser.measures.contrasts import ALPHA, N_RESAMPLES, Contrast, QueryDifference
from modeling_condenser.repository.markdown import counted, escape, p_in_words, shorten, table

from .findings import RetrievalFindings

_HIGHER, _LOWER, _UNDECIDED = "▲", "▼", "○"
_MARKS = (
    f"{_HIGHER} and {_LOWER} mark a difference with p < {ALPHA} after the correction;"
    f" {_UNDECIDED} stands where none was shown."
)
_TEST = f"a two-sided paired randomisation test over queries ({N_RESAMPLES:,} resamples)"


def render_retrieval(found: RetrievalFindings, pictures: Mapping[str, str]) -> list[str]:
    """The report's sections on retrieval, beginning with its title.

    Args:
        found: from `analyse_retrieval`.
        pictures: name ("means", "differences", "recall", "answer type", …) -> file.
    """
    return [
        _opening(found),
        _results(found, pictures),
        *_pairs(found),
        *_wins_and_losses(found, pictures),
        *(_breakdown(breakdown, pictures) for breakdown in found.breakdowns),
        *_recall(pictures),
    ]


def _opening(found: RetrievalFindings) -> str:
    results, main = found.results, found.main_measure
    n_queries = len(found.query_ids)
    name = escape(results.collection.name)
    lines = [
        f"# {name}, {escape(results.split)}: {counted(len(results.systems), 'system')} on"
        f" {counted(n_queries, 'query', 'queries')}",
        f"The main measure is {escape(main)}.",
    ]
    unanswerable = len(results.systems[0].evaluation.unanswerable)
    if unanswerable:
        lines[-1] += (
            f" {counted(unanswerable, 'judged query', 'judged queries')} without any relevant"
            f" passage {'was' if unanswerable == 1 else 'were'} left out, since no system can"
            " score there."
        )
    if results.baseline is None:
        only = results.systems[0]
        estimate = found.estimates[only.name][main]
        interval = f" ({_interval(estimate.interval)})" if estimate.interval else ""
        lines[-1] += (
            f" {escape(only.name)} scores {estimate.value:.4f}{interval}. It is the only system,"
            " so nothing is compared."
        )
        return "\n\n".join(lines)
    lines[-1] += f" The baseline is {escape(results.baseline)}."
    sentences = [_verdict(c) for c in found.contrasts if c.measure == main]
    return "\n\n".join([*lines, *sentences])


def _verdict(c: Contrast) -> str:
    """One system in the main measure, in words."""
    side = "above" if c.difference > 0 else "below"
    distance = f"{abs(c.difference):.4f} {side} {escape(c.baseline)}"
    if c.difference == 0:
        distance = f"as much as {escape(c.baseline)}"
    if c.interval is None:
        test = "with a single query, nothing can be tested"
    else:
        outcome = "the difference is significant" if c.is_significant else "no difference was shown"
        test = f"{outcome} ({_interval(c.interval)} of the difference, {p_in_words(c.p_adjusted)})"
    return (
        f"{escape(c.system)} scores {c.mean_system:.4f} in {escape(c.measure)}, {distance}: {test}."
        f" It is better on {counted(c.better, 'query', 'queries')}, equal on {c.equal:,} and worse"
        f" on {c.worse:,}."
    )


def _interval(interval: tuple[float, float]) -> str:
    return f"95 % interval {interval[0]:+.4f} to {interval[1]:+.4f}"


def _mark(c: Contrast) -> str:
    """The sign of a comparison and a blank; nothing where there was no test."""
    if c.p_adjusted is None:
        return ""
    if not c.is_significant:
        return f"{_UNDECIDED} "
    return f"{_HIGHER} " if c.difference > 0 else f"{_LOWER} "


def _cell(c: Contrast) -> str:
    """A mean with its answer to whether it differs from the baseline's."""
    return f"{c.mean_system:.4f} {_mark(c)}({c.difference:+.4f}, {p_in_words(c.p_adjusted)})"


def _how_tested(contrasts: Sequence[Contrast], baseline: str) -> str:
    tested = sum(c.p_adjusted is not None for c in contrasts)
    if not tested:
        return "No cell was tested: each rests on a single query."
    return (
        f"A cell holds the mean and, in brackets, the difference from {escape(baseline)} and the"
        f" p-value of {_TEST}, after Holm's correction over the"
        f" {counted(tested, 'comparison')} of this table. {_MARKS}"
    )


def _results(found: RetrievalFindings, pictures: Mapping[str, str]) -> str:
    rows = []
    for system in found.results.systems:
        against = found.contrasts_of(system.name)
        means = found.estimates[system.name]
        cells = [
            _cell(against[m]) if m in against else f"{means[m].value:.4f}" for m in found.measures
        ]
        rows.append([escape(system.name), *cells])
    header = ["system", *(escape(measure) for measure in found.measures)]
    parts = ["## Results", table(header, rows)]
    if found.results.baseline is not None:
        parts.append(_how_tested(found.contrasts, found.results.baseline))
    if "means" in pictures:
        parts += [
            f"![Means of every system and measure]({pictures['means']})",
            "Bars are means, and lines their 95 % bootstrap intervals over queries. The tests are"
            " paired, so whether two bars differ is for the table to say and not for the overlap"
            " of the lines.",
        ]
    return "\n\n".join(parts)


def _pairs(found: RetrievalFindings) -> list[str]:
    """Each two systems, by both tests: the thesis's Table 4.3."""
    if not found.pairs:
        return []
    main = escape(found.main_measure)
    thesis = (
        "the thesis's paired t-test, over the means of ten random groups of queries (section 4.4)"
    )
    if len(found.pairs) == 1:
        [test] = found.group_tests
        if test.p_value is None:
            return [f"By {thesis}, nothing can be said: there are too few queries for ten groups."]
        differ = "differ" if test.p_value < ALPHA else "do not differ"
        return [f"By {thesis}, the two systems {differ} in {main} ({p_in_words(test.p_value)})."]
    names = [system.name for system in found.results.systems]
    cells = {(a, b): "–" if a == b else "" for a in names for b in names}
    for c, test in zip(found.pairs, found.group_tests, strict=True):
        winner = escape(c.system if c.difference > 0 else c.baseline)
        cells[c.baseline, c.system] = _outcome(c.p_adjusted, winner)
        cells[c.system, c.baseline] = _outcome(test.p_adjusted, winner)
    rows = [[escape(a), *(cells[a, b] for b in names)] for a in names]
    parts = [
        f"## Pairs of systems in {main}",
        table(["", *(escape(name) for name in names)], rows),
        f"A cell names the system with the higher mean where the two differ with p < {ALPHA}, and"
        f" says N where no difference was shown. Above the diagonal by {_TEST}, below it by"
        f" {thesis}; each after Holm's correction over the {len(found.pairs)} pairs.",
    ]
    if found.others:
        parts += _other_pairs(found)
    return ["\n\n".join(parts)]


def _outcome(p_adjusted: float | None, winner: str) -> str:
    if p_adjusted is None:
        return "not tested"
    return winner if p_adjusted < ALPHA else "N"


def _other_pairs(found: RetrievalFindings) -> list[str]:
    measures = [measure for measure in found.measures if measure != found.main_measure]
    by_pair: dict[tuple[str, str], dict[str, Contrast]] = {}
    for c in found.others:
        by_pair.setdefault((c.system, c.baseline), {})[c.measure] = c
    rows = [
        [
            f"{escape(system)} minus {escape(other)}",
            *(
                f"{c[m].difference:+.4f} {_mark(c[m])}({p_in_words(c[m].p_adjusted)})"
                for m in measures
            ),
        ]
        for (system, other), c in by_pair.items()
    ]
    return [
        "In the other measures, systems beside the baseline differ as follows.",
        table(["pair", *(escape(measure) for measure in measures)], rows),
        "A cell holds the difference and the p-value of the same randomisation test, after Holm's"
        f" correction over the {counted(len(found.others), 'comparison')} of this table. {_MARKS}",
    ]


def _wins_and_losses(found: RetrievalFindings, pictures: Mapping[str, str]) -> list[str]:
    baseline, main = found.results.baseline, found.main_measure
    if baseline is None:
        return []
    rows = [
        [
            escape(system),
            *(
                f"{c.better:,} / {c.equal:,} / {c.worse:,}"
                for c in found.contrasts_of(system).values()
            ),
        ]
        for system in found.wins
    ]
    parts = [
        f"## Wins and losses against {escape(baseline)}",
        table(["better / equal / worse", *(escape(m) for m in found.measures)], rows),
        "A cell counts the queries on which the system's value is higher, the same and lower. The"
        " counts are of these queries; whether they speak for others, too, the tests above say.",
    ]
    if "differences" in pictures:
        parts.append(
            f"![Differences in {escape(main)} from {escape(baseline)}, query by"
            f" query]({pictures['differences']})"
        )
    for system in found.wins:
        for kind, queries in (("gains", found.wins[system]), ("loses", found.losses[system])):
            parts += _extremes(found, system, kind, queries)
    return ["\n\n".join(parts)]


def _extremes(
    found: RetrievalFindings, system: str, kind: str, queries: Sequence[QueryDifference]
) -> list[str]:
    main, baseline = escape(found.main_measure), escape(found.results.baseline or "")
    if not queries:
        return [f"{escape(system)} {kind} on no query in {main}."]
    texts = found.results.collection.queries
    rows = [
        [
            escape(d.query_id),
            shorten(texts[d.query_id]),
            f"{d.system:.4f}",
            f"{d.baseline:.4f}",
            f"{d.difference:+.4f}",
        ]
        for d in queries
    ]
    return [
        f"### Where {escape(system)} {kind} most",
        table(
            ["id", "query", escape(system), baseline, f"difference in {main}"], rows, numbers_from=2
        ),
    ]


def _breakdown(breakdown: Breakdown, pictures: Mapping[str, str]) -> str:
    by, measure = escape(breakdown.by), escape(breakdown.measure)
    parts = [f"## {measure} by {by}"]
    if not breakdown.groups:
        return "\n\n".join([*parts, f"No query could be told by its {by}."])
    systems = list(breakdown.groups[0].means)
    rows = [
        [escape(group.name), f"{group.n_queries:,}", *(_group_cell(group, s) for s in systems)]
        for group in breakdown.groups
    ]
    header = [by, "queries", *(escape(system) for system in systems)]
    parts.append(table(header, rows))
    if breakdown.baseline is not None:
        contrasts = [c for group in breakdown.groups for c in group.contrasts.values()]
        parts.append(_how_tested(contrasts, breakdown.baseline))
        if any(c.p_adjusted is None for c in contrasts):
            parts[-1] += " A group of a single query is not tested."
    if breakdown.by == "answer type":
        parts.append(
            "The type of the answer that a query asks for is told by rules, which agree with about"
            " nine in ten labels of Li and Roth's questions; the classes are theirs, as in the"
            " thesis (section 4.4.2)."
        )
        if breakdown.n_left_out:
            parts[-1] += (
                f" {counted(breakdown.n_left_out, 'query', 'queries')}, such as yes/no questions"
                " and bare phrases, could not be told and are left out."
            )
    if breakdown.by in pictures:
        parts.append(f"![{measure} by {by}]({pictures[breakdown.by]})")
    return "\n\n".join(parts)


def _group_cell(group: Group, system: str) -> str:
    if system in group.contrasts:
        return _cell(group.contrasts[system])
    return f"{group.means[system]:.4f}"


def _recall(pictures: Mapping[str, str]) -> list[str]:
    if "recall" not in pictures:
        return []
    return [
        "## Recall by depth\n\n"
        f"![Recall over the number of passages]({pictures['recall']})\n\n"
        "The points are the cut-offs that were measured; their tests are in the results above."
    ]
