"""Evaluate systems: search or compare texts, measure, test, and write a report.

<output_dir>/<collection>/embeddings/<system>/     vectors, shared by all splits
<output_dir>/<collection>/<split>/<system>/        run and measures
<output_dir>/<collection>/<split>/report.md        the report, beside report.html and other files
"""

import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_dev, load_reported
from modeling_condenser.files.progress import show_bars
from modeling_condenser.files.settings import check_least, parse_settings
from modeling_condenser.publishing.card import PLACEHOLDER
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.systems import (
    System,
    SystemLike,
    as_folder,
    parse_systems,
    system_text,
)

from .cost import measure_cost
from .measures import check_measures
from .report import Report, write_report
from .similarity import measure_similarity, read_items
from .system_results import INDEX_SETTINGS, Evaluator, SystemResult, report_on_card

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationRecipe:
    """The fields of an evaluation recipe.

    Attributes:
        systems: folders or Hub names of encoders, TREC run files, bm25, or hybrid:ENCODER, with
            settings behind commas, as in google-bert/bert-base-uncased,pooling=mean.
        collection: folder (BEIR, MS MARCO or DPR) or Hub name; for graded pairs and triplets, their
            file.
        output_dir: folder for the results.
        task: "retrieval", "graded_pairs" (STS-b), or "triplets" (Wikipedia sections).
        split: of the queries and judgements.
        baseline: a further system to compare the others with; by default the first system.
        measures: such as MRR@10; the first one is the main measure of the report. By default
            MRR@10, nDCG@10 and R@100, or Hit@20 and Hit@100 for a collection with answers only.
        depth: passages to retrieve for each query.
        columns: of a file of pairs or triplets, where they differ: our name -> the file's.
        cost: also measure time and memory of an encoding step.
        card: also put the results on the model cards of the local exports.
        seed: of the resampling in tests and intervals.
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
    card: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.systems:
            raise ValueError("Nothing to evaluate: name at least one system.")
        check_least(self, depth=1)
        if self.task == "retrieval":
            if self.measures is not None:
                check_measures(self.measures)
            if Path(self.collection).is_file():
                raise ValueError(
                    f"{self.collection} is a file: for graded pairs or triplets, set task to"
                    " graded_pairs or triplets; a collection is a folder."
                )


def evaluate(
    systems: SystemLike | Sequence[SystemLike],
    collection: str | Path,
    *,
    split: str = "test",
    measures: Sequence[str] | None = None,
    baseline: SystemLike | None = None,
    output_dir: str | Path = "runs/evaluation",
    progress: bool = True,
    **settings: Any,
) -> Report:
    """Search a collection with one or more systems, measure them, and test the differences.

    Runs, measures and a report are written to `output_dir`; a search whose run is already there is
    not repeated. Nothing else is written, unless `card` is true.

    Args:
        systems, collection, split, measures, baseline, output_dir: see `EvaluationRecipe`. A
            system may also be a mapping, such as {"model": "my-encoder", "pooling": "mean"}.
        progress: show bars.
        **settings: further fields of `EvaluationRecipe` and of `SearchSettings`.

    Returns:
        The report. `print` shows it as text; `means[system][measure]` and
        `comparisons[system, measure]` are its figures, and `file` is the report as Markdown.

    Example:
        >>> report = evaluate("my-retriever", "my-collection", baseline="bm25")
        >>> print(report)
        >>> report.comparisons["my-retriever", "MRR@10"].p_adjusted
    """
    is_one = isinstance(systems, str | Path | Mapping | System)
    texts = [system_text(each) for each in ([systems] if is_one else systems)]  # type: ignore
    settings |= {"systems": texts, "collection": collection, "split": split}
    settings |= {"measures": measures, "output_dir": output_dir}
    settings["baseline"] = baseline and system_text(baseline)
    recipe, search = parse_settings(settings, EvaluationRecipe, SearchSettings)
    words = [recipe.baseline, *recipe.systems] if recipe.baseline else recipe.systems
    parsed, out, loaded = parse_systems(words, search), Path(recipe.output_dir), None
    exports = [system.model for system in parsed if system.is_export]
    if recipe.card and (recipe.task != "retrieval" or not exports):
        raise ValueError(
            "card is true, but a card shows retrieval by a local export with its own contract, and"
            " none is evaluated: name the export's folder, without settings. (A folder in which"
            " `adapt` kept the start is a copy of that model: leave out card.)"
        )
    with show_bars(progress):
        if recipe.task == "retrieval":
            loaded = load_reported(recipe.collection, split=recipe.split)
            root = out / as_folder(loaded.name)
            folder = root / as_folder(recipe.split)
            results = _evaluate_systems(parsed, recipe, search, loaded, root)
        else:
            file = Path(recipe.collection)
            folder = out / as_folder(file.stem)
            items = read_items(file, recipe.task, columns=recipe.columns)
            results = [measure_similarity(system, items, name=file.stem) for system in parsed]
    for i, system in enumerate(parsed):
        if recipe.cost and system.kind == "encoder":
            whole = system.without("truncate_dim")
            cost = measure_cost(system.model, settings=whole.settings)
            results[i] = replace(results[i], cost=cost)
    report = write_report(
        folder,
        results,
        collection=loaded,
        command=_command(recipe, search, [s.text for s in parsed], recipe.collection),
        seed=recipe.seed,
    )
    if loaded and recipe.card:
        _report_on_cards(recipe, search, list(zip(parsed, results, strict=True)), loaded)
    elif loaded and exports:
        logger.info("The card of %s is unchanged: --card adds the results.", ", ".join(exports))
    return report


def _evaluate_systems(
    systems: Sequence[System],
    recipe: EvaluationRecipe,
    search: SearchSettings,
    collection: Collection,
    root: Path,
) -> list[SystemResult]:
    """Evaluate systems on a collection, into the folders below `root`."""
    folder, dev = root / as_folder(recipe.split), None
    if any(system.kind == "hybrid" and "fusion" not in system.settings for system in systems):
        dev = load_dev(recipe.collection, judged=recipe.split, reported=collection)
    evaluator = Evaluator(
        collection,
        lambda system: (folder / as_folder(system.name), root / "embeddings" / system.vectors_name),
        split=recipe.split,
        depth=recipe.depth,
        measures=recipe.measures,
        search=search,
        dev=dev,
    )
    # Systems of one encoder follow each other, so that it is opened once.
    order = sorted(systems, key=lambda system: system.vectors_name)
    results = {system.name: evaluator.evaluate(system) for system in order}
    return [results[system.name] for system in systems]


def _report_on_cards(
    recipe: EvaluationRecipe,
    search: SearchSettings,
    measured: Sequence[tuple[System, SystemResult]],
    collection: Collection,
) -> None:
    """Put results on the cards of local exports that were evaluated with their own contract.

    A card compares its model with the baseline, and with hybrid search with the model.
    """
    baselines = measured[:1] if recipe.baseline else []
    others, place = measured[len(baselines) :], Path(recipe.collection)
    for system, result in others:
        if not system.is_export:
            continue
        own = replace(system, stated_name=None)
        hybrids = [(s, r) for s, r in others if s.kind == "hybrid" and s.encoder == own]
        named = [s for s, _ in (*baselines, (system, result), *hybrids)]
        texts = [
            replace(s, model=s.model.removesuffix(system.model) + PLACEHOLDER).text
            if replace(s.encoder, stated_name=None) == own
            else s.published_text
            for s in named
        ]
        report_on_card(
            system.model,
            result,
            [other for _, other in (*baselines, *hybrids)],
            collection=collection,
            source=recipe.collection,
            command=_command(recipe, search, texts, place.name if place.exists() else str(place)),
            seed=recipe.seed,
        )


def _command(
    recipe: EvaluationRecipe, search: SearchSettings, systems: Sequence[str], collection: str
) -> str:
    """The command that makes a report of these systems, the baseline first."""
    words = [*systems, collection]
    if recipe.baseline:
        words += ["--baseline", words.pop(0)]
    defaults = {**vars(EvaluationRecipe(["bm25"], "")), **vars(SearchSettings()), "split": ""}
    stated = {**vars(recipe), **vars(search)}
    for name in ("task", "split", "measures", "depth", "columns", "cost", "seed", *INDEX_SETTINGS):
        if (value := stated[name]) != defaults[name]:
            words += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return shlex.join(["condenser", "evaluate", *words])
