"""Put the results of an evaluation on the model cards of local exports."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import Collection, fingerprint_passages
from modeling_condenser.files.hub import split_revision
from modeling_condenser.publishing.card import PLACEHOLDER, write_card
from modeling_condenser.publishing.provenance import (
    PROVENANCE_FILE,
    EvaluationResult,
    add_result,
    hub_name,
)
from modeling_condenser.retrieval.systems import EXACT, SearchSettings, System, base_name

from .evaluate import INDEX_SETTINGS, EvaluationRecipe, make_command
from .report import Report


def find_exports(systems: Sequence[System], task: str) -> list[System]:
    """The local exports, used as they are; a ValueError if none, or if the task has no card."""
    exports = []
    for system in systems:
        has_provenance = (Path(system.model) / PROVENANCE_FILE).is_file()
        if system.kind == "encoder" and has_provenance and not system.settings.keys() - {"dtype"}:
            exports.append(system)
    if task != "retrieval" or not exports:
        raise ValueError(
            "card is true, but only retrieval by a local export, named without settings, is shown "
            f"on its card, and its folder must hold {PROVENANCE_FILE}: name the folder model of a "
            "run, or export with `condenser export`, as save_encoder records nothing."
        )
    return exports


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
    control, baseline = systems[0], report.content["baseline"]
    is_itself = control.kind == "encoder" and control.model == system.model
    if is_itself and not control.settings.keys() - {"dtype"}:
        baseline = f"its {control.settings.get('dtype', 'float32')} weights"
    for measure in evaluation.means:
        if interval := report.content["results"][measure][result.system]["interval"]:
            intervals[measure] = interval
        if comparison := report.comparisons.get((result.system, measure)):
            comparisons.append(
                {
                    "baseline": baseline,
                    "measure": measure,
                    "value": comparison.mean_baseline,
                    "difference": comparison.difference,
                    "p_value": comparison.p_adjusted,
                }
            )
    conditions = {name: getattr(search, name) for name in INDEX_SETTINGS}
    conditions["dtype"] = system.settings.get("dtype", "float32")
    for name, usual in (("index", EXACT), ("search_parameters", None), ("dtype", "float32")):
        if conditions[name] == usual:
            del conditions[name]
    is_local = Path(recipe.collection).exists() or hub_name(recipe.collection) is None
    source, revision = (None, None) if is_local else split_revision(recipe.collection)
    texts = [_publish(each, system.model) for each in systems]
    collection_name = Path(recipe.collection).name if is_local else recipe.collection
    published = EvaluationResult(
        collection=collection.name,
        split=recipe.split,
        depth=recipe.run_depth,
        n_queries=evaluation.n_items,
        values=dict(evaluation.means),
        source=source,
        revision=revision,
        search=conditions,
        intervals=intervals,
        comparisons=comparisons,
        shared_queries=dict(collection.shared),
        fingerprint_passages=fingerprint_passages(collection.passages),
        command=make_command(settings, texts, collection_name),
    )
    add_result(model, published)
    write_card(model)


def _publish(system: System, model: str) -> str:
    """The text of a system on the card of `model`, without paths of this machine."""
    place = system.encoder.model
    if place == model:
        return system.rename(PLACEHOLDER).text
    if system.kind != "bm25" and Path(place).exists():  # which a reader of the card does not have
        return system.rename(f"PATH/TO/{base_name(place)}").text
    return system.text
