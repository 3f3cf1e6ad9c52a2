"""Mine the hard negatives of some queries: search, filter by rank and score, draw, filter by text.

Margins are NV-Retriever's positive-aware ones (Moreira et al. 2024: TopK-MarginPos and
TopK-PercPos), named and computed as in sentence-transformers' `mine_hard_negatives`, which needs
all texts and vectors in memory.

Candidates are tables with the columns query_id, passage_id, rank (from 1), score (of the searcher),
teacher_score (of the cross-encoder, or NaN) and reason (why it is not a negative; "" if it is one).
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.dpr import AnswerMatcher
from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.retrieval.runs import Run, rank_passages
from modeling_condenser.retrieval.systems import Searcher

from .cross_encoder import RelevanceScorer
from .hard_negatives import HardNegatives
from .passage_index import PassageIndex
from .recipe import MiningRecipe

RELABELLED = "relabelled_as_positive"
_DTYPES = {
    **{"query_id": object, "passage_id": object, "rank": int, "score": float},
    **{"is_positive": bool, "lowest": float},
}


@dataclass(frozen=True)
class Miner:
    """Mines queries of one collection; `index` is of its passages."""

    recipe: MiningRecipe
    collection: Collection
    searcher: Searcher
    index: PassageIndex
    scorer: RelevanceScorer | None = None

    def mine(
        self, labelled: Mapping[str, Sequence[str]]
    ) -> tuple[list[dict[str, Any]], Counter[str]]:
        """Mine the hard negatives of queries.

        Args:
            labelled: query id -> ids of its positives; of a query without any, the first passage
                found with an answer is the positive (Karpukhin et al. 2020, section 4.2).

        Returns:
            The fields of `HardNegatives` for each query with a positive, in their order; and the
            number of candidates that each filter dropped.
        """
        queries = {query_id: self.collection.queries[query_id] for query_id in labelled}
        run = self.searcher.search(queries, depth=self.recipe.last_rank)
        positives = {}
        for query_id, own in labelled.items():
            if own := own or self._first_with_answer(query_id, run.get(query_id, {})):
                positives[query_id] = own
        candidates = find_candidates(self.recipe, run, positives, self.index)
        passing = draw_order(self.recipe, candidates[candidates["reason"] == ""])
        judged = self._judge_in_turn(passing).sort_values("rank", kind="stable")
        dropped = Counter([*candidates["reason"], *judged["reason"]])
        del dropped[""]

        pairs = [(query_id, own) for query_id, ids in positives.items() for own in ids]
        known = pd.DataFrame(pairs, columns=["query_id", "passage_id"])
        known["teacher_score"] = self._score(pairs)
        rows = {
            "positive": pd.concat([known, judged[judged["reason"] == RELABELLED]]),
            "negative": judged[judged["reason"] == ""],
        }
        columns = {f"{side}_ids": (table, "passage_id") for side, table in rows.items()}
        columns["negative_scores"] = (rows["negative"], "score")
        if self.scorer is not None:
            for side, table in rows.items():
                columns[f"{side}_teacher_scores"] = (table, "teacher_score")
        lists = {
            name: table.groupby("query_id")[column].agg(list)
            for name, (table, column) in columns.items()
        }
        lines = [
            {"query_id": query_id, **{name: own.get(query_id, []) for name, own in lists.items()}}
            for query_id in positives
        ]
        return lines, dropped

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
        """Whether passages contain an answer of their query, (N,) bool."""
        if not self._matchers:
            return np.zeros(len(pairs), dtype=bool)
        none, texts = AnswerMatcher([]), self.index.read(passage_id for _, passage_id in pairs)
        found = [self._matchers.get(q, none).is_in(texts[p][1]) for q, p in pairs]
        return np.array(found, dtype=bool)

    def _judge_in_turn(self, candidates: pd.DataFrame) -> pd.DataFrame:
        """Filter candidates by text, in their order, up to the last negative of each query.

        Scoring a passage with a cross-encoder costs far more than finding it, and many pairs at
        once are scored fastest. So the next n candidates of all queries without enough negatives
        are judged together.
        """
        n = self.recipe.n_negatives or len(candidates)
        limits = pd.Series(vars(self.recipe)).fillna(math.nan)  # which no score exceeds
        table = candidates.assign(teacher_score=math.nan)
        query, place = table["query_id"], table.groupby("query_id").cumcount()
        is_judged = self.scorer is not None or bool(self._matchers)
        for first in range(0, place.max() + 1 if is_judged and len(table) else 0, n):
            is_negative = (table["reason"] == "") & (place < first)
            is_open = is_negative.groupby(query).transform("sum") < n
            batch = table[is_open & (place >= first) & (place < first + n)]
            pairs = list(zip(batch["query_id"], batch["passage_id"], strict=True))
            has_answer = self._have_answers(pairs)
            scores = np.full(len(pairs), math.nan)
            scores[~has_answer] = self._score(list(compress(pairs, ~has_answer)))
            reasons = {
                "answer": has_answer,
                RELABELLED: expit(scores) > limits["positive_above"],
                "cross_encoder": expit(scores) >= limits["negative_below"],
            }
            first_reason = np.select(list(reasons.values()), list(reasons), default="")
            table.loc[batch.index, "reason"] = first_reason
            table.loc[batch.index, "teacher_score"] = scores
        is_negative = table["reason"] == ""
        n_before = is_negative.groupby(query).cumsum() - is_negative
        return table[n_before < n]

    def _score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """The cross-encoder's scores of query and passage ids, (N,); NaN without one."""
        if self.scorer is None:
            return np.full(len(pairs), math.nan)
        texts = self._texts(passage_id for _, passage_id in pairs)
        return self.scorer.score([(self.collection.queries[q], texts[p]) for q, p in pairs])

    def _texts(self, passage_ids: Iterable[str]) -> dict[str, str]:
        """Passage id -> title and text in one."""
        separator = self.recipe.title_separator
        return {
            passage_id: f"{title}{separator}{text}" if title else text
            for passage_id, (title, text) in self.index.read(passage_ids).items()
        }

    def examples(self, mined: Iterable[HardNegatives]) -> Iterator[str]:
        """The lines of examples.jsonl: one for each query and positive, if it has a negative."""
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
    run: Run,
    positives: Mapping[str, Sequence[str]],
    index: PassageIndex,
) -> pd.DataFrame:
    """The candidates of queries, with the first filter by rank and score that drops each.

    `positives` are the passage ids of each query, at least one. Of several the lowest score counts
    for margins. If one was not found, its score is unknown, and a margin leaves no candidate.
    """
    found, texts = [], set()
    for query_id, own in positives.items():
        scores = run.get(query_id, {})
        least = min(scores.get(passage_id, -math.inf) for passage_id in own)
        ranked = rank_passages(scores)[recipe.first_rank - 1 : recipe.last_rank]
        for rank, (passage_id, score) in enumerate(ranked, start=recipe.first_rank):
            found.append((query_id, passage_id, rank, score, passage_id in own, least))
        texts |= {(query_id, text) for text in index.content[index.rows(own)].tolist()}
    table = pd.DataFrame(found, columns=list(_DTYPES)).astype(_DTYPES)
    content = index.content[index.rows(table["passage_id"])].tolist()
    own_texts = zip(table["query_id"], content, strict=True)
    score, lowest = table["score"], table["lowest"]
    limits = pd.Series(vars(recipe)).fillna(math.nan)  # which no score exceeds
    has_margin = recipe.absolute_margin is not None or recipe.relative_margin is not None
    reasons = {
        "positive": table["is_positive"],
        "same_text_as_positive": np.array([text in texts for text in own_texts], dtype=bool),
        "min_score": score < limits["min_score"],
        "max_score": score > limits["max_score"],
        "positive_not_found": np.isinf(lowest) & has_margin,
        "absolute_margin": score > lowest - limits["absolute_margin"],
        # Not lowest * (1 - margin), which would raise the bound of a negative score.
        "relative_margin": score > lowest - lowest.abs() * limits["relative_margin"],
    }
    table["reason"] = np.select(list(reasons.values()), list(reasons), default="")
    return table


def draw_order(recipe: MiningRecipe, candidates: pd.DataFrame) -> pd.DataFrame:
    """Each query's candidates in the order in which they become negatives.

    The random number of a rank depends on the seed, the query's id and the rank only. So the first
    n of a larger draw are the draw of n, and dropping a candidate does not reorder the others.
    """
    if recipe.sampling == "top":
        return candidates
    query, query_ids = pd.factorize(candidates["query_id"])
    digests = [hashlib.blake2b(name.encode(), digest_size=7).digest() for name in query_ids]
    numbers = np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.int64)
    draws = uniforms(random_keys(recipe.seed, numbers), recipe.last_rank)  # (Q, last rank)
    return candidates.iloc[np.lexsort((draws[query, candidates["rank"] - 1], query))]
