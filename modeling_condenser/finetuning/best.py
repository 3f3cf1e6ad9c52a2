"""Keeps the weights of a fine-tuning that rank dev queries best: a checkpoint's, or the start's."""

import logging
from typing import Any

from sentence_transformers.base.evaluation import BaseEvaluator
from transformers import TrainerCallback, TrainerState, TrainingArguments

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.reduce import sample_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.small import measure_small
from modeling_condenser.evaluation.verdict import MEASURE

logger = logging.getLogger(__name__)

METRIC = f"eval_{MEASURE}"  # as the log names it


class DevRanking(BaseEvaluator):
    """nDCG@10 of a retriever in training, on up to 200 dev queries and 1,000 passages."""

    def __init__(self, retriever: Retriever, dev: Collection, *, seed: int):
        super().__init__()
        self.retriever = retriever
        self.dev = sample_collection(dev, n_queries=200, n_passages=1000, seed=seed)

    def __call__(self, *_: Any, **__: Any) -> dict[str, float]:
        return {METRIC: measure_small(self.retriever, self.dev, [MEASURE]).means[MEASURE]}


class KeepBest(TrainerCallback):
    """Measures the start, and puts its weights back if no checkpoint ranks dev queries better."""

    def __init__(self, trainer: Any):
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        if state.best_metric is None:  # a checkpoint has it
            dev = self.trainer.evaluator.dev
            logger.info(
                "Ranking %d dev queries among %d passages, now and with each evaluation.",
                *(len(dev.queries), len(dev.passages)),
            )
            state.best_metric = self.trainer.evaluate()[METRIC]
            logger.info("The start: %s %.3f on dev queries.", MEASURE, state.best_metric)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        step = state.best_global_step or 0
        self.trainer.facts |= {"best_step": step, "best_dev_nDCG@10": state.best_metric}
        if step == 0:
            logger.warning("No step ranks the dev queries better than the start, which is kept.")
            self.trainer.restore_start()
        logger.info("Keeping step %d: nDCG@10 %.3f on dev queries.", step, state.best_metric)
