"""Results on model cards: what a retriever reached, beside its baselines, with p-values."""

from collections.abc import Sequence
from pathlib import Path

from modeling_condenser.measures.significance import holm
from modeling_condenser.repository.card import ReportedResult, write_card

from .system_results import SystemResult


def report_on_card(
    model: str | Path,
    result: SystemResult,
    baselines: Sequence[SystemResult],
    *,
    commands: Sequence[str],
) -> None:
    """Put a retriever's results, beside each baseline's, on its model card.

    Args:
        model: the retriever's folder.
        result: its measures.
        baselines: other systems on the same queries. The p-values are corrected (Holm) over all
            measures and baselines.
        commands: that reproduce the figures.
    """
    compared = [
        (baseline, measure, comparison)
        for baseline in baselines
        for measure, comparison in result.compare_with(baseline).items()
    ]
    adjusted = holm([comparison.p_value for _, _, comparison in compared])
    reported = [
        ReportedResult(
            result.collection,
            result.split,
            measure,
            comparison.mean_system,
            baseline.system,
            comparison.mean_baseline,
            p_value,
        )
        for (baseline, measure, comparison), p_value in zip(compared, adjusted, strict=True)
    ]
    if not baselines:
        reported = [
            ReportedResult(result.collection, result.split, measure, value)
            for measure, value in result.evaluation.means.items()
        ]
    write_card(Path(model), results=reported, commands=commands)
