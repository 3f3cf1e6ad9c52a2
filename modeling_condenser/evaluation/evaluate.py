"""The evaluation stage: a recipe in, a folder with runs, measures and a report out.

<output_dir>/<collection>/embeddings/<system>/     vectors, which every split shares
<output_dir>/<collection>/<split>/<system>/        run and measures
<output_dir>/<collection>/<split>/report.md        what was found; and beside it the figures
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_collection
from modeling_condenser.repository.card import PLACEHOLDER
from modeling_condenser.repository.contract import CONTRACT_FILE
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.systems import System, parse_system
from modeling_condenser.runs.recipe import fill

from .card_results import name_in_commands, report_on_card
from .cost import EncodingCost, measure_cost
from .report import MARKDOWN_FILE, ReportedSystem, RetrievalResults, write_report
from .report_text import Report
from .similarity import Task, evaluate_similarity
from .summary import summarise
from .system_results import SystemResult, evaluate_system

_NO_PATH = re.compile(r"[^\w.=-]+")


@dataclass(frozen=True)
class EvaluationRecipe:
    """What an evaluation's recipe says.

    Attributes:
        systems: folders or Hub names of encoders, run files, or bm25; with settings behind commas.
        collection: folder or Hub name; for graded pairs and triplets, their CSV file.
        output_dir: folder for the collections' folders.
        task: to rank a collection's passages, or to compare the texts of a file.
        split: whose queries to search and judge.
        baseline: a further system, which the others are compared with; by default the first.
        measures: the first is the one that pairs of systems are compared in.
        depth: passages to retrieve for a query.
        columns: of a file of pairs or triplets: our name -> its name.
        cost: whether to measure time and memory of a step of each encoder too.
        seed: of tests and intervals.
    """

    systems: list[str]
    collection: str
    output_dir: str = "runs/evaluation"
    task: Literal["retrieval", "graded_pairs", "triplets"] = "retrieval"
    split: str = "test"
    baseline: str | None = None
    measures: list[str] | None = None
    depth: int = 100
    columns: dict[str, str] = field(default_factory=dict)
    cost: bool = False
    seed: int = 0


@dataclass(frozen=True)
class EvaluationReport:
    """What an evaluation leaves.

    Attributes:
        report: everything that was found.
        file: the report as Markdown; its folder holds the rest.
        summary: measures and whether they differ, as a table.
    """

    report: Report
    file: Path

    @property
    def summary(self) -> str:
        return summarise(self.report)


def evaluate(settings: Mapping[str, Any], *, progress: bool = True) -> EvaluationReport:
    """Run an evaluation recipe.

    Args:
        settings: fields of `EvaluationRecipe` and of `SearchSettings`.
        progress: whether to show progress bars.

    Raises:
        ValueError: a setting does not fit, or the output folder holds runs of something else.
        FileNotFoundError: a system or the collection is missing.
    """
    recipe, search = fill(settings, EvaluationRecipe, SearchSettings)
    systems = _parse_systems(recipe, search)
    if recipe.task == "retrieval":
        return _evaluate_retrieval(recipe, search, systems, progress=progress)
    return _evaluate_similarity(recipe, recipe.task, systems, progress=progress)


def _parse_systems(recipe: EvaluationRecipe, search: SearchSettings) -> list[System]:
    """The systems in the order of the tables, the baseline first."""
    words = [*([recipe.baseline] if recipe.baseline else []), *recipe.systems]
    systems: dict[str, System] = {}
    for system in (parse_system(word).in_dtype(search.dtype) for word in words):
        if systems.setdefault(system.name, system) != system:
            raise ValueError(
                f"{systems[system.name].model} and {system.model} would both be called "
                f"{system.name!r}: name one of them, as in {system.model},name=OTHER."
            )
    if not systems:
        raise ValueError("The recipe names no systems: add at least one, such as bm25.")
    return list(systems.values())


def _evaluate_retrieval(
    recipe: EvaluationRecipe,
    search: SearchSettings,
    systems: Sequence[System],
    *,
    progress: bool,
) -> EvaluationReport:
    collection = load_collection(recipe.collection, split=recipe.split)
    root = Path(recipe.output_dir) / _as_path(collection.name)
    folder = root / _as_path(recipe.split)
    results = [
        evaluate_system(
            system,
            collection,
            folder / _as_path(system.name),
            split=recipe.split,
            depth=recipe.depth,
            measures=recipe.measures,
            search=search,
            work_folder=root / "embeddings" / _as_path(system.name),
            progress=progress,
        )
        for system in systems
    ]
    report = write_report(
        folder,
        RetrievalResults(
            collection,
            recipe.split,
            [_reported(system, result) for system, result in zip(systems, results, strict=True)],
            baseline=systems[0].name if recipe.baseline else None,
        ),
        costs=_costs(recipe, systems),
        command=_command(recipe, search, systems, collection.name),
        seed=recipe.seed,
        progress=progress,
    )
    _report_on_cards(recipe, search, systems, results, collection)
    return EvaluationReport(report, folder / MARKDOWN_FILE)


def _evaluate_similarity(
    recipe: EvaluationRecipe, task: Task, systems: Sequence[System], *, progress: bool
) -> EvaluationReport:
    file = Path(recipe.collection)
    folder = Path(recipe.output_dir) / _as_path(file.stem)
    results = evaluate_similarity(
        systems,
        file,
        task=task,
        columns=recipe.columns,
        baseline=systems[0].name,
        seed=recipe.seed,
        progress=progress,
    )
    report = write_report(
        folder,
        similarity=[results],
        costs=_costs(recipe, systems),
        command=_command(recipe, SearchSettings(), systems, file.name),
        seed=recipe.seed,
        progress=progress,
    )
    return EvaluationReport(report, folder / MARKDOWN_FILE)


def _reported(system: System, result: SystemResult) -> ReportedSystem:
    return ReportedSystem(
        result.system, result.evaluation, result.run_file, dict(system.settings), result.record
    )


def _costs(recipe: EvaluationRecipe, systems: Sequence[System]) -> dict[str, list[EncodingCost]]:
    if not recipe.cost:
        return {}
    return {
        system.name: [measure_cost(system.model, settings=system.settings)]
        for system in systems
        if system.is_dense
    }


def _report_on_cards(
    recipe: EvaluationRecipe,
    search: SearchSettings,
    systems: Sequence[System],
    results: Sequence[SystemResult],
    collection: Collection,
) -> None:
    """Write the results of models of ours, evaluated as they are, on their cards."""
    baselines = list(results[:1]) if recipe.baseline else []
    for system, result in zip(systems, results, strict=True):
        is_ours = system.is_dense and (Path(system.model) / CONTRACT_FILE).is_file()
        if is_ours and not system.settings and result not in baselines:
            named = [*systems[: len(baselines)], parse_system(PLACEHOLDER)]
            source = recipe.collection
            report_on_card(
                system.model,
                result,
                baselines,
                collection=collection,
                source=source,
                depth=recipe.depth,
                command=_command(recipe, search, named, name_in_commands(source, collection)),
                search=search,
                seed=recipe.seed,
            )


def _command(
    recipe: EvaluationRecipe, search: SearchSettings, systems: Sequence[System], collection: str
) -> str:
    """The command that makes a report again, with the last parts of local paths."""
    first = 1 if recipe.baseline else 0
    words = ["condenser", "evaluate", *(system.word for system in systems[first:]), collection]
    if recipe.baseline:
        words += ["--baseline", systems[0].word]
    defaults = EvaluationRecipe(systems=[], collection="")
    for name in ("task", "split", "measures", "depth", "columns", "cost", "seed"):
        value = getattr(recipe, name)
        if value != getattr(defaults, name) or name == "split":
            words += [f"--{name}", _as_word(value)]
    for name in ("index", "search_parameters", "rescore", "index_seed"):
        if getattr(search, name) != getattr(SearchSettings(), name):
            words += [f"--{name}", _as_word(getattr(search, name))]
    return shlex.join(words)


def _as_word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {v}" for k, v in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_path(name: str) -> str:
    """A name as a folder's."""
    return _NO_PATH.sub("_", name)
