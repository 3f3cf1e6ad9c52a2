"""Keeps the weights of a fine-tuning that rank dev queries best: a checkpoint's, or the start's."""

import logging
from typing import Any

import numpy as np
from ir_measures import calc_aggregate, nDCG
from sentence_transformers.base.evaluation import BaseEvaluator
from transformers import TrainerCallback, TrainerState, TrainingArguments

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.reduce import reduce_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.retrieval.dense import search_exact_arrays
from modeling_condenser.retrieval.runs import drop_own_passages, rank_passages

logger = logging.getLogger(__name__)

METRIC = "eval_nDCG@10"  # as the log names it
_DEPTH = 11  # one of which may be the query itself
_QUERIES, _OTHERS = 200, 800  # that are sampled


class DevRanking(BaseEvaluator):
    """nDCG@10 of a retriever in training, on up to 200 dev queries.

    They search the passages that are judged for them, and 800 random others.
    """

    def __init__(self, retriever: Retriever, dev: Collection, *, seed: int):
        super().__init__()
        self.retriever, generator = retriever, np.random.default_rng(seed)
        answerable = [name for name, grades in dev.qrels.items() if max(grades.values()) > 0]
        names = generator.permutation(answerable)[:_QUERIES].tolist()
        qrels = {name: dev.qrels[name] for name in names}
        self.dev = reduce_collection(dev, qrels, n_others=_OTHERS, generator=generator)

    def __call__(self, *_: Any, **__: Any) -> dict[str, float]:
        run = search_exact_arrays(
            self.retriever.encode_passages(self.dev.passages),
            list(self.dev.passages["_id"]),
            query_embeddings=self.retriever.encode_queries(list(self.dev.queries.values())),
            query_ids=list(self.dev.queries),
            depth=min(_DEPTH, len(self.dev.passages)),
        )
        # Ranks for scores, because tools order ties in different ways.
        ranks = {
            query: {passage: -float(rank) for rank, (passage, _) in enumerate(rank_passages(found))}
            for query, found in drop_own_passages(run, self.dev.qrels).items()
        }
        return {METRIC: calc_aggregate([nDCG @ 10], self.dev.qrels, ranks)[nDCG @ 10]}


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

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        step = state.best_global_step or 0
        self.trainer.facts |= {"best_step": step, "best_dev_nDCG@10": state.best_metric}
        if step == 0:
            logger.warning("No step ranks the dev queries better than the start, which is kept.")
            self.trainer.restore_start()
        logger.info("Keeping step %d: nDCG@10 %.3f on dev queries.", step, state.best_metric)
