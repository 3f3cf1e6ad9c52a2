"""Run an evaluation recipe: search or compare, measure, test, and write a report.

<output_dir>/<collection>/embeddings/<system>/     vectors, shared by all splits
<output_dir>/<collection>/<split>/<system>/        run and measures
<output_dir>/<collection>/<split>/report.md        the report, beside its other files
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from modeling_condenser.collection.load import load_collection
from modeling_condenser.measures.measures import Evaluation
from modeling_condenser.measures.significance import Comparison
from modeling_condenser.measures.similarity import (
    compare_spearman,
    evaluate_graded_pairs,
    evaluate_triplets,
    pair_similarities,
    read_graded_pairs,
    read_triplets,
)
from modeling_condenser.repository.contract import CONTRACT_FILE
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.systems import System, parse_system
from modeling_condenser.runs.recipe import fill

from .cost import EncodingCost, measure_cost
from .report import MARKDOWN_FILE, write_report
from .report_text import summarise
from .system_comparison import Report
from .system_results import INDEX_SETTINGS, SystemResult, evaluate_system

if TYPE_CHECKING:
    from modeling_condenser.collection.collection import Collection
    from modeling_condenser.encoding.retriever import Retriever


@dataclass(frozen=True)
class EvaluationRecipe:
    """The fields of an evaluation recipe.

    Attributes:
        systems: folders or Hub names of encoders, run files, or bm25; settings follow commas.
        collection: folder or Hub name; for graded pairs and triplets, their file.
        output_dir: folder for the results.
        task: "retrieval", "graded_pairs" (STS-b), or "triplets" (Wikipedia sections).
        split: whose queries to search and judge.
        baseline: a further system, which the others are compared with; by default the first.
        measures: the first one is the main measure of the report.
        depth: passages to retrieve for each query.
        columns: of a file of pairs or triplets: our name -> the file's.
        cost: whether to measure time and memory of an encoding step too.
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
    """The result of an evaluation.

    Attributes:
        report: all figures.
        file: the report as Markdown; its folder contains the other files.
    """

    report: Report
    file: Path

    @property
    def summary(self) -> str:
        """Measures and differences as a table for the screen."""
        return summarise(self.report)


def evaluate(settings: Mapping[str, Any], *, progress: bool = True) -> EvaluationReport:
    """Run an evaluation recipe.

    Args:
        settings: fields of `EvaluationRecipe` and of `SearchSettings`.
        progress: whether to show progress bars.

    Raises:
        ValueError: a setting does not fit, or the output folder contains other runs.
        FileNotFoundError: a system or the collection is missing.
    """
    recipe, search = fill(settings, EvaluationRecipe, SearchSettings)
    systems = _parse_systems(recipe, search)
    if recipe.task == "retrieval":
        return _evaluate_retrieval(recipe, search, systems, progress=progress)
    return _evaluate_similarity(recipe, systems, progress=progress)


def _parse_systems(recipe: EvaluationRecipe, search: SearchSettings) -> list[System]:
    """The systems in the order of the tables, the baseline first."""
    words = [*([recipe.baseline] if recipe.baseline else []), *recipe.systems]
    systems: dict[str, System] = {}
    for system in (parse_system(word).in_dtype(search.dtype) for word in words):
        if systems.setdefault(system.name, system) != system:
            raise ValueError(
                f"{systems[system.name].model} and {system.model} have the same name"
                f" {system.name!r}: rename one, as in {system.model},name=OTHER"
            )
    if not recipe.systems:
        raise ValueError("the recipe names no systems: add at least one, such as bm25")
    if recipe.task != "retrieval":
        for system in systems.values():
            if not system.is_dense:
                raise ValueError(
                    f"{system.model} has no vectors to compare: the task {recipe.task} needs"
                    " encoders"
                )
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
        results,
        baseline=systems[0].name,
        collection=collection,
        costs=_costs(recipe, systems),
        command=_command(recipe, search, systems, collection.name),
        seed=recipe.seed,
    )
    _report_on_cards(recipe, search, systems, results, collection)
    return EvaluationReport(report, folder / MARKDOWN_FILE)


def _evaluate_similarity(
    recipe: EvaluationRecipe, systems: Sequence[System], *, progress: bool
) -> EvaluationReport:
    file = Path(recipe.collection)
    comparisons: dict[tuple[str, str], Comparison] = {}
    if recipe.task == "graded_pairs":
        first, second, scores = zip(*read_graded_pairs(file, columns=recipe.columns), strict=True)
        n_items = len(scores)
        evaluations, comparisons = _on_graded_pairs(
            systems, first, second, np.array(scores), seed=recipe.seed, progress=progress
        )
    else:
        triplets = read_triplets(file, columns=recipe.columns)
        n_items = len(triplets)
        evaluations = {s.name: _on_triplets(s, triplets, progress=progress) for s in systems}
    folder = Path(recipe.output_dir) / _as_path(file.stem)
    task = recipe.task.replace("_", " ")
    report = write_report(
        folder,
        [
            SystemResult(s.name, file.stem, task, evaluations[s.name], settings=dict(s.settings))
            for s in systems
        ],
        baseline=systems[0].name,
        n_items=n_items,
        comparisons=comparisons,
        costs=_costs(recipe, systems),
        command=_command(recipe, SearchSettings(), systems, file.name),
        seed=recipe.seed,
    )
    return EvaluationReport(report, folder / MARKDOWN_FILE)


def _on_graded_pairs(
    systems: Sequence[System],
    first: Sequence[str],
    second: Sequence[str],
    scores: np.ndarray,
    *,
    seed: int,
    progress: bool,
) -> tuple[dict[str, Evaluation], dict[tuple[str, str], Comparison]]:
    """Correlations of each system, and comparisons of Spearman's with the first system's."""
    similarities: dict[str, np.ndarray] = {}
    for system in systems:
        retriever = system.open()
        similarities[system.name] = pair_similarities(
            _encode(retriever, first, progress=progress),
            _encode(retriever, second, progress=progress),
            similarity=retriever.contract.similarity,
        )
    evaluations, comparisons = {}, {}
    base = similarities[systems[0].name]
    for name, own in similarities.items():
        found = evaluate_graded_pairs(own, scores)
        evaluations[name] = Evaluation({"Spearman": found.spearman, "Pearson": found.pearson}, {})
        if own is not base:
            comparisons[name, "Spearman"] = compare_spearman(own, base, scores, seed=seed)
    return evaluations, comparisons


def _on_triplets(
    system: System, triplets: Sequence[tuple[str, str, str]], *, progress: bool
) -> Evaluation:
    retriever = system.open()
    anchors, positives, negatives = (
        _encode(retriever, side, progress=progress) for side in zip(*triplets, strict=True)
    )
    similarity = retriever.contract.similarity
    found = evaluate_triplets(anchors, positives, negatives, similarity=similarity)
    name = "triplet accuracy"
    return Evaluation({name: found.accuracy}, {name: found.per_triplet})


def _encode(retriever: "Retriever", texts: Sequence[str], *, progress: bool) -> np.ndarray:
    """Vectors, (N, D) float32, of texts as passages without a title."""
    passages = [retriever.contract.passage("", text) for text in texts]
    length = retriever.contract.passage_max_length
    return retriever.encode_texts(passages, length, progress=progress)


def _costs(recipe: EvaluationRecipe, systems: Sequence[System]) -> dict[str, EncodingCost]:
    if not recipe.cost:
        return {}
    return {s.name: measure_cost(s.model, settings=s.settings) for s in systems if s.is_dense}


def _report_on_cards(
    recipe: EvaluationRecipe,
    search: SearchSettings,
    systems: Sequence[System],
    results: Sequence[SystemResult],
    collection: "Collection",
) -> None:
    """Write results on the cards of local exports that were evaluated by their own contract."""
    baselines = list(results[:1]) if recipe.baseline else []
    for system, result in zip(systems, results, strict=True):
        is_export = system.is_dense and (Path(system.model) / CONTRACT_FILE).is_file()
        if is_export and not system.settings and result not in baselines:
            from modeling_condenser.repository.card import PLACEHOLDER

            from .card_results import name_in_commands, report_on_card

            named = [*systems[: len(baselines)], parse_system(PLACEHOLDER)]
            name = name_in_commands(recipe.collection, collection)
            report_on_card(
                system.model,
                result,
                baselines,
                collection=collection,
                source=recipe.collection,
                depth=recipe.depth,
                command=_command(recipe, search, named, name),
                search=search,
                seed=recipe.seed,
            )


def _command(
    recipe: EvaluationRecipe, search: SearchSettings, systems: Sequence[System], collection: str
) -> str:
    """The command that makes a report again. Local paths are reduced to their last parts."""
    first = 1 if recipe.baseline else 0
    words = ["condenser", "evaluate", *(system.word for system in systems[first:]), collection]
    if recipe.baseline:
        words += ["--baseline", systems[0].word]
    defaults = EvaluationRecipe(systems=[], collection="")
    for name in ("task", "split", "measures", "depth", "columns", "cost", "seed"):
        value = getattr(recipe, name)
        if value != getattr(defaults, name) or name == "split":
            words += [f"--{name}", _as_word(value)]
    for name in INDEX_SETTINGS:
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
    """A name as the name of a folder."""
    return re.sub(r"[^\w.=-]+", "_", name)
