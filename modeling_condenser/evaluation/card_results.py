"""Put a retriever's results on its model card, beside its baselines, with p-values."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from modeling_condenser.collection.collection import Collection, checksum_qrels
from modeling_condenser.hub.card import write_card
from modeling_condenser.hub.fetching import HubName
from modeling_condenser.hub.provenance import hub_name
from modeling_condenser.hub.results import BaselineComparison, EvaluationResult, add_result
from modeling_condenser.retrieval.dense import EXACT
from modeling_condenser.runs.run_folder import describe_machine

from .significance import correct
from .system_results import INDEX_SETTINGS, SystemResult


def report_on_card(
    model: str | Path,
    result: SystemResult,
    baselines: Sequence[SystemResult],
    *,
    collection: Collection,
    source: str | Path,
    command: str,
    seed: int = 0,
) -> None:
    """Put a retriever's results, beside each baseline's, into its repository and on its card.

    Results on other collections, splits, depths or by another search are kept. The p-values are
    corrected (Holm) over all measures and baselines.

    Args:
        model: the retriever's folder.
        result: of `evaluate_system`.
        baselines: other systems on the same queries.
        collection: the collection that was searched.
        source: of the collection, as in the recipe; published if it is a name on the Hub.
        command: that reproduces the figures; it calls the model `OWNER/NAME`.
        seed: of the resampling in tests and intervals.
    """
    evaluation, identity = result.evaluation, result.record["identity"]
    intervals = {m: evaluation.interval(m, seed=seed) for m in evaluation.means}
    compared = correct(
        {
            (baseline.system, measure): evaluation.compare(measure, baseline.evaluation, seed=seed)
            for baseline in baselines
            for measure in evaluation.means
        }
    )
    is_public = hub_name(str(source)) and not Path(source).exists()
    source_name, revision = HubName.parse(str(source)) if is_public else (None, None)
    changed = {name: identity[name] for name in INDEX_SETTINGS if identity[name]}
    own = EvaluationResult(
        collection=result.collection,
        split=result.split,
        depth=identity["depth"],
        n_queries=evaluation.n_items,
        values=dict(evaluation.means),
        source=source_name,
        revision=revision,
        search=changed if identity["index"] != EXACT else {},
        intervals={measure: bounds for measure, bounds in intervals.items() if bounds},
        comparisons=[
            BaselineComparison(name, measure, c.mean_baseline, c.difference, c.p_adjusted)
            for (name, measure), c in compared.items()
        ],
        qrels_sha256=checksum_qrels(collection.qrels) if collection.qrels else None,
        fingerprint_passages=identity["passages"],
        command=command,
        date=datetime.now(UTC).date().isoformat(),
        versions=describe_machine()["versions"],
    )
    add_result(Path(model), own, run_file=result.run_file)
    write_card(Path(model))
