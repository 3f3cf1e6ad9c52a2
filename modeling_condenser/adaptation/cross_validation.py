"""Cross-validation of query maps: each judged query is ranked by a map of other queries.

Folds by question answer whether future questions like the judged ones gain. Near-copies of a
question are in one fold. Folds by passage answer what happens to questions whose passages no label
names: questions that share a passage are in one fold, too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from modeling_condenser.collection.collection import Collection, Qrels, find_rows
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.evaluation.measures import evaluate_run
from modeling_condenser.evaluation.verdict import MEASURE
from modeling_condenser.files.run_folder import bar, show_bars
from modeling_condenser.finetuning.hard_negatives import judged_positives
from modeling_condenser.retrieval.runs import (
    CANDIDATES,
    DEFAULT,
    Run,
    drop_own_passages,
    find_own,
)
from modeling_condenser.retrieval.systems import search_embeddings

from .query_map import JudgedQueries, choose_candidates, learn_map, move
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
class Judge:
    """Measures maps on the queries of one split, alone and with BM25.

    Attributes:
        names: of Q queries.
        vectors: (Q, D) float32 of the start.
        qrels: of these queries, each with a relevant passage.
        bm25_run: of these queries.
        passages: embeddings of the collection by the start.
        sides: what a map moves.
    """

    names: Sequence[str]
    vectors: np.ndarray
    qrels: Qrels
    bm25_run: Run
    passages: Embeddings
    sides: Sides = "query"

    def measure(self, change: np.ndarray | None, places: np.ndarray | None = None) -> Figures:
        """The figures of the queries at `places`, moved by A (D, D) unless it is None."""
        chosen = list(range(len(self.names))) if places is None else places.tolist()
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
        qrels = {name: self.qrels[name] for name in names}
        runs: dict[Use, Run] = {"hybrid": DEFAULT.fuse(bm25, dense), "alone": dense}
        return {
            use: evaluate_run(qrels, run, measures=[MEASURE]).per_query[MEASURE]
            for use, run in runs.items()
        }

    def queries(self, collection: Collection) -> JudgedQueries:
        """What a map is learned from, with the rows of the collection's passages."""
        found = search_embeddings(self.passages, self.vectors, self.names, depth=CANDIDATES)
        dense, bm25 = (drop_own_passages(run, self.qrels) for run in (found, self.bm25_run))
        positives = judged_positives(collection)
        ids = chain(*positives.values(), *dense.values(), *bm25.values())
        row_of = find_rows(collection.passages, ids)
        own = find_rows(collection.passages, find_own(self.qrels), strict=False)
        shape = len(self.names), CANDIDATES
        rows, scores = np.zeros((2, *shape), dtype=np.int64), np.zeros(shape, dtype=np.float32)
        pairs = []
        for place, name in enumerate(self.names):
            pairs += [(place, row_of[passage]) for passage in positives[name]]
            for kind, run in enumerate((dense, bm25)):
                best = [row_of[passage] for passage in run.get(name, {})]
                rows[kind, place, : len(best)] = best
            values = np.array([*bm25.get(name, {}).values()])
            if len(set(values)) > 1:
                scores[place, : len(values)] = (values - values.min()) / values.std()
        themselves = [(place, own[name]) for place, name in enumerate(self.names) if name in own]
        excluded = np.array(themselves, dtype=np.int64).reshape(-1, 2)
        return JudgedQueries(self.vectors, np.array(pairs), excluded, rows[0], rows[1], scores)


def group_questions(texts: Sequence[str]) -> np.ndarray:
    """Numbers, (Q,), that are equal for questions of the same words, whatever their order."""
    words = [" ".join(sorted(set(re.findall(r"\w+", text.casefold())))) for text in texts]
    return np.unique(words, return_inverse=True)[1]


def group_by_passage(groups: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Numbers, (Q,), that are equal for questions of one group (Q,), or that share a passage.

    `positives` are (P, 2) pairs of a question and a passage.
    """
    n_groups = groups.max() + 1
    edges = (groups[positives[:, 0]], n_groups + positives[:, 1])
    size = n_groups + positives[:, 1].max() + 1
    graph = coo_array((np.ones(len(positives)), edges), shape=(size, size))
    return connected_components(graph, directed=False)[1][groups]


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


def find_named(folds: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Whether a question of another fold has a passage of this one, (Q,) bool.

    `positives` are (P, 2) pairs of a question and a passage.
    """
    _, passages = np.unique(positives[:, 1], return_inverse=True)
    is_in = np.zeros((passages.max() + 1, N_FOLDS), dtype=bool)
    is_in[passages, folds[positives[:, 0]]] = True
    is_shared = is_in.sum(axis=1)[passages] > 1
    is_named = np.zeros(len(folds), dtype=bool)
    is_named[positives[is_shared, 0]] = True
    return is_named


def cross_validate(
    judge: Judge, queries: JudgedQueries, folds: np.ndarray, ridges: Sequence[float], *, use: Use
) -> Sequence[Figures]:
    """The figures of all queries for each ridge, each query by the map of the other folds."""
    figures: list[dict[Use, Values]] = [{"hybrid": {}, "alone": {}} for _ in ridges]
    for fold in bar(np.unique(folds), "folds", unit="fold"):
        learned = queries.select(np.flatnonzero(folds != fold))
        candidates = choose_candidates(learned, judge.passages)
        for ridge, found in zip(ridges, figures, strict=True):
            change = learn_map(
                *(learned, candidates), ridge=ridge, with_bm25=use == "hybrid", sides=judge.sides
            )
            for each, values in judge.measure(change, np.flatnonzero(folds == fold)).items():
                found[each] |= values
    return figures
