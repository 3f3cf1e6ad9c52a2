"""Put a retriever's results on its model card, beside its baselines, with p-values."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from modeling_condenser.collection.collection import Collection, checksum_qrels
from modeling_condenser.hub.card import write_card
from modeling_condenser.hub.model_folder import split_revision
from modeling_condenser.hub.provenance import hub_name
from modeling_condenser.hub.results import BaselineComparison, EvaluationResult, add_result
from modeling_condenser.retrieval.dense import EXACT, SearchSettings
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
    evaluation, measures = result.evaluation, list(result.evaluation.means)
    intervals = {measure: evaluation.interval(measure, seed=seed) for measure in measures}
    compared = correct(
        {
            (baseline.system, measure): comparison
            for baseline in baselines
            for measure in measures
            if (comparison := evaluation.compare(measure, baseline.evaluation, seed=seed))
        }
    )
    source_name, revision = None, None
    if hub_name(str(source)) and not Path(source).exists():
        source_name, revision = split_revision(str(source))
    identity, default = result.record["identity"], SearchSettings()
    changed = {n: identity[n] for n in INDEX_SETTINGS if identity[n] != getattr(default, n)}
    own = EvaluationResult(
        collection=result.collection,
        split=result.split,
        depth=identity["depth"],
        n_queries=evaluation.n_items,
        values=dict(evaluation.means),
        source=source_name,
        revision=revision,
        search=changed if identity["index"] != EXACT else {},
        intervals={m: bounds for m, bounds in intervals.items() if bounds},
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
