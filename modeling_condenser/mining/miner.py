"""Mines the hard negatives of queries: search, filter by rank and score, draw, filter by text."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit
from sentence_transformers import CrossEncoder

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.dpr import AnswerMatcher
from modeling_condenser.collection.passages import PassageIndex
from modeling_condenser.files.models import find_model_folder
from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.retrieval.runs import rank_passages
from modeling_condenser.retrieval.searchers import Searcher

from .hard_negatives import HardNegatives, KnownPassages
from .recipe import MiningRecipe

_JUDGED = 64  # candidates of a query that a cross-encoder scores at once
_RELABELLED = "relabelled_as_positive"


class Candidate(NamedTuple):
    """A passage that was found for a query, with the scores of searcher and cross-encoder."""

    rank: int  # from 1
    passage_id: str
    score: float
    teacher_score: float = math.nan


class RelevanceScorer:
    """Scores pairs of a query and a passage with a cross-encoder.

    The scores find false negatives among candidates (RocketQA, Qu et al. 2020) and are used for
    distillation. A score is the log-odds of "relevant", before the activation function of the
    cross-encoder, so that a threshold means the same for all models.

    Args:
        model: folder or Hub name of a sentence-transformers cross-encoder, or of a transformers
            model for sequence classification with one label (relevant) or two (irrelevant first).
        device: by default the first accelerator, or CPU.
    """

    def __init__(self, model: str | Path, *, device: str | None = None) -> None:
        settings: Any = {"device": device, "activation_fn": torch.nn.Identity()}
        self._model = CrossEncoder(str(find_model_folder(model)), **settings)
        encoder: Any = self._model[0]
        architectures = encoder.model.config.architectures or []
        # If a model has no trained head, transformers creates a random one.
        has_head = any("SequenceClassification" in name for name in architectures)
        if not has_head or self._model.num_labels not in (1, 2):
            raise ValueError(
                f"{model} ({', '.join(architectures)}, {self._model.num_labels} labels) is not a "
                "cross-encoder with 1 or 2 labels, such as cross-encoder/ms-marco-MiniLM-L6-v2."
            )

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the log-odds of relevance of N pairs."""
        logits: Any = self._model.predict([*pairs], show_progress_bar=False)
        scores = np.asarray(logits, dtype=np.float64)  # (N,) or (N, 2)
        return (scores[:, 1] - scores[:, 0] if scores.ndim == 2 else scores).tolist()


@dataclass(frozen=True)
class Miner:
    """Mines queries of one collection; `index` finds its passages."""

    recipe: MiningRecipe
    collection: Collection
    searcher: Searcher
    index: PassageIndex
    scorer: RelevanceScorer | None = None

    def mine(
        self, labelled: Mapping[str, Sequence[str]]
    ) -> tuple[list[dict[str, Any]], Counter[str]]:
        """Mine the hard negatives of queries (query id -> ids of its positives).

        If a query has no positives, its positive is the first passage found that contains an answer
        (Karpukhin et al. 2020, section 4.2); a query without any positive is left out.

        Returns:
            The fields of `HardNegatives` for each query, and the number of candidates that each
            filter dropped.
        """
        queries = {query_id: self.collection.queries[query_id] for query_id in labelled}
        run = self.searcher.search(queries, depth=self.recipe.last_rank)
        lines, dropped = [], Counter[str]()
        for query_id, own in labelled.items():
            ranked = rank_passages(run.get(query_id, {}))
            positives = own or self._find_answered(query_id, [name for name, _ in ranked])[:1]
            if positives:
                lines.append(self._mine_query(query_id, positives, ranked, dropped))
        return lines, dropped

    def _mine_query(
        self,
        query_id: str,
        positives: Sequence[str],
        ranked: Sequence[tuple[str, float]],
        dropped: Counter[str],
    ) -> dict[str, Any]:
        candidates: list[Candidate] = []
        for candidate, why in self._filter_ranked(query_id, positives, ranked):
            if why is None:
                candidates.append(candidate)
            else:
                dropped[why] += 1
        negatives: list[Candidate] = []
        relabelled: list[Candidate] = []
        for candidate, why in self._judge(query_id, draw_order(self.recipe, query_id, candidates)):
            if why is not None:
                dropped[why] += 1
                relabelled += [candidate] if why == _RELABELLED else []
                continue
            negatives.append(candidate)
            if len(negatives) == self.recipe.n_negatives:
                break
        negatives.sort()
        relabelled.sort()
        line = {
            "query_id": query_id,
            "positive_ids": [*positives, *(own.passage_id for own in relabelled)],
            "negative_ids": [own.passage_id for own in negatives],
            "negative_scores": [own.score for own in negatives],
        }
        if self.scorer is not None:
            known = self._score(query_id, positives)
            line["positive_teacher_scores"] = known + [own.teacher_score for own in relabelled]
            line["negative_teacher_scores"] = [own.teacher_score for own in negatives]
        return line

    def _filter_ranked(
        self, query_id: str, positives: Sequence[str], ranked: Sequence[tuple[str, float]]
    ) -> Iterator[tuple[Candidate, str | None]]:
        """Yield the passages found at the recipe's ranks, and why each is no candidate, or None.

        If a positive was not found, a margin leaves no candidate, because its score is unknown.
        """
        scores, margin = dict(ranked), self.recipe.relative_margin
        lowest = min(scores.get(passage_id, -math.inf) for passage_id in positives)
        # lowest * (1 - margin) would be above a negative score.
        highest = math.inf if margin is None else lowest - abs(lowest) * margin
        known_ids, known_contents = self._known.find(query_id, positives)
        taken = ranked[self.recipe.first_rank - 1 : self.recipe.last_rank]
        contents = self.index.content[self.index.rows([name for name, _ in taken])].tolist()
        passages = zip(taken, contents, strict=True)
        for rank, ((name, score), content) in enumerate(passages, start=self.recipe.first_rank):
            why = None
            if name in known_ids:
                why = "positive_or_query"
            elif content in known_contents:
                why = "same_text_as_these"
            elif margin is not None and math.isinf(lowest):
                why = "positive_not_found"
            elif score > highest:
                why = "relative_margin"
            yield Candidate(rank, name, score), why

    @cached_property
    def _known(self) -> KnownPassages:
        return KnownPassages(self.collection, self.index)

    def _judge(
        self, query_id: str, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, str | None]]:
        """Yield candidates with their cross-encoder's score, and why each is no negative, or None.

        Texts are read and scored as far as candidates are asked for.
        """
        below, above = self.recipe.negative_below, self.recipe.positive_above
        for first in range(0, len(candidates), _JUDGED):
            chunk = candidates[first : first + _JUDGED]
            names = [candidate.passage_id for candidate in chunk]
            answered = set(self._find_answered(query_id, names))
            for candidate, score in zip(chunk, self._score(query_id, names), strict=True):
                why, probability = None, expit(score)
                if candidate.passage_id in answered:
                    why = "answer"
                elif above is not None and probability > above:
                    why = _RELABELLED
                elif below is not None and probability >= below:
                    why = "cross_encoder"
                yield candidate._replace(teacher_score=score), why

    def _find_answered(self, query_id: str, passage_ids: Sequence[str]) -> list[str]:
        """Return those of the passages that contain an answer of their query."""
        answers = self.collection.answers.get(query_id) if self.recipe.needs_answers else None
        if not answers:
            return []
        matcher, texts = AnswerMatcher(answers), self.index.read(passage_ids)
        return [passage_id for passage_id in passage_ids if matcher.is_in(texts[passage_id][1])]

    def _score(self, query_id: str, passage_ids: Sequence[str]) -> list[float]:
        """Score passages for a query; NaN without a cross-encoder."""
        if self.scorer is None:
            return [math.nan] * len(passage_ids)
        query, texts = self.collection.queries[query_id], self._texts(passage_ids)
        return self.scorer.score([(query, texts[passage_id]) for passage_id in passage_ids])

    def _texts(self, passage_ids: Iterable[str]) -> dict[str, str]:
        """Return passage id -> title and text, joined."""
        found = self.index.read(passage_ids)
        return {name: f"{title} {text}" if title else text for name, (title, text) in found.items()}

    def examples(self, mined: Iterable[HardNegatives]) -> Iterator[str]:
        """Make the lines of examples.jsonl, one per query and positive, if there are negatives."""
        for entry in mined:
            texts = self._texts([*entry.positive_ids, *entry.negative_ids])
            for place, positive in enumerate(entry.positive_ids if entry.negative_ids else ()):
                example: dict[str, object] = {
                    "query": self.collection.queries[entry.query_id],
                    "positive": texts[positive],
                    "negatives": [texts[negative] for negative in entry.negative_ids],
                }
                if entry.positive_teacher_scores is not None:
                    example["positive_score"] = entry.positive_teacher_scores[place]
                    example["negative_scores"] = entry.negative_teacher_scores
                yield json.dumps(example, ensure_ascii=False) + "\n"


def draw_order(
    recipe: MiningRecipe, query_id: str, candidates: Sequence[Candidate]
) -> Sequence[Candidate]:
    """Order a query's candidates: the first ones become negatives.

    The random number of a rank depends only on seed, query id and rank. So a larger draw begins
    with the smaller one, and dropping a candidate does not reorder the others.
    """
    if recipe.sampling == "top":
        return candidates
    digest = hashlib.blake2b(query_id.encode(), digest_size=7).digest()
    key = random_keys(recipe.seed, int.from_bytes(digest, "little"))
    [draws] = uniforms(key, max((own.rank for own in candidates), default=0))  # one per rank
    return sorted(candidates, key=lambda candidate: draws[candidate.rank - 1])
