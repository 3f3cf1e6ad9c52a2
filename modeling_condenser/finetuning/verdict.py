"""Whether fine-tuning made a model better than its start, by dev queries; its card says so."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.verdict import judge
from modeling_condenser.files.settings import parse_settings
from modeling_condenser.publishing.card import write_card
from modeling_condenser.publishing.provenance import read_provenance, write_provenance

from .finetune import keep_similarity, load_dev_queries, open_trainable
from .recipe import FinetuningRecipe

logger = logging.getLogger(__name__)


def judge_finetuned(settings: Mapping[str, Any], folder: Path) -> str | None:
    """Judge a fine-tuned retriever on its collection's dev queries; the card keeps the verdict.

    Returns:
        The verdict; None, with a warning, if the collection has no dev queries.
    """
    *stages, own = read_provenance(folder)
    if "verdict" in own.run:
        return str(own.run["verdict"])
    dev = load_dev_queries(settings)
    if dev is None:
        logger.warning(
            "%s has no dev queries with relevant passages, so nobody knows whether the fine-tuning "
            "helped. Add a split dev (qrels/dev.tsv), or compare start and result with `condenser "
            "evaluate`.",
            settings["collection"],
        )
        return None
    names = FinetuningRecipe.__annotations__.keys() & settings.keys()
    (recipe,) = parse_settings({name: settings[name] for name in names}, FinetuningRecipe)
    start = open_trainable(recipe.encoder, keep_similarity(recipe).contract_changes)
    judged = judge(start, Retriever(folder), dev)
    if own.run.get("best_step"):
        note = "; queries of the dev split chose the step, too, so the gain is overstated"
        judged = replace(judged, queries=judged.queries + note)
    verdict = str(judged)
    write_provenance(folder, [*stages, replace(own, run={**own.run, "verdict": verdict})])
    write_card(folder)
    return verdict
