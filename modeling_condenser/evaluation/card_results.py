"""Results on model cards: what a retriever reached, beside its baselines, with p-values."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.fingerprint import checksum_qrels
from modeling_condenser.hub.fetching import HubName
from modeling_condenser.measures.contrasts import mean_interval
from modeling_condenser.measures.significance import holm
from modeling_condenser.repository.card import write_card
from modeling_condenser.repository.publishable import hub_name
from modeling_condenser.repository.results import (
    BaselineComparison,
    EvaluationResult,
    add_result,
)
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.runs.run_folder import describe_machine

from .system_results import SystemResult

_SEARCH = ("index", "search_parameters", "rescore", "index_seed")


def report_on_card(
    model: str | Path,
    result: SystemResult,
    baselines: Sequence[SystemResult],
    *,
    collection: Collection,
    source: str | Path,
    depth: int,
    command: str,
    search: SearchSettings | None = None,
    seed: int = 0,
) -> None:
    """Put a retriever's results, beside each baseline's, into its repository and on its card.

    Results on other collections, splits, depths or by another search stay there.

    Args:
        model: the retriever's folder.
        result: its measures, and where its run is.
        baselines: other systems on the same queries. The p-values are corrected (Holm) over all
            measures and baselines.
        collection: what was searched and judged.
        source: as the recipe names the collection; published if it is a name on the Hub.
        depth: passages retrieved for a query.
        command: that reproduces the figures; it calls the model `OWNER/NAME`.
        search: how was searched; exactly by default.
        seed: of tests and intervals.
    """
    search = search or SearchSettings()
    add_result(
        Path(model),
        EvaluationResult(
            collection=result.collection,
            split=result.split,
            depth=depth,
            n_queries=len(next(iter(result.evaluation.per_query.values()))),
            values=dict(result.evaluation.means),
            **_place_on_hub(source),
            search={} if search.is_exact else _stated(search),
            intervals={
                measure: interval
                for measure, values in result.evaluation.per_query.items()
                if (interval := mean_interval(values, seed=seed))
            },
            comparisons=compare_with_baselines(result, baselines, seed=seed),
            qrels_sha256=checksum_qrels(collection.qrels) if collection.qrels else None,
            fingerprint_passages=result.record.get("identity", {}).get("passages"),
            command=command,
            date=datetime.now(UTC).date().isoformat(),
            versions=describe_machine()["versions"],
        ),
        run_file=result.run_file,
    )
    write_card(Path(model))


def compare_with_baselines(
    result: SystemResult, baselines: Sequence[SystemResult], *, seed: int = 0
) -> list[BaselineComparison]:
    """A system beside others in every measure, corrected together."""
    compared = [
        (baseline.system, measure, comparison)
        for baseline in baselines
        for measure, comparison in result.compare_with(baseline, seed=seed).items()
    ]
    adjusted = holm([comparison.p_value for _, _, comparison in compared])
    return [
        BaselineComparison(name, measure, c.mean_baseline, c.difference, p_value)
        for (name, measure, c), p_value in zip(compared, adjusted, strict=True)
    ]


def name_in_commands(source: str | Path, collection: Collection) -> str:
    """What a published command calls a collection: its name on the Hub, or its folder's."""
    return str(source) if _place_on_hub(source) else collection.name


def _place_on_hub(source: str | Path) -> dict[str, Any]:
    """Fields of a result that say where the collection is on the Hub; none for a folder."""
    if Path(source).exists() or hub_name(str(source)) is None:
        return {}
    return dict(zip(("source", "revision"), HubName.parse(str(source)), strict=True))


def _stated(search: SearchSettings) -> dict[str, Any]:
    """Settings of an approximate search that its result depends on."""
    default = SearchSettings()
    return {
        name: getattr(search, name)
        for name in _SEARCH
        if getattr(search, name) != getattr(default, name)
    }
