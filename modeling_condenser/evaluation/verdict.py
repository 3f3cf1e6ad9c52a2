"""Whether a changed model is better than its start, as one word with its figures."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_dev
from modeling_condenser.collection.reduce import reduce_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.finetuning.finetune import open_trainable
from modeling_condenser.finetuning.recipe import FinetuningRecipe
from modeling_condenser.publishing.card import write_card
from modeling_condenser.publishing.provenance import read_provenance, write_provenance
from modeling_condenser.runs.recipe import fill

from .significance import ALPHA, Comparison, compare
from .small import measure_small

logger = logging.getLogger(__name__)

MEASURE = "nDCG@10"
_QUERIES, _OTHERS = 500, 1500  # that `judge` samples

Outcome = Literal["better", "no difference", "worse"]


@dataclass(frozen=True)
class Verdict:
    """A comparison of a changed model with its start on the same queries.

    Attributes:
        comparison: of the model (system) with its start (baseline).
        measure: such as "nDCG@10".
        queries: what the queries are, such as "300 judged dev queries".
        margin: least difference that counts as better.
    """

    comparison: Comparison
    measure: str
    queries: str
    margin: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """Better or worse if the difference is significant, and for better above the margin."""
        if self.comparison.p_value < ALPHA and self.comparison.difference > self.margin:
            return "better"
        if self.comparison.p_value < ALPHA and self.comparison.difference < 0:
            return "worse"
        return "no difference"

    def to_dict(self) -> dict[str, Any]:
        """The figures, for a file."""
        return {"outcome": self.outcome, **vars(self), "comparison": self.comparison._asdict()}

    def __str__(self) -> str:
        own = self.comparison
        low, high = own.interval or (float("nan"),) * 2
        return (
            f"{self.outcome}: {self.measure} {own.mean_system:.3f} against {own.mean_baseline:.3f} "
            f"of the start, {own.difference:+.3f} (95 % interval {low:+.3f} to {high:+.3f}, "
            f"p = {own.p_value:.2g}) on {self.queries}"
        )


def judge(start: Retriever, result: Retriever, dev: Collection, *, seed: int = 0) -> Verdict:
    """Compare a retriever with its start on up to 500 dev queries, without a whole encoding.

    Both search the passages that are judged for these queries, and 1,500 random others.
    """
    generator, names = np.random.default_rng(seed), list(dev.qrels)
    if len(names) > _QUERIES:
        chosen = generator.choice(len(names), _QUERIES, replace=False)
        names = [names[i] for i in sorted(chosen)]
    qrels = {name: dev.qrels[name] for name in names}
    small = reduce_collection(dev, qrels, n_others=_OTHERS, generator=generator)
    before, after = (
        measure_small(retriever, small, [MEASURE]).per_query[MEASURE]
        for retriever in (start, result)
    )
    return Verdict(
        compare(after, before, seed=seed),
        measure=MEASURE,
        queries=f"{len(names)} dev queries and {len(small.passages):,} passages",
    )


def judge_finetuned(settings: Mapping[str, Any], folder: Path) -> str | None:
    """Judge a fine-tuned retriever on its collection's dev queries; the card keeps the verdict.

    Args:
        settings: of the fine-tuning.
        folder: of the retriever.

    Returns:
        The verdict; None, with a warning, if the collection has no dev queries.
    """
    *stages, own = read_provenance(folder)
    if "verdict" in own.run:
        return str(own.run["verdict"])
    collection = settings["collection"]
    dev = load_dev(collection, judged="train")
    if dev is None or not dev.qrels:
        logger.warning(
            "%s has no dev queries, so nobody knows whether the fine-tuning helped. Add a split "
            "dev (qrels/dev.tsv), or compare start and result with `condenser evaluate`.",
            collection,
        )
        return None
    names = FinetuningRecipe.__annotations__.keys() & settings.keys()
    (recipe,) = fill({name: settings[name] for name in names}, FinetuningRecipe)
    start = open_trainable(recipe.encoder, recipe.contract_changes)
    verdict = str(judge(start, Retriever(folder), dev))
    write_provenance(folder, [*stages, replace(own, run={**own.run, "verdict": verdict})])
    write_card(folder)
    return verdict
