"""Learn where the vectors of a collection should move: a linear map of a retriever's vectors.

The map v -> v W (I + s A) is made from vectors that are encoded once, so a model of any size gets
one in a minute. It has D * D numbers, far fewer than the encoder.

W whitens in part: it divides the principal components of queries, of which the first are much alike
in all texts, by a power of their size (Su et al. 2021, Whitening Sentence Representations; power 1
whitens wholly). A is trained, from A = 0. Its objective is that of CADET (Tamber et al. 2025,
arXiv 2505.19274) with another teacher. For each query, softmax(teacher / t) over the candidates of
the batch is the target of softmax(cosine / t') (listwise KL divergence); to it is added a little
InfoNCE, in which passages that the teacher scores above .95 of the query's own are no negatives.
The teacher is the standardised score of BM25 and of the retriever itself. Judged queries fill a
part of each batch, and a part of their target is their own passage. The scale s is chosen
afterwards. D numbers in a vector, N passages, B queries in a batch, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from modeling_condenser.files.run_folder import bar
from modeling_condenser.retrieval.bm25 import Bm25

from .queries import FILE, JUDGED, Query
from .recipe import MapSettings

_FALSE_NEGATIVE = 0.95  # of the own passage's teacher score
_LEAST_MOMENT = 3e-4  # of the largest one, so that few queries do not blow up what they lack
_FIRST_RANKS = 16  # of the teacher, from which hard candidates are drawn
_KEPT_RANK = 20  # a query is kept if its passage is among the first of BM25 or of the retriever
_QUERIES_AT_ONCE, _SCORES_AT_ONCE = 256, 2**25  # 128 MiB in float32


@dataclass(frozen=True)
class Teacher:
    """Scores all passages for queries.

    Attributes:
        bm25: over the passages.
        passages: (N, D) vectors.
        weight: of BM25.
    """

    bm25: Bm25
    passages: np.ndarray
    weight: float

    def parts(
        self, texts: Sequence[str], vectors: np.ndarray, rows: np.ndarray | slice = slice(None)
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores of BM25 and of the retriever for Q queries with vectors (Q, D): (Q, N) each.

        `rows` are those of the passages, all by default.
        """
        lexical = np.stack([self.bm25.scores(text)[rows] for text in texts])
        return lexical, vectors @ self.passages[rows].T

    def fuse(self, parts: Sequence[np.ndarray], moments: np.ndarray) -> np.ndarray:
        """The weighted sum of parts (Q, C), standardised by moments (Q, 2, 2): (Q, C) float32."""
        mean, deviation = moments[:, :, :1], moments[:, :, 1:]  # (Q, 2, 1)
        lexical = (parts[0] - mean[:, 0]) / deviation[:, 0]
        dense = (parts[1] - mean[:, 1]) / deviation[:, 1]
        return (self.weight * lexical + (1 - self.weight) * dense).astype(np.float32)


def moments_of(scores: np.ndarray) -> np.ndarray:
    """Mean and deviation of each query's scores (Q, N): (Q, 2); a deviation of 0 becomes 1."""
    deviation = scores.std(axis=1)
    return np.stack([scores.mean(axis=1), np.where(deviation > 0, deviation, 1)], axis=1)


@dataclass(frozen=True)
class TrainingQueries:
    """The queries that are trained on.

    Attributes:
        queries: in the order of the vectors.
        vectors: (Q, D) float32.
        hard: (Q, 16) rows of the teacher's first passages.
        moments: (Q, 2, 2) of BM25's and the retriever's scores of all passages, see `moments_of`.
    """

    queries: Sequence[Query]
    vectors: np.ndarray
    hard: np.ndarray
    moments: np.ndarray

    def without(self, kind: str) -> "TrainingQueries":
        """The queries of the other kinds."""
        kept = [i for i, query in enumerate(self.queries) if query.kind != kind]
        queries = [self.queries[i] for i in kept]
        return TrainingQueries(queries, self.vectors[kept], self.hard[kept], self.moments[kept])


def select_queries(
    queries: Sequence[Query], vectors: np.ndarray, teacher: Teacher
) -> TrainingQueries:
    """Keep the queries whose passage BM25 or the retriever ranks among the first 20.

    Queries of a file and judged ones are all kept.
    """
    kept, hard, moments = [], [], []
    size = min(_QUERIES_AT_ONCE, max(1, _SCORES_AT_ONCE // len(teacher.passages)))
    for first in bar(range(0, len(queries), size), "teacher", unit="batch"):
        some = queries[first : first + size]
        parts = teacher.parts([query.text for query in some], vectors[first : first + len(some)])
        rows = np.array([query.passage for query in some])
        is_found = np.zeros(len(some), dtype=bool)
        for scores in parts:
            positive = np.take_along_axis(scores, rows[:, None], axis=1)  # (Q, 1)
            is_found |= ((scores > positive).sum(axis=1) < _KEPT_RANK) & (positive[:, 0] != 0)
        is_found |= np.array([query.kind in (FILE, JUDGED) for query in some])
        both = np.stack([moments_of(scores) for scores in parts], axis=1)
        fused = teacher.fuse(parts, both)
        depth = min(_FIRST_RANKS, fused.shape[1])
        best = np.argpartition(-fused, depth - 1, axis=1)[:, :depth]
        kept += (first + np.flatnonzero(is_found)).tolist()
        hard.append(best[is_found])
        moments.append(both[is_found])
    chosen = [queries[i] for i in kept]
    return TrainingQueries(chosen, vectors[kept], np.concatenate(hard), np.concatenate(moments))


def fit_maps(
    training: TrainingQueries, teacher: Teacher, settings: MapSettings, *, seed: int = 0
) -> list[np.ndarray]:
    """Train on at least two queries: a map, (D, D) float32, for each of the scales."""
    whitening = whiten(training.vectors, settings.whitening)
    change = _train_change(training, teacher, settings, whitening, seed=seed)
    return [whitening + scale * whitening @ change for scale in settings.scales]


def whiten(vectors: np.ndarray, power: float) -> np.ndarray:
    """The map of vectors (N, D) whose second moments are C: C^(-power / 2), (D, D) float32.

    Its largest component is left as it is; moments below 3e-4 of it count as that.
    """
    moments, components = np.linalg.eigh(vectors.T @ vectors / len(vectors))
    moments = np.maximum(moments / moments[-1], _LEAST_MOMENT)
    return ((components * moments ** (-power / 2)) @ components.T).astype(np.float32)


def _train_change(
    training: TrainingQueries,
    teacher: Teacher,
    settings: MapSettings,
    whitening: np.ndarray,
    *,
    seed: int,
) -> np.ndarray:
    """Train A, (D, D) float32, on vectors that are whitened and normalised."""
    random = np.random.default_rng(seed)
    passages, texts = (
        torch.from_numpy(apply_map(vectors, whitening))
        for vectors in (teacher.passages, training.vectors)
    )
    change = torch.zeros(passages.shape[1], passages.shape[1], requires_grad=True)
    optimizer = torch.optim.AdamW([change], lr=settings.learning_rate, weight_decay=0.0)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, settings.steps)
    is_judged = np.array([query.kind == JUDGED for query in training.queries])
    for _ in bar(range(settings.steps), "map", unit="step"):
        chosen = draw(random, is_judged, settings)
        queries = [training.queries[i] for i in chosen]
        hard = random.permuted(training.hard[chosen], axis=1)[:, : settings.n_candidates]
        positives = [query.passage for query in queries]
        rows, places = np.unique([*positives, *hard.ravel()], return_inverse=True)  # (C,)
        parts = teacher.parts([query.text for query in queries], training.vectors[chosen], rows)
        targets = teacher.fuse(parts, training.moments[chosen])
        moved_texts = F.normalize(texts[chosen] + texts[chosen] @ change)
        moved_passages = F.normalize(passages[rows] + passages[rows] @ change)
        loss = distillation_loss(
            moved_texts @ moved_passages.T,
            torch.from_numpy(targets),
            torch.from_numpy(places[: len(positives)]),
            torch.from_numpy(is_judged[chosen]),
            settings,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    return change.detach().numpy()


def draw(random: np.random.Generator, is_judged: np.ndarray, settings: MapSettings) -> np.ndarray:
    """Draw the rows of a batch, of which `judged_share` are judged queries if there are any.

    Few judged queries are drawn more than once.
    """
    judged, made = np.flatnonzero(is_judged), np.flatnonzero(~is_judged)
    n_judged = round(settings.judged_share * settings.batch_size) if len(judged) else 0
    n_made = min(settings.batch_size - n_judged, len(made))
    some = random.choice(judged, n_judged, replace=n_judged > len(judged))
    return np.concatenate([random.choice(made, n_made, replace=False), some])


def distillation_loss(
    similarities: torch.Tensor,
    teacher: torch.Tensor,
    positives: torch.Tensor,
    is_judged: torch.Tensor,
    settings: MapSettings,
) -> torch.Tensor:
    """Listwise KL divergence, and InfoNCE without probable false negatives; the mean over queries.

    Args:
        similarities: (B, C) of the student.
        teacher: (B, C) scores.
        positives: (B,) int64, the place of each query's passage among the candidates.
        is_judged: (B,) bool; in the target of such a query, its passage gets `judged_weight` more,
            and all others less.
        settings: the temperatures, and the weights of InfoNCE and of judgements.
    """
    logits = similarities / settings.temperature
    target = (teacher / settings.teacher_temperature).softmax(dim=1)
    is_positive = F.one_hot(positives, teacher.shape[1]).bool()
    judged_target = target.lerp(is_positive.to(target), settings.judged_weight)
    target = torch.where(is_judged[:, None], judged_target, target)
    kl = F.kl_div(logits.log_softmax(dim=1), target, reduction="batchmean")
    bound = _FALSE_NEGATIVE * teacher.gather(1, positives[:, None]).clamp(min=0)
    logits = logits.masked_fill((teacher >= bound) & ~is_positive, float("-inf"))
    return kl + settings.contrast_weight * F.cross_entropy(logits, positives)


def apply_map(vectors: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Vectors (N, D) moved by a map and normalised, (N, D) float32."""
    return F.normalize(torch.from_numpy(vectors @ matrix)).numpy()
