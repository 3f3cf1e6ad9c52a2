"""Put a retriever's results on its model card, beside its baselines, with p-values."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import Collection, checksum_qrels
from modeling_condenser.hub.card import write_card
from modeling_condenser.hub.fetching import HubName
from modeling_condenser.hub.provenance import hub_name
from modeling_condenser.hub.results import (
    BaselineComparison,
    EvaluationResult,
    add_result,
)
from modeling_condenser.retrieval.dense import SearchSettings
from modeling_condenser.runs.run_folder import describe_machine

from .significance import correct, mean_interval
from .system_results import INDEX_SETTINGS, SystemResult


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

    Results on other collections, splits, depths or by another search are kept. The p-values are
    corrected (Holm) over all measures and baselines.

    Args:
        model: the retriever's folder.
        result: its measures and run file.
        baselines: other systems on the same queries.
        collection: the collection that was searched.
        source: of the collection, as in the recipe; published if it is a name on the Hub.
        depth: passages retrieved for a query.
        command: that reproduces the figures; it calls the model `OWNER/NAME`.
        search: exact search by default.
        seed: of the resampling in tests and intervals.
    """
    per_query = result.evaluation.per_query
    intervals = {measure: mean_interval(values, seed=seed) for measure, values in per_query.items()}
    compared = correct(
        {
            (baseline.system, measure): comparison
            for baseline in baselines
            for measure, comparison in result.compare_with(baseline, seed=seed).items()
        }
    )
    search, default = search or SearchSettings(), SearchSettings()
    names = [n for n in INDEX_SETTINGS if getattr(search, n) != getattr(default, n)]
    own = EvaluationResult(
        collection=result.collection,
        split=result.split,
        depth=depth,
        n_queries=len(next(iter(per_query.values()))),
        values=dict(result.evaluation.means),
        **place_on_hub(source),
        search={} if search.is_exact else {name: getattr(search, name) for name in names},
        intervals={m: bounds for m, bounds in intervals.items() if math.isfinite(bounds[0])},
        comparisons=[
            BaselineComparison(name, measure, c.mean_baseline, c.difference, c.p_adjusted)
            for (name, measure), c in compared.items()
        ],
        qrels_sha256=checksum_qrels(collection.qrels) if collection.qrels else None,
        fingerprint_passages=result.record.get("identity", {}).get("passages"),
        command=command,
        date=datetime.now(UTC).date().isoformat(),
        versions=describe_machine()["versions"],
    )
    add_result(Path(model), own, run_file=result.run_file)
    write_card(Path(model))


def place_on_hub(source: str | Path) -> dict[str, Any]:
    """Name and revision of a collection on the Hub; empty for a local folder."""
    if Path(source).exists() or hub_name(str(source)) is None:
        return {}
    return dict(zip(("source", "revision"), HubName.parse(str(source)), strict=True))
