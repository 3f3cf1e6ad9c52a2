"""Mines the hard negatives of queries: search, filter by rank and score, draw, filter by text.

The margins are those of NV-Retriever (Moreira et al. 2024: TopK-MarginPos and TopK-PercPos), named
and computed as in sentence-transformers' `mine_hard_negatives`, which needs all texts and vectors
in memory.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, islice
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
from modeling_condenser.retrieval.systems import Searcher

from .hard_negatives import HardNegatives, KnownPassages
from .recipe import MiningRecipe


class Candidate(NamedTuple):
    """A passage that was found for a query, with the scores of searcher and cross-encoder."""

    rank: int  # from 1
    passage_id: str
    score: float
    teacher_score: float = math.nan


@dataclass(frozen=True)
class Mined:
    """A query, its candidates in the order of judging, and the chosen candidates."""

    query_id: str
    positive_ids: Sequence[str]
    candidates: Sequence[Candidate]
    negatives: list[Candidate] = field(default_factory=list)
    relabelled: list[Candidate] = field(default_factory=list)  # positives to the cross-encoder


class RelevanceScorer:
    """Scores pairs of a query and a passage with a cross-encoder.

    The scores find false negatives among candidates (RocketQA, Qu et al. 2020) and are used for
    distillation. A score is the log-odds of "relevant", before the activation function of the
    cross-encoder, so that a threshold means the same for all models.

    Args:
        model: folder or Hub name of a sentence-transformers cross-encoder, or of a transformers
            model for sequence classification with one label (relevant) or two (irrelevant first).
        max_length: maximum tokens of a pair; the model's own by default.
        batch_size: pairs to score at once.
        device: by default the first accelerator, or CPU.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        max_length: int | None = None,
        batch_size: int = 64,
        device: str | None = None,
    ) -> None:
        folder, self._batch_size = find_model_folder(model), batch_size
        self._model = CrossEncoder(str(folder), max_length=max_length, device=device)
        encoder: Any = self._model[0]
        architectures = encoder.model.config.architectures or []
        # If a model has no trained head, transformers creates a random one.
        has_head = any("SequenceClassification" in name for name in architectures)
        if not has_head or self._model.num_labels not in (1, 2):
            raise ValueError(
                f"{model} ({', '.join(architectures)}, {self._model.num_labels} labels) is not a "
                "cross-encoder with 1 or 2 labels, such as cross-encoder/ms-marco-MiniLM-L6-v2."
            )

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return the log-odds of relevance, (N,) float64, for texts of query and passage."""
        if not pairs:
            return np.empty(0)
        settings = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False}
        logits: Any = self._model.predict(list(pairs), batch_size=self._batch_size, **settings)
        scores = logits.astype(np.float64)  # (N,) or (N, 2)
        return scores[:, 1] - scores[:, 0] if scores.ndim == 2 else scores


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
        mined, dropped = [], Counter[str]()
        for query_id, own in labelled.items():
            found = run.get(query_id, {})
            if own := own or self._first_with_answer(query_id, found):
                excluded = self._known.find(query_id, own)
                given = (self.recipe, found, own, self.index, dropped)
                candidates = find_candidates(*given, excluded=excluded)
                mined.append(Mined(query_id, own, draw_order(self.recipe, query_id, candidates)))
        self._judge(mined, dropped)
        pairs = [(entry.query_id, positive) for entry in mined for positive in entry.positive_ids]
        scores = iter(self._score(pairs).tolist())
        lines: list[dict[str, Any]] = []
        for entry in mined:
            negatives, relabelled = sorted(entry.negatives), sorted(entry.relabelled)
            line = {
                "query_id": entry.query_id,
                "positive_ids": [*entry.positive_ids, *(own.passage_id for own in relabelled)],
                "negative_ids": [own.passage_id for own in negatives],
                "negative_scores": [own.score for own in negatives],
            }
            if self.scorer is not None:
                known = list(islice(scores, len(entry.positive_ids)))
                line["positive_teacher_scores"] = known + [own.teacher_score for own in relabelled]
                line["negative_teacher_scores"] = [own.teacher_score for own in negatives]
            lines.append(line)
        return lines, dropped

    @cached_property
    def _known(self) -> KnownPassages:
        return KnownPassages(self.collection, self.index)

    @cached_property
    def _matchers(self) -> dict[str, AnswerMatcher]:
        answers = self.collection.answers if self.recipe.needs_answers else {}
        match = self.recipe.answer_match
        return {query_id: AnswerMatcher(own, match=match) for query_id, own in answers.items()}

    def _first_with_answer(self, query_id: str, found: Mapping[str, float]) -> list[str]:
        ranked = [passage_id for passage_id, _ in rank_passages(found)]
        has_answer = self._have_answers([(query_id, passage_id) for passage_id in ranked])
        return list(compress(ranked, has_answer))[:1]

    def _have_answers(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return whether passages contain an answer of their query, (N,) bool."""
        if not self._matchers:
            return np.zeros(len(pairs), dtype=bool)
        none, texts = AnswerMatcher([]), self.index.read(passage_id for _, passage_id in pairs)
        found = [self._matchers.get(q, none).is_in(texts[p][1]) for q, p in pairs]
        return np.array(found, dtype=bool)

    def _judge(self, mined: Sequence[Mined], dropped: Counter[str]) -> None:
        """Filter candidates by text, in their order, until each query has n negatives.

        A cross-encoder is slow, and fastest with many pairs at once. So the next n candidates of
        all queries that need more negatives are judged together.
        """
        below, above = self.recipe.negative_below, self.recipe.positive_above
        longest = max((len(entry.candidates) for entry in mined), default=0)
        n = self.recipe.n_negatives or max(longest, 1)
        for first in range(0, longest, n):
            batch = [
                (entry, candidate)
                for entry in mined
                if len(entry.negatives) < n
                for candidate in entry.candidates[first : first + n]
            ]
            pairs = [(entry.query_id, candidate.passage_id) for entry, candidate in batch]
            has_answer = self._have_answers(pairs)
            scores = np.full(len(pairs), math.nan)
            scores[~has_answer] = self._score(list(compress(pairs, ~has_answer)))
            judged = zip(batch, has_answer, scores.tolist(), expit(scores), strict=True)
            for (entry, candidate), answered, score, probability in judged:
                if len(entry.negatives) == n:
                    continue
                if answered:
                    dropped["answer"] += 1
                elif above is not None and probability > above:
                    dropped["relabelled_as_positive"] += 1
                    entry.relabelled.append(candidate._replace(teacher_score=score))
                elif below is not None and probability >= below:
                    dropped["cross_encoder"] += 1
                else:
                    entry.negatives.append(candidate._replace(teacher_score=score))

    def _score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Score pairs of query and passage ids, (N,); NaN without a cross-encoder."""
        if self.scorer is None:
            return np.full(len(pairs), math.nan)
        texts = self._texts(passage_id for _, passage_id in pairs)
        return self.scorer.score([(self.collection.queries[q], texts[p]) for q, p in pairs])

    def _texts(self, passage_ids: Iterable[str]) -> dict[str, str]:
        """Return passage id -> title and text, joined."""
        separator = self.recipe.title_separator
        return {
            passage_id: f"{title}{separator}{text}" if title else text
            for passage_id, (title, text) in self.index.read(passage_ids).items()
        }

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

    `excluded` is from `KnownPassages`. Margins refer to the lowest score of the positives. If a
    positive was not found, a margin leaves no candidate, because the score is unknown.
    """
    lowest = min(scores.get(passage_id, -math.inf) for passage_id in positives)
    ranked = rank_passages(scores)[recipe.first_rank - 1 : recipe.last_rank]
    contents = index.content[index.rows([passage_id for passage_id, _ in ranked])].tolist()
    excluded_ids, excluded_contents = excluded
    absolute, relative = recipe.absolute_margin, recipe.relative_margin
    candidates = []
    passages = zip(ranked, contents, strict=True)
    for rank, ((passage_id, score), content) in enumerate(passages, start=recipe.first_rank):
        if passage_id in excluded_ids:
            dropped["positive_or_query"] += 1
        elif content in excluded_contents:
            dropped["same_text_as_these"] += 1
        elif recipe.min_score is not None and score < recipe.min_score:
            dropped["min_score"] += 1
        elif recipe.max_score is not None and score > recipe.max_score:
            dropped["max_score"] += 1
        elif math.isinf(lowest) and (absolute is not None or relative is not None):
            dropped["positive_not_found"] += 1
        elif absolute is not None and score > lowest - absolute:
            dropped["absolute_margin"] += 1
        # lowest * (1 - margin) would be above a negative lowest score.
        elif relative is not None and score > lowest - abs(lowest) * relative:
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
