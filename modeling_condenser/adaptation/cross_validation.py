"""Cross-validation of query maps: each judged query is ranked by a map of other queries.

Folds by question answer whether future questions like the judged ones gain. Near-copies of a
question are in one fold. Folds by passage answer what happens to questions whose passages no label
names: questions that share a passage are in one fold, too.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Self

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from modeling_condenser.collection.collection import Collection, find_rows, keep_queries
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.measures import evaluate_run
from modeling_condenser.evaluation.verdict import MEASURE
from modeling_condenser.files.run_folder import bar, show_bars
from modeling_condenser.finetuning.hard_negatives import judged_positives
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.runs import (
    CANDIDATES,
    DEFAULT,
    Run,
    drop_own_passages,
    find_own,
    standardise,
)
from modeling_condenser.retrieval.systems import search_embeddings

from .query_map import JudgedQueries, choose_candidates, learn_map, move, pair_up
from .recipe import Sides, Use

N_FOLDS = 5

Values = dict[str, float]
"""Query -> nDCG@10."""

Figures = Mapping[Use, Values]
"""How the model is used -> values."""


@dataclass(frozen=True, kw_only=True)
class MovedEmbeddings(Embeddings):
    """Embeddings that are moved by a map (D, D) as they are read."""

    change: np.ndarray

    def blocks(self) -> Iterator[np.ndarray]:
        for block in super().blocks():
            yield move(np.array(block), self.change)  # blocks are read-only


@dataclass(frozen=True)
class MapEvaluator:
    """Measures maps on the Q queries of one split, alone and with BM25.

    Attributes:
        asked: the split, with queries that have a relevant passage only.
        vectors: (Q, D) float32 of the start.
        bm25_run: of these queries.
        passages: embeddings of the collection by the start.
        sides: what a map moves.
    """

    asked: Collection
    vectors: np.ndarray
    bm25_run: Run
    passages: Embeddings
    sides: Sides = "query"

    @classmethod
    def open(
        cls,
        collection: Collection,
        start: Retriever,
        passages: Embeddings,
        bm25: Bm25,
        sides: Sides = "query",
    ) -> Self:
        asked = keep_queries(collection, judged_positives(collection).keys())
        vectors = start.encode_queries(list(asked.queries.values()))
        return cls(asked, vectors, bm25.search(asked.queries, CANDIDATES), passages, sides)

    @property
    def names(self) -> list[str]:
        """The ids of the queries."""
        return list(self.asked.queries)

    def measure(self, change: np.ndarray | None, places: Iterable[int] | None = None) -> Figures:
        """The figures of the queries at `places`, moved by A (D, D) unless it is None."""
        chosen = list(range(len(self.names)) if places is None else places)
        names, vectors = [self.names[place] for place in chosen], self.vectors[chosen]
        passages = self.passages
        if change is not None:
            vectors = move(vectors, change)
            if self.sides == "both":
                stored = {field.name: getattr(passages, field.name) for field in fields(passages)}
                passages = MovedEmbeddings(**stored, change=change)
        with show_bars(False):
            dense = search_embeddings(passages, vectors, names, depth=CANDIDATES)
        bm25 = {name: self.bm25_run.get(name, {}) for name in names}
        qrels = {name: self.asked.qrels[name] for name in names}
        runs: dict[Use, Run] = {"hybrid": DEFAULT.fuse(bm25, dense), "alone": dense}
        return {
            use: evaluate_run(qrels, run, measures=[MEASURE], is_given=False).per_query[MEASURE]
            for use, run in runs.items()
        }

    def queries(self) -> JudgedQueries:
        """What a map is learned from."""
        qrels, positives = self.asked.qrels, judged_positives(self.asked)
        found = search_embeddings(self.passages, self.vectors, self.names, depth=CANDIDATES)
        dense, bm25 = (drop_own_passages(run, qrels) for run in (found, self.bm25_run))
        ids = chain(*positives.values(), *dense.values(), *bm25.values())
        row_of = find_rows(self.asked.passages, ids)
        own = find_rows(self.asked.passages, find_own(qrels), strict=False)
        shape = len(self.names), CANDIDATES
        rows = np.zeros((2, *shape), dtype=np.int64)  # of what is not found 0, with a score of 0
        scores = np.zeros(shape, dtype=np.float32)
        for place, name in enumerate(self.names):
            for kind, run in enumerate((dense, bm25)):
                best = [row_of[passage] for passage in run.get(name, {})]
                rows[kind, place, : len(best)] = best
            ranking = [*bm25.get(name, {}).items()]
            points, missing = standardise(ranking, len(dense.get(name, {})))
            scores[place, : len(ranking)] = [points[passage] - missing for passage, _ in ranking]
        return JudgedQueries(
            self.vectors,
            [[row_of[passage] for passage in positives[name]] for name in self.names],
            [[own[name]] if name in own else [] for name in self.names],
            rows[0],
            rows[1],
            scores,
        )


def group_questions(texts: Sequence[str]) -> np.ndarray:
    """Numbers, (Q,), that are equal for questions of the same words, whatever their order."""
    words = [" ".join(sorted(set(re.findall(r"\w+", text.casefold())))) for text in texts]
    return np.unique(words, return_inverse=True)[1]


def merge_copies(values: Values, texts: Mapping[str, str]) -> Values:
    """The mean of each group of questions: a copy of a question is no evidence of its own."""
    groups = group_questions([texts[name] for name in values])
    sums = np.bincount(groups, weights=list(values.values()))
    return dict(
        zip(map(str, np.unique(groups)), (sums / np.bincount(groups)).tolist(), strict=True)
    )


def group_by_passage(groups: np.ndarray, queries: JudgedQueries) -> np.ndarray:
    """Numbers, (Q,), that are equal for questions of one group (Q,), or that share a passage."""
    owners, rows = pair_up(queries.positives)
    nodes = groups.max() + 1 + rows  # groups and passages are the nodes of a graph
    edges = coo_array((np.ones(len(rows)), (groups[owners], nodes)), shape=(nodes.max() + 1,) * 2)
    return connected_components(edges, directed=False)[1][groups]


def make_folds(groups: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """The fold of each question, (Q,): groups stay together, and folds are of about equal size."""
    numbers, sizes = np.unique(groups, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(numbers))
    order = order[np.argsort(-sizes[order], kind="stable")]
    filled, fold_of = np.zeros(N_FOLDS, dtype=int), {}
    for place in order:
        fold_of[numbers[place]] = smallest = int(filled.argmin())
        filled[smallest] += sizes[place]
    return np.array([fold_of[group] for group in groups])


def find_named(folds: np.ndarray, queries: JudgedQueries) -> np.ndarray:
    """Whether a question of another fold has a passage of this one, (Q,) bool."""
    folds_of = defaultdict(set)
    for fold, rows in zip(folds.tolist(), queries.positives, strict=True):
        for row in rows:
            folds_of[row].add(fold)
    return np.array([any(len(folds_of[row]) > 1 for row in rows) for rows in queries.positives])


def cross_validate(
    evaluator: MapEvaluator,
    queries: JudgedQueries,
    folds: np.ndarray,
    ridges: Sequence[float],
    *,
    use: Use,
) -> Sequence[Figures]:
    """The figures of all queries for each ridge, each query by the map of the other folds."""
    figures: list[dict[Use, Values]] = [{"hybrid": {}, "alone": {}} for _ in ridges]
    for fold in bar(np.unique(folds), "folds", unit="fold"):
        learned = queries.select(np.flatnonzero(folds != fold))
        candidates = choose_candidates(learned, evaluator.passages)
        for ridge, found in zip(ridges, figures, strict=True):
            change = learn_map(
                *(learned, candidates),
                ridge=ridge,
                with_bm25=use == "hybrid",
                sides=evaluator.sides,
            )
            for each, values in evaluator.measure(change, np.flatnonzero(folds == fold)).items():
                found[each] |= values
    return figures
