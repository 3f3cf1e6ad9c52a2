"""The report of an evaluation: results in, a folder that answers what was found and how out.

report.json      all figures in full, and what they were made from
report.md        the same in sentences, tables and pictures
per_query.tsv    a line for each query: id, text, then each system's value in each measure
*.png            means, differences query by query, groups, recall, cost
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.fingerprint import checksum_qrels, fingerprint_judgements
from modeling_condenser.measures.contrasts import ALPHA, N_RESAMPLES, Contrast
from modeling_condenser.runs.run_folder import describe_machine
from modeling_condenser.runs.whole_files import write_json

from .cost import EncodingCost
from .findings import (
    ReportedSimilarity,
    ReportedSystem,
    RetrievalFindings,
    RetrievalResults,
    SimilarityFindings,
    SimilarityResults,
    analyse_retrieval,
    analyse_similarity,
)
from .plots import plot_breakdown, plot_costs, plot_differences, plot_means, plot_recall
from .report_text import Report, render_report

__all__ = [
    "ReportedSimilarity",
    "ReportedSystem",
    "RetrievalResults",
    "SimilarityResults",
    "write_report",
]

JSON_FILE, MARKDOWN_FILE, PER_QUERY_FILE = "report.json", "report.md", "per_query.tsv"
_PICTURES = {
    "means": "means.png",
    "differences": "differences.png",
    "answer type": "answer_types.png",
    "query length": "query_lengths.png",
    "recall": "recall.png",
    "costs": "costs.png",
}
_MEASURES_IN_PICTURE = 6


def write_report(
    folder: str | Path,
    retrieval: RetrievalResults | None = None,
    *,
    similarity: Sequence[SimilarityResults] = (),
    costs: Mapping[str, Sequence[EncodingCost]] | None = None,
    command: str = "",
    seed: int = 0,
    progress: bool = False,
) -> Report:
    """Test, draw and write everything about an evaluation.

    Args:
        folder: made if it is not there; files of an earlier report in it are replaced, others kept.
        retrieval: results on one collection and split.
        similarity: results on graded pairs or triplets.
        costs: system -> its encoding costs, one for each device that was measured.
        command: that made the results, so that they can be made again.
        seed: of all tests and intervals.
        progress: whether to show progress bars.

    Returns:
        What the report states.

    Raises:
        ValueError: no results, or results that do not fit together.
        FileNotFoundError: a run file that is not there.
    """
    folder = Path(folder)
    if retrieval is None and not similarity:
        raise ValueError("a report of no results, expected retrieval or similarity: give either")
    run_files = _run_files(retrieval, folder)  # before anything that takes long
    found = analyse_retrieval(retrieval, seed=seed, progress=progress) if retrieval else None
    tasks = [analyse_similarity(results, seed=seed) for results in similarity]
    folder.mkdir(parents=True, exist_ok=True)
    for name in (JSON_FILE, MARKDOWN_FILE, PER_QUERY_FILE, *_PICTURES.values()):
        (folder / name).unlink(missing_ok=True)
    report = Report(
        retrieval=found,
        similarity=tasks,
        costs=dict(costs or {}),
        pictures=_draw(folder, found, tasks, costs or {}),
        run_files=run_files,
        judgements=_judgements(retrieval.collection) if retrieval else {},
        seed=seed,
        command=command,
        machine=describe_machine(),
    )
    if found is not None:
        _write_text(folder / PER_QUERY_FILE, _per_query(found))
    _write_text(folder / MARKDOWN_FILE, render_report(report))
    write_json(folder / JSON_FILE, as_json(report))
    return report


def _run_files(retrieval: RetrievalResults | None, folder: Path) -> dict[str, tuple[str, str]]:
    """System -> place and SHA-256 of its run."""
    found = {}
    for system in retrieval.systems if retrieval else ():
        if system.run_file is not None:
            with system.run_file.open("rb") as stream:
                checksum = hashlib.file_digest(stream, "sha256").hexdigest()
            found[system.name] = (_place(system.run_file.resolve(), folder.resolve()), checksum)
    return found


def _place(file: Path, folder: Path) -> str:
    """Where a file lies as seen from the report, or its bare name if it lies elsewhere."""
    if file.is_relative_to(folder):
        return file.relative_to(folder).as_posix()
    if file.is_relative_to(folder.parent):
        return f"../{file.relative_to(folder.parent).as_posix()}"
    return file.name


def _judgements(collection: Collection) -> dict[str, str]:
    sums = {"queries, judgements and answers": fingerprint_judgements(collection)}
    if collection.qrels:
        sums["judgements, as sorted TREC lines"] = checksum_qrels(collection.qrels)
    return sums


def _per_query(found: RetrievalFindings) -> str:
    """The table of all values; blanks of any kind within a query become one blank."""
    systems = found.results.systems
    header = ["query_id", "text", *(f"{s.name} {m}" for s in systems for m in found.measures)]
    lines = ["\t".join(" ".join(name.split()) for name in header)]
    for query_id in found.query_ids:
        values = [
            repr(s.evaluation.per_query[m][query_id]) for s in systems for m in found.measures
        ]
        text = " ".join(found.results.collection.queries[query_id].split())
        lines.append("\t".join([query_id, text, *values]))
    return "\n".join(lines) + "\n"


def _write_text(file: Path, text: str) -> None:
    """Write a text whole or not at all."""
    unfinished = file.with_name(f".{file.name}.partial")
    with unfinished.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(file)


def _draw(
    folder: Path,
    found: RetrievalFindings | None,
    tasks: Sequence[SimilarityFindings],
    costs: Mapping[str, Sequence[EncodingCost]],
) -> dict[str, str]:
    """Draw what there is to draw: name -> file."""
    drawings: dict[str, Callable[..., Path]] = {}
    if found is not None:
        drawings |= _retrieval_drawings(found)
    quality, measure, baseline = _quality(found, tasks)
    if any(costs.get(system) for system in quality):
        shown = {system: costs.get(system, ()) for system in quality}
        drawings["costs"] = partial(plot_costs, shown, quality, measure=measure, baseline=baseline)
    for name, draw in drawings.items():
        draw(out=folder / _PICTURES[name])
    return {name: _PICTURES[name] for name in drawings}


def _retrieval_drawings(found: RetrievalFindings) -> dict[str, Callable[..., Path]]:
    baseline, main = found.results.baseline, found.main_measure
    measures = found.measures[:_MEASURES_IN_PICTURE]
    means = {s: {m: by[m] for m in measures} for s, by in found.estimates.items()}
    drawings: dict[str, Callable[..., Path]] = {
        "means": partial(plot_means, means, baseline=baseline)
    }
    if baseline is not None:
        values = found.values(main)
        differences = {
            system: [value - values[baseline][q] for q, value in by_query.items()]
            for system, by_query in values.items()
            if system != baseline
        }
        drawings["differences"] = partial(
            plot_differences, differences, measure=main, baseline=baseline
        )
    for breakdown in found.breakdowns:
        if breakdown.groups:
            drawings[breakdown.by] = partial(plot_breakdown, breakdown)
    for family in ("R", "Hit"):
        cutoffs = {
            m: int(k[1]) for m in found.measures if (k := re.fullmatch(rf"{family}@(\d+)", m))
        }
        if len(cutoffs) > 1 and "recall" not in drawings:
            recall = {
                s: {k: by[m].value for m, k in cutoffs.items()} for s, by in found.estimates.items()
            }
            drawings["recall"] = partial(plot_recall, recall, name=f"{family}@k", baseline=baseline)
    return drawings


def _quality(
    found: RetrievalFindings | None, tasks: Sequence[SimilarityFindings]
) -> tuple[dict[str, float], str, str | None]:
    """What the cost is weighed against: system -> value, the measure's name, the baseline."""
    if found is not None:
        main = found.main_measure
        quality = {system: by[main].value for system, by in found.estimates.items()}
        return quality, main, found.results.baseline
    results = tasks[0].results
    measure = next(iter(results.systems[0].values))
    values = {reported.system: reported.values[measure] for reported in results.systems}
    quality = {system: value for system, value in values.items() if math.isfinite(value)}
    return quality, measure, results.baseline


def as_json(report: Report) -> dict[str, Any]:
    """The content of report.json."""
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
        "judgements_sha256": dict(report.judgements),
        "pictures": dict(report.pictures),
        "costs": {s: [asdict(cost) for cost in costs] for s, costs in report.costs.items()},
        "retrieval": _retrieval_json(report) if report.retrieval else None,
        "similarity": [_similarity_json(found) for found in report.similarity],
    }


def _retrieval_json(report: Report) -> dict[str, Any]:
    found = report.retrieval
    assert found is not None
    results = found.results
    return {
        "collection": results.collection.name,
        "split": results.split,
        "n_queries": len(found.query_ids),
        "unanswerable": list(results.systems[0].evaluation.unanswerable),
        "measures": list(found.measures),
        "main_measure": found.main_measure,
        "baseline": results.baseline,
        "systems": [
            {
                "name": system.name,
                "means": dict(system.evaluation.means),
                "intervals": {m: e.interval for m, e in found.estimates[system.name].items()},
                "run_file": report.run_files.get(system.name, (None, None))[0],
                "run_sha256": report.run_files.get(system.name, (None, None))[1],
                "settings": _plain(system.settings),
                "record": _plain(system.record),
            }
            for system in results.systems
        ],
        "against_baseline": [_contrast_json(c) for c in found.contrasts],
        "pairs": [
            {
                **_contrast_json(c),
                "groups_p_value": test.p_value,
                "groups_p_adjusted": test.p_adjusted,
            }
            for c, test in zip(found.pairs, found.group_tests, strict=True)
        ],
        "other_pairs": [_contrast_json(c) for c in found.others],
        "wins": {s: [_query_json(d) for d in found.wins[s]] for s in found.wins},
        "losses": {s: [_query_json(d) for d in found.losses[s]] for s in found.losses},
        "breakdowns": [
            {
                "by": breakdown.by,
                "measure": breakdown.measure,
                "n_left_out": breakdown.n_left_out,
                "groups": [
                    {
                        "name": group.name,
                        "n_queries": group.n_queries,
                        "means": dict(group.means),
                        "against_baseline": [_contrast_json(c) for c in group.contrasts.values()],
                    }
                    for group in breakdown.groups
                ],
            }
            for breakdown in found.breakdowns
        ],
    }


def _plain(facts: Mapping[str, Any]) -> Any:
    """Facts of others as JSON holds them; a path becomes its text."""
    return json.loads(json.dumps(dict(facts), default=str))


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _contrast_json(c: Contrast) -> dict[str, Any]:
    return {**asdict(c), "difference": c.difference, "is_significant": c.is_significant}


def _query_json(d: Any) -> dict[str, Any]:
    return {**d._asdict(), "difference": d.difference}


def _similarity_json(found: SimilarityFindings) -> dict[str, Any]:
    results = found.results
    return {
        "task": results.task,
        "split": results.split,
        "n_items": results.n_items,
        "baseline": results.baseline,
        "systems": [
            {
                "name": r.system,
                "values": {m: _number(value) for m, value in r.values.items()},
                "settings": _plain(r.settings),
            }
            for r in results.systems
        ],
        "against_baseline": [
            {
                "system": c.system,
                "measure": c.measure,
                "difference": _number(c.difference),
                "interval": c.comparison.interval if c.comparison else None,
                "p_value": c.comparison.p_value if c.comparison else None,
                "p_adjusted": c.p_adjusted,
            }
            for c in found.contrasts
        ],
    }
