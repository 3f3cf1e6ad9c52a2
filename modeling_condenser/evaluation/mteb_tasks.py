"""Evaluate systems on tasks of MTEB.

<output_dir>/mteb/results/       the results in MTEB's format
<output_dir>/mteb/embeddings/    vectors and indices, for each task and system
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from modeling_condenser.hub.provenance import hub_name
from modeling_condenser.hub.results import EvaluationResult, add_result
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.retrieval.systems import parse_systems
from modeling_condenser.runs.recipe import fill
from modeling_condenser.runs.run_folder import describe_machine

from .mteb_model import import_mteb, mteb_model

_MEASURES = {"nDCG@10": "ndcg_at_10", "MRR@10": "mrr_at_10", "R@100": "recall_at_100"}


@dataclass(frozen=True)
class MtebRecipe:
    """The fields of an evaluation on MTEB.

    Attributes:
        systems: encoders, bm25, or hybrid:ENCODER, with settings as for collections.
        mteb: tasks such as SciFact, or benchmarks such as "MTEB(eng, v2)".
        output_dir: folder for results and embeddings.
    """

    systems: list[str]
    mteb: list[Any] = field(metadata={"words": "many"})
    output_dir: str = "runs/evaluation"


def evaluate_mteb(
    systems: str | Path | Sequence[str | Path],
    tasks: Any,
    *,
    output_dir: str | Path = "runs/evaluation",
    progress: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluate systems on tasks of MTEB; a task that a system has finished is not repeated.

    Retrieval results also go on the model cards of local exports.

    Args:
        systems, output_dir: see `MtebRecipe`.
        tasks: names of tasks or benchmarks, or tasks (`mteb.AbsTask`) of your own.
        **settings: further fields of `SearchSettings`.

    Returns:
        Name of a system -> its `mteb.results.ModelResult`.

    Raises:
        ValueError: mteb is not installed, a task is unknown, or a system cannot do it; raised
            before anything is encoded.
    """
    mteb = import_mteb()
    listed = [systems] if isinstance(systems, str | Path) else systems
    stated = {
        "systems": [str(system) for system in listed],
        "mteb": [tasks] if isinstance(tasks, str) else list(tasks),
        "output_dir": str(output_dir),
        **settings,
    }
    recipe, search = fill(stated, MtebRecipe, SearchSettings)
    parsed = parse_systems(recipe.systems, search)
    found = [task for name in recipe.mteb for task in _find_tasks(name)]
    searchers = [s.name for s in parsed if s.kind != "encoder" or s.is_quantised]
    for task in (task.metadata for task in found):
        wrong = searchers if task.type != "Retrieval" else []
        if wrong or task.modalities != ["text"]:
            raise ValueError(
                f"{(wrong or recipe.systems)[0]} cannot do the task {task.name} ({task.type} of"
                f" {', '.join(task.modalities)}): encoders do tasks of text; bm25, hybrid systems"
                " and quantised vectors only those of the type Retrieval."
            )
    cache = mteb.ResultCache(Path(recipe.output_dir) / "mteb")
    results = {}
    for system in parsed:
        model = mteb_model(system, output_dir=recipe.output_dir, progress=progress, search=search)
        how: Any = {"cache": cache, "co2_tracker": False, "show_progress_bar": progress}
        results[system.name] = mteb.evaluate(model, found, **how)
        if system.is_export and search.is_exact:
            _report_on_card(Path(system.model), results[system.name], found, model.n_queries)
    return results


def format_results(results: Mapping[str, Any]) -> str:
    """A table of the main scores: a row for each task, a column for each system."""
    scores = {
        system: {task.task_name: task.get_score() for task in result.task_results}
        for system, result in results.items()
    }
    return pd.DataFrame(scores).to_string(float_format="{:.4f}".format)


def _find_tasks(name: Any) -> list[Any]:
    """The task, or the tasks of the benchmark, of a name; a task as it is."""
    mteb = import_mteb()
    if not isinstance(name, str):
        return [name]
    try:
        return [mteb.get_task(name)]
    except KeyError as error:
        if name in {benchmark.name for benchmark in mteb.get_benchmarks()}:
            return list(mteb.get_benchmark(name).tasks)
        raise ValueError(
            f"MTEB has no task or benchmark {name!r} ({error.args[0].removeprefix('KeyError: ')})."
        ) from None


def _report_on_card(
    folder: Path,
    result: Any,
    tasks: Sequence[Any],
    n_queries: Mapping[tuple[str, str, str], int],
) -> None:
    """Put the retrieval results that were just computed on the model card of an export."""
    from modeling_condenser.hub.card import write_card  # draws curves, so its imports are slow

    named = {task.metadata.name: task for task in tasks}
    computed = {task.task_name: task for task in result.task_results}
    for (name, subset, split), n in n_queries.items():
        [scores] = [own for own in computed[name].scores[split] if own["hf_subset"] == subset]
        data = named[name].metadata.dataset
        own = EvaluationResult(
            collection=name if subset == "default" else f"{name} {subset}",
            split=split,
            depth=max(named[name].k_values),
            n_queries=n,
            values={measure: scores[theirs] for measure, theirs in _MEASURES.items()},
            source=hub_name(data["path"]),
            revision=data["revision"],
            benchmark="MTEB",
            command=f"condenser evaluate OWNER/NAME --mteb {name}",
            date=datetime.now(UTC).date().isoformat(),
            versions={**describe_machine()["versions"], "mteb": str(computed[name].mteb_version)},
        )
        add_result(folder, own)
    write_card(folder)
