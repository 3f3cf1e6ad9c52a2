"""One system on one collection: searched, measured, and comparable with another."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_collection
from modeling_condenser.collection.lookup import find_texts
from modeling_condenser.measures.measures import (
    DEFAULT_ANSWER_MEASURES,
    DEFAULT_MEASURES,
    Evaluation,
    evaluate_answers,
    evaluate_run,
    is_answer_measure,
)
from modeling_condenser.measures.significance import Comparison, compare
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.runs import Run
from modeling_condenser.retrieval.systems import System, parse_system
from modeling_condenser.runs.whole_files import write_json

from .ranking import rank

METRICS_FILE = "metrics.json"


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SystemResult:
    """How one system did on one split of one collection.

    Attributes:
        system: its name.
        collection: name of the collection.
        split: whose queries were judged.
        evaluation: measures, in the mean and per query.
        run_file: the TREC run that was measured.
        record: of the search: seconds, queries per second, what it was asked.
    """

    system: str
    collection: str
    split: str
    evaluation: Evaluation
    run_file: Path | None = field(default=None, compare=False)
    record: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def compare_with(self, baseline: "SystemResult", *, seed: int = 0) -> dict[str, Comparison]:
        """Compare with another system on the same queries: measure -> comparison."""
        return {
            measure: compare(values, baseline.evaluation.per_query[measure], seed=seed)
            for measure, values in self.evaluation.per_query.items()
        }


def evaluate_system(
    system: str | Path | System,
    collection: str | Path | Collection,
    out: str | Path,
    *,
    split: str = "test",
    depth: int = 100,
    measures: Sequence[str] | None = None,
    search: SearchSettings | None = None,
    work_folder: Path | None = None,
    name: str | None = None,
    progress: bool = True,
) -> SystemResult:
    """Search a collection with a system, and measure its ranking.

    Args:
        system: "bm25", a run file, or an encoder's folder or Hub name; see `parse_system`.
        collection: see `load_collection`; or one that is loaded.
        out: folder for the TREC run, the measures and, unless `work_folder` is given, embeddings.
        split: whose queries to search and judge.
        depth: passages to retrieve for a query.
        measures: such as "MRR@10"; by default MRR@10, nDCG@10 and R@100, or, where a collection
            judges by answers only, Hit@20 and Hit@100.
        search: how a dense system searches; exactly by default.
        work_folder: for embeddings and index.
        name: of the system in files and tables; by default made from the folder's.
        progress: whether to show progress bars.

    Returns:
        The measures. If `out` holds this search's run already, it is read and measured anew.

    Raises:
        ValueError: `out` holds a run of something else, or a measure does not fit.
        FileNotFoundError: the collection, or the retriever's contract, is missing.
    """
    out = Path(out)
    if not isinstance(system, System):
        system = parse_system(system)
    if name:
        system = dataclasses.replace(system, name=name)
    if not isinstance(collection, Collection):
        collection = load_collection(collection, split=split)
    ranking = rank(
        system,
        collection,
        out,
        depth=depth,
        search=search,
        work_folder=work_folder,
        progress=progress,
    )
    evaluation = measure_run(collection, ranking.run, measures=measures)
    content = {
        "system": system.name,
        "collection": collection.name,
        "split": split,
        "depth": depth,
        "evaluation": asdict(evaluation),
    }
    write_json(out / METRICS_FILE, content)
    return SystemResult(
        system.name, collection.name, split, evaluation, ranking.file, ranking.record
    )


def measure_run(
    collection: Collection, run: Run, *, measures: Sequence[str] | None = None
) -> Evaluation:
    """Measure a run by a collection's judgements, its answers, or both.

    Raises:
        ValueError: a measure needs judgements or answers that the collection does not have.
    """
    if measures is None:
        measures = DEFAULT_MEASURES if collection.qrels else DEFAULT_ANSWER_MEASURES
    by_answer = [measure for measure in measures if is_answer_measure(measure)]
    judged = [measure for measure in measures if not is_answer_measure(measure)]
    _refuse_missing(by_answer, collection.answers, kind="answers", name=collection.name)
    _refuse_missing(judged, collection.qrels, kind="judgements", name=collection.name)
    parts = []
    _warn_of_shallow(measures, run)
    if judged:
        parts.append(evaluate_run(collection.qrels, run, measures=judged))
    if by_answer:

        def texts(ids: list[str]) -> list[str]:
            found = find_texts(collection.passages, ids)
            return [found[passage_id] for passage_id in ids]

        parts.append(evaluate_answers(collection.answers, run, texts, measures=by_answer))
    return parts[0] if len(parts) == 1 else _joined(*parts, measures=measures)


def _refuse_missing(
    measures: Sequence[str], given: Mapping[str, object], *, kind: str, name: str
) -> None:
    if measures and not given:
        raise ValueError(
            f"{', '.join(measures)} cannot be measured: {name} has no {kind}. Choose other "
            f"measures, or add {kind} to the collection."
        )


def _warn_of_shallow(measures: Sequence[str], run: Run) -> None:
    """Say which measures look deeper than the run goes, so that R@1000 is not R@100 in silence."""
    depth = max((len(found) for found in run.values()), default=0)
    deeper = [
        m for m in measures if (cutoff := m.partition("@")[2]).isdigit() and int(cutoff) > depth
    ]
    if deeper:
        logger.warning(
            "%s: no query of the run has more than %d passages; for deeper measures give a greater "
            "depth.",
            ", ".join(deeper),
            depth,
        )


def _joined(first: Evaluation, second: Evaluation, *, measures: Sequence[str]) -> Evaluation:
    """Both evaluations, on the queries that both measured."""
    queries = [
        q
        for q in next(iter(first.per_query.values()))
        if q in next(iter(second.per_query.values()))
    ]
    values = {**first.per_query, **second.per_query}
    per_query = {m: {q: values[m][q] for q in queries} for m in measures}
    means = {m: fmean(by_query.values()) for m, by_query in per_query.items()}
    return Evaluation(means, per_query, first.unanswerable)
