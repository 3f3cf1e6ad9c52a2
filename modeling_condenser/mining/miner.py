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
from modeling_condenser.model_files.model_folder import find_model_folder
from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.retrieval.runs import rank_passages
from modeling_condenser.retrieval.searchers import Searcher

from .hard_negatives import HardNegatives, KnownPassages
from .recipe import MiningRecipe

_JUDGED = 64  # candidates of a query that a cross-encoder scores at once


class Candidate(NamedTuple):
    """A passage that was found for a query, with the scores of searcher and cross-encoder."""

    rank: int  # from 1
    passage_id: str
    score: float
    teacher_score: float = math.nan


class RelevanceScorer:
    """Scores passages for a query with a cross-encoder.

    The scores find false negatives among candidates (RocketQA, Qu et al. 2020) and are used for
    distillation. A score is the log-odds of "relevant", before the activation function of the
    cross-encoder, so that a threshold means the same for all models.

    Args:
        model: folder or Hub name of a sentence-transformers cross-encoder, or of a transformers
            model for sequence classification with one label (relevant) or two (irrelevant first).
        device: by default the first accelerator, or CPU.
    """

    def __init__(self, model: str | Path, *, device: str | None = None) -> None:
        self._model = CrossEncoder(str(find_model_folder(model)), device=device)
        encoder: Any = self._model[0]
        architectures = encoder.model.config.architectures or []
        # If a model has no trained head, transformers creates a random one.
        has_head = any("SequenceClassification" in name for name in architectures)
        if not has_head or self._model.num_labels not in (1, 2):
            raise ValueError(
                f"{model} ({', '.join(architectures)}, {self._model.num_labels} labels) is not a "
                "cross-encoder with 1 or 2 labels, such as cross-encoder/ms-marco-MiniLM-L6-v2."
            )

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return the log-odds of relevance of N passages."""
        if not passages:
            return []
        settings: Any = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False}
        logits: Any = self._model.predict([(query, text) for text in passages], **settings)
        scores = logits.astype(np.float64)  # (N,) or (N, 2)
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
            found = run.get(query_id, {})
            if positives := own or self._first_with_answer(query_id, found):
                excluded = self._known.find(query_id, positives)
                given = (self.recipe, found, positives, self.index, dropped)
                candidates = find_candidates(*given, excluded=excluded)
                ordered = draw_order(self.recipe, query_id, candidates)
                lines.append(self._judge(query_id, positives, ordered, dropped))
        return lines, dropped

    @cached_property
    def _known(self) -> KnownPassages:
        return KnownPassages(self.collection, self.index)

    def _first_with_answer(self, query_id: str, found: Mapping[str, float]) -> list[str]:
        ranked = [passage_id for passage_id, _ in rank_passages(found)]
        return list(self._find_answered(query_id, ranked))[:1]

    def _find_answered(self, query_id: str, passage_ids: Sequence[str]) -> list[str]:
        """Return those of the passages that contain an answer of their query."""
        answers = self.collection.answers.get(query_id) if self.recipe.needs_answers else None
        if not answers:
            return []
        matcher, texts = AnswerMatcher(answers), self.index.read(passage_ids)
        return [passage_id for passage_id in passage_ids if matcher.is_in(texts[passage_id][1])]

    def _judge(
        self,
        query_id: str,
        positives: Sequence[str],
        candidates: Sequence[Candidate],
        dropped: Counter[str],
    ) -> dict[str, Any]:
        """Filter candidates by text, in their order, until there are n negatives: a line."""
        negatives: list[Candidate] = []
        relabelled: list[Candidate] = []
        n = self.recipe.n_negatives or len(candidates)
        for first in range(0, len(candidates), _JUDGED):
            if len(negatives) < n:
                chunk = candidates[first : first + _JUDGED]
                self._judge_chunk(query_id, chunk, negatives, relabelled, dropped, n=n)
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

    def _judge_chunk(
        self,
        query_id: str,
        candidates: Sequence[Candidate],
        negatives: list[Candidate],
        relabelled: list[Candidate],
        dropped: Counter[str],
        *,
        n: int,
    ) -> None:
        """Add some candidates to the negatives, until there are n, or to the relabelled ones."""
        below, above = self.recipe.negative_below, self.recipe.positive_above
        passage_ids = [candidate.passage_id for candidate in candidates]
        answered = set(self._find_answered(query_id, passage_ids))
        scores = self._score(query_id, passage_ids)
        for candidate, score in zip(candidates, scores, strict=True):
            if len(negatives) == n:
                return
            probability = expit(score)
            if candidate.passage_id in answered:
                dropped["answer"] += 1
            elif above is not None and probability > above:
                dropped["relabelled_as_positive"] += 1
                relabelled.append(candidate._replace(teacher_score=score))
            elif below is not None and probability >= below:
                dropped["cross_encoder"] += 1
            else:
                negatives.append(candidate._replace(teacher_score=score))

    def _score(self, query_id: str, passage_ids: Sequence[str]) -> list[float]:
        """Score passages for a query; NaN without a cross-encoder."""
        if self.scorer is None:
            return [math.nan] * len(passage_ids)
        texts = self._texts(passage_ids)
        return self.scorer.score(self.collection.queries[query_id], [texts[p] for p in passage_ids])

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


def find_candidates(
    recipe: MiningRecipe,
    scores: Mapping[str, float],
    positives: Sequence[str],
    index: PassageIndex,
    dropped: Counter[str],
    *,
    excluded: tuple[set[str], set[int]],
) -> list[Candidate]:
    """Find the candidates of a query; `dropped` counts the passages that each filter drops.

    `excluded` is from `KnownPassages`. If a positive was not found, a margin leaves no candidate,
    because its score is unknown.
    """
    lowest = min(scores.get(passage_id, -math.inf) for passage_id in positives)
    ranked = rank_passages(scores)[recipe.first_rank - 1 : recipe.last_rank]
    contents = index.content[index.rows([passage_id for passage_id, _ in ranked])].tolist()
    excluded_ids, excluded_contents = excluded
    margin, highest = recipe.relative_margin, math.inf
    if margin is not None and not math.isinf(lowest):
        highest = lowest - abs(lowest) * margin  # lowest * (1 - margin) would be above a negative
    candidates = []
    passages = zip(ranked, contents, strict=True)
    for rank, ((passage_id, score), content) in enumerate(passages, start=recipe.first_rank):
        if passage_id in excluded_ids:
            dropped["positive_or_query"] += 1
        elif content in excluded_contents:
            dropped["same_text_as_these"] += 1
        elif margin is not None and math.isinf(lowest):
            dropped["positive_not_found"] += 1
        elif score > highest:
            dropped["relative_margin"] += 1
        else:
            candidates.append(Candidate(rank, passage_id, score))
    return candidates


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
