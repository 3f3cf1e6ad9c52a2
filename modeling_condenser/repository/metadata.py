"""A card's metadata: what the Hub lists, filters and compares models by.

In: stages and results, and what stands on the card already. Out: a dictionary that
`huggingface_hub` accepts. What a person wrote stays; what follows from the record is written anew.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from .provenance import FINETUNING, Stage
from .publishable import hub_name
from .results import DIGITS, EvaluationResult

MODEL_INDEX = "model-index"
_TASK, _TASK_NAME = "information-retrieval", "Retrieval"


def make_metadata(
    stages: Sequence[Stage],
    results: Sequence[EvaluationResult],
    *,
    model_name: str,
    is_checkpoint: bool,
) -> dict[str, Any]:
    """The metadata that follow from the record alone.

    Args:
        stages: that made the model.
        results: of its evaluations.
        model_name: in the `model-index`.
        is_checkpoint: whether it is a pre-training checkpoint, with code of its own.
    """
    is_finetuned = any(stage.name == FINETUNING for stage in stages)
    tags = ["condenser", "dense-retrieval"]
    if not is_checkpoint:
        tags += ["sentence-transformers", "feature-extraction"]
    data = ModelCardData(
        library_name="transformers" if is_checkpoint else "sentence-transformers",
        pipeline_tag=(
            "fill-mask"
            if is_checkpoint
            else "sentence-similarity"
            if is_finetuned
            else "feature-extraction"
        ),
        tags=tags,
        base_model=find_base_model(stages),
        datasets=find_datasets(stages) or None,
        model_name=model_name if results else None,
        eval_results=list(_eval_results(results)) or None,
    )
    return data.to_dict()


def merge_metadata(existing: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Put metadata made anew beside those that stand on a card.

    Tags and data sets are joined; of the results in `model-index` those that an evaluation of ours
    made are replaced and others kept; `base_model` is what the record says, where it says it; every
    other key keeps the value that it has.
    """
    merged = {**made, **existing}
    for name in ("tags", "datasets"):
        values = [*_as_list(existing.get(name)), *_as_list(made.get(name))]
        if values:
            merged[name] = list(dict.fromkeys(values))
    if "base_model" in made:
        merged["base_model"] = made["base_model"]
    merged.pop(MODEL_INDEX, None)
    foreign = [
        {**model, "results": kept}
        for model in _as_list(existing.get(MODEL_INDEX))
        if (kept := [result for result in model.get("results", ()) if not is_ours(result)])
    ]
    if index := _join([*made.get(MODEL_INDEX, ()), *foreign]):
        merged[MODEL_INDEX] = index
    return {**{name: merged[name] for name in existing if name in merged}, **merged}


def is_ours(result: Mapping[str, Any]) -> bool:
    """Whether a result of a `model-index` was made by an evaluation of ours."""
    metrics = result.get("metrics") or ()
    is_retrieval = (result.get("task") or {}).get("type") == _TASK
    return is_retrieval and all("depth" in (metric.get("args") or {}) for metric in metrics)


def find_base_model(stages: Sequence[Stage]) -> str | None:
    """The nearest ancestor that has a name on the Hub."""
    names = (hub_name(stage.recipe.get("encoder")) for stage in reversed(stages))
    return next(filter(None, names), None)


def find_datasets(stages: Iterable[Stage]) -> list[str]:
    """The data sets on the Hub that the model was trained on, first to last."""
    found = (name for stage in stages for source in _sources(stage) if (name := hub_name(source)))
    return list(dict.fromkeys(found))


def _sources(stage: Stage) -> Iterator[Any]:
    for name in ("corpus", "collection", "data"):
        for part in _as_list(stage.recipe.get(name)):
            yield part.get("path") if isinstance(part, Mapping) else part


def _eval_results(results: Sequence[EvaluationResult]) -> Iterator[EvalResult]:
    for result in results:
        for measure, value in result.values.items():
            yield EvalResult(
                task_type=_TASK,
                task_name=_TASK_NAME,
                dataset_type=result.source or result.collection,
                dataset_name=result.collection,
                dataset_split=result.split,
                dataset_revision=result.revision,
                metric_type=measure,
                metric_name=measure,
                metric_value=round(value, DIGITS),
                metric_args={"depth": result.depth, **result.search},
            )


def _join(models: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry a model name: the Hub's client keeps the name of the last of several."""
    joined: dict[str, list[Any]] = {}
    for model in models:
        joined.setdefault(models[0]["name"], []).extend(model["results"])
    return [{"name": name, "results": results} for name, results in joined.items()]


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
