"""Learn a linear map of query vectors from judged queries: q becomes q + A q.

Each judged query is ranked against all passages, whose stored vectors stay as they are, or are
moved by the same map (sides: both). A has D * D numbers. The loss is the cross-entropy of

    softmax(20 * cosine(q + A q, p) + 2 * BM25(q, p))    over all passages p,

where BM25 is standardised over its best 100 passages, and counts as the lowest of them, or as no
match, elsewhere, as in `Fusion`; for a model that is used alone, it is left out. Any of a query's
relevant passages satisfies it: their probabilities are added up. To the mean is added
ridge * |A|^2 / D. L-BFGS goes 8 steps from A = 0 over all queries, without a learning rate or a
seed; the minimum is a worse map.

The passages of a large collection are sampled (`choose_candidates`). Search-Adaptor (Yoon et al.
2023, arXiv 2310.08750) maps queries and passages by one matrix, and LlamaIndex's adapter maps
queries with the negatives of a batch; neither of them has BM25 in its loss.
D numbers in a vector, Q queries, N passages, C candidates, k best passages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
import torch
from torch.nn import functional as F

from modeling_condenser.encoding.embeddings import Embeddings

from .recipe import Sides

MOST_CANDIDATES = 50_000  # passages in memory
# Of several, the best on dev queries (docs/results/published-models.md).
_COSINE_WEIGHT, _BM25_WEIGHT = 20.0, 2.0
_STEPS, _QUERIES_AT_ONCE = 8, 128


@dataclass(frozen=True)
class JudgedQueries:
    """Q queries that a map is learned from.

    Attributes:
        vectors: (Q, D) float32, at length 1.
        positives: the rows of the passages that are relevant to each query.
        excluded: the rows of passages that each query is not ranked against, as in the measures:
            the query itself.
        dense, bm25: (Q, k) rows of the best passages of the start and of BM25, best first.
        bm25_scores: (Q, k) float32, standardised, above the lowest; 0 for passages not found.
    """

    vectors: np.ndarray
    positives: Sequence[Sequence[int]]
    excluded: Sequence[Sequence[int]]
    dense: np.ndarray
    bm25: np.ndarray
    bm25_scores: np.ndarray

    def select(self, places: Iterable[int]) -> Self:
        """Some of the queries."""
        places = list(places)
        return type(self)(
            self.vectors[places],
            [self.positives[place] for place in places],
            [self.excluded[place] for place in places],
            self.dense[places],
            self.bm25[places],
            self.bm25_scores[places],
        )


def pair_up(rows_of: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The place of each query with each of its rows: (P,) both."""
    counts = [len(rows) for rows in rows_of]
    rows = np.array(list(chain.from_iterable(rows_of)), dtype=np.int64)
    return np.repeat(np.arange(len(counts)), counts), rows


@dataclass(frozen=True)
class Candidates:
    """The passages that queries are ranked against.

    Attributes:
        rows: (C,) of the collection, ascending.
        vectors: (C, D) float32.
        bias: (C,) float32, the logarithm of how many passages a candidate stands for.
    """

    rows: np.ndarray
    vectors: np.ndarray
    bias: np.ndarray

    def places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The candidates with these rows of the collection, and whether there are such."""
        places = np.searchsorted(self.rows, rows).clip(max=len(self.rows) - 1)
        return places, self.rows[places] == rows


def choose_candidates(
    queries: JudgedQueries, passages: Embeddings, *, most: int = MOST_CANDIDATES
) -> Candidates:
    """Choose all passages; of a large collection relevant, hard and random ones.

    The hard ones are the first of the start and of BM25 for each query, until they are half of the
    candidates. A random one stands for all that are not chosen (sampled softmax).
    """
    n = passages.n_passages
    if n <= most:
        rows = np.arange(n)
        return Candidates(rows, passages.vectors(rows), np.zeros(n, dtype=np.float32))
    chosen = np.unique(pair_up(queries.positives)[1])
    for place in range(queries.dense.shape[1]):
        more = np.union1d(chosen, [queries.dense[:, place], queries.bm25[:, place]])
        if len(more) > most // 2:
            break
        chosen = more
    others = np.setdiff1d(np.arange(n), chosen)
    drawn = np.random.default_rng(0).choice(others, max(most - len(chosen), 1), replace=False)
    rows = np.sort(np.concatenate([chosen, drawn]))
    bias = np.where(np.isin(rows, drawn), np.log(len(others) / len(drawn)), 0)
    return Candidates(rows, passages.vectors(rows), bias.astype(np.float32))


def learn_map(
    queries: JudgedQueries,
    candidates: Candidates,
    *,
    ridge: float,
    with_bm25: bool,
    sides: Sides = "query",
) -> np.ndarray:
    """Learn A, (D, D) float32."""
    n_queries, size = queries.vectors.shape
    change = torch.zeros(size, size, requires_grad=True)
    optimizer = torch.optim.LBFGS([change], max_iter=_STEPS, line_search_fn="strong_wolfe")
    passages = torch.from_numpy(candidates.vectors)
    batches = []
    for first in range(0, n_queries, _QUERIES_AT_ONCE):
        batches.append(queries.select(range(n_queries)[first : first + _QUERIES_AT_ONCE]))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ridge / size * change.square().sum()
        loss.backward()
        for batch in batches:
            moved = _move(torch.from_numpy(batch.vectors), change)
            ranked = _move(passages, change) if sides == "both" else passages
            losses = ranking_losses(moved, ranked, batch, candidates, with_bm25=with_bm25)
            part = losses.sum() / n_queries
            part.backward()
            loss = loss + part
        return loss.detach()

    optimizer.step(closure)
    return change.detach().numpy()


def ranking_losses(
    moved: torch.Tensor,
    passages: torch.Tensor,
    queries: JudgedQueries,
    candidates: Candidates,
    *,
    with_bm25: bool,
) -> torch.Tensor:
    """The cross-entropy of each query, (Q,), for moved queries (Q, D) and candidates (C, D)."""
    scores = _COSINE_WEIGHT * (moved @ passages.T)  # (Q, C)
    scores = scores + torch.from_numpy(candidates.bias)
    if with_bm25:
        places, is_candidate = candidates.places(queries.bm25)
        points = torch.from_numpy(_BM25_WEIGHT * np.where(is_candidate, queries.bm25_scores, 0))
        scores = scores.scatter_add(1, torch.from_numpy(places), points)
    owners, rows = pair_up(queries.excluded)
    columns, is_candidate = candidates.places(rows)
    is_excluded = torch.zeros_like(scores, dtype=torch.bool)
    is_excluded[owners[is_candidate], columns[is_candidate]] = True
    scores = scores.masked_fill(is_excluded, -torch.inf)
    owners, rows = pair_up(queries.positives)
    relevant = candidates.places(rows)[0]
    of_positives = torch.full_like(scores, -torch.inf)
    of_positives[owners, relevant] = scores[owners, relevant]
    return scores.logsumexp(dim=1) - of_positives.logsumexp(dim=1)


def move(vectors: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Vectors (N, D) moved by A (D, D) and normalised, float32."""
    return _move(torch.from_numpy(vectors), torch.from_numpy(change)).numpy()


def _move(vectors: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    return F.normalize(vectors + vectors @ change.T)
