"""Put the results of an evaluation on the model cards of local exports."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import Collection, fingerprint_passages
from modeling_condenser.files.hub import split_revision
from modeling_condenser.publishing.card import PLACEHOLDER, write_card
from modeling_condenser.publishing.provenance import EvaluationResult, add_result, hub_name
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.systems import System

from .evaluate import INDEX_SETTINGS, EvaluationRecipe, make_command
from .report import Report


def add_to_card(
    report: Report,
    system: System,
    systems: Sequence[System],
    collection: Collection,
    *,
    settings: Mapping[str, Any],
    recipe: EvaluationRecipe,
    search: SearchSettings,
) -> None:
    """Add the result of a local export, compared with the baseline, to its folder and its card.

    Results of other collections, splits, depths or search settings are kept.

    Args:
        system: the export, one of the systems.
        settings: that the user stated; `recipe` and `search` are the same, complete.
    """
    result = report.results[systems.index(system)]
    model, evaluation = Path(system.model), result.evaluation
    intervals, comparisons = {}, []
    for measure in evaluation.means:
        if interval := report.content["results"][measure][result.system]["interval"]:
            intervals[measure] = interval
        if comparison := report.comparisons.get((result.system, measure)):
            comparisons.append(
                {
                    "baseline": report.content["baseline"],
                    "measure": measure,
                    "value": comparison.mean_baseline,
                    "difference": comparison.difference,
                    "p_value": comparison.p_adjusted,
                }
            )
    changed = search.changed(*INDEX_SETTINGS)
    if (dtype := system.settings.get("dtype", "float32")) != "float32":
        changed["dtype"] = dtype
    is_local = Path(recipe.collection).exists() or hub_name(recipe.collection) is None
    source, revision = (None, None) if is_local else split_revision(recipe.collection)
    texts = [_publish(each, system.model) for each in systems]
    collection_name = Path(recipe.collection).name if is_local else recipe.collection
    published = EvaluationResult(
        collection=collection.name,
        split=recipe.split,
        depth=recipe.depth,
        n_queries=evaluation.n_items,
        values=dict(evaluation.means),
        source=source,
        revision=revision,
        search=changed,
        intervals=intervals,
        comparisons=comparisons,
        shared_queries=dict(collection.shared),
        qrels_sha256=report.content["qrels_sha256"],
        fingerprint_passages=fingerprint_passages(collection.passages),
        command=make_command(settings, texts, collection_name),
    )
    add_result(model, published, run_file=result.run_file if recipe.publish_runs else None)
    write_card(model)


def _publish(system: System, model: str) -> str:
    """The text of a system on the card of `model`, without paths of this machine."""
    if system.encoder.model != model:
        return system.published_text
    return replace(system, model=system.model.removesuffix(model) + PLACEHOLDER).text
