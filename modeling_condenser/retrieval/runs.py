"""Runs: the passages that a system found for each query, in memory, as TREC files, and fused.

Passages are always ordered by descending score, and then by ascending id (by code point), so that
a run does not depend on the order of the corpus.
"""

import gzip
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import ir_measures
import numpy as np
from ir_measures import nDCG

from modeling_condenser.collection.collection import Qrels
from modeling_condenser.files.run_folder import atomic_file

logger = logging.getLogger(__name__)

RRF_K = 60  # Cormack, Clarke & Büttcher (2009), section 2
CANDIDATES = 100
"""How many of the best passages of each run are fused, at any depth; so weights stay comparable."""
FEWEST_QUERIES = 20  # to choose a fusion on

Run = dict[str, dict[str, float]]
"""Query id -> passage id -> score; a query without passages has an empty dict or no entry."""
Ranking = list[tuple[str, float]]
"""The passages of one query and their scores, best first."""


def rank_passages(scores: Mapping[str, float]) -> Ranking:
    """Order the (passage id, score) pairs of one query: best first, ties by id."""
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def cut_run(run: Run, depth: int) -> Run:
    """Keep the best `depth` passages of each query, best first."""
    return {query_id: dict(rank_passages(scores)[:depth]) for query_id, scores in run.items()}


def make_run(
    query_ids: Sequence[str], scores: np.ndarray, rows: np.ndarray, ids: Callable, *, depth: int
) -> Run:
    """Make a run of scores and rows, (Q, k), with row -1 for none; `ids` maps rows to ids."""
    unique = np.unique(rows[rows >= 0])
    id_of = dict(zip(unique.tolist(), ids(unique), strict=True))  # queries share the strings
    run: Run = {}
    for query, query_id in enumerate(query_ids):
        pairs = zip(rows[query].tolist(), scores[query].tolist(), strict=True)
        run[query_id] = {id_of[row]: score for row, score in pairs if row >= 0}
    return cut_run(run, depth)


def find_own(qrels: Mapping[str, Mapping[str, int]]) -> set[str]:
    """Return the judged queries for which a passage of the same id is the query itself.

    This is BEIR's convention (ArguAna, Quora). A passage that is judged relevant to the query of
    its id is another text.
    """
    return {query for query, grades in qrels.items() if grades.get(query, 0) <= 0}


def drop_own_passages(run: Run, qrels: Mapping[str, Mapping[str, int]]) -> Run:
    """Remove the query itself from each ranking; see `find_own`."""
    kept = dict(run)
    for query in find_own(qrels) & run.keys():
        kept[query] = {passage: score for passage, score in run[query].items() if passage != query}
    return kept


def write_run(run: Run, path: str | Path, *, tag: str) -> Path:
    """Write a run as a TREC file, atomically; the tag is the system's name, in one word.

    Reading the scores gives the same float64. trec_eval breaks ties by descending id, so its
    figures can differ where scores tie. An id or a tag that is not one word is a ValueError.
    """
    path = Path(path)
    with atomic_file(path) as file:
        for query_id, scores in run.items():
            for rank, (passage_id, score) in enumerate(rank_passages(scores), start=1):
                line = f"{query_id} Q0 {passage_id} {rank} {float(score)!r} {tag}"
                if len(line.split()) != 6 or not math.isfinite(score):
                    raise ValueError(
                        f"Cannot write the line {line!r}: a TREC run file needs a finite score, "
                        "and ids and a tag without white space; replace it, e.g. by '_'."
                    )
                file.write(f"{line}\n".encode())
    return path


def read_run(path: str | Path) -> Run:
    """Read a TREC run file, plain or `.gz`; ranks, which must be numbers, are ignored."""
    path = Path(path)
    open_text: Any = gzip.open if path.suffix == ".gz" else open
    run: Run = {}
    try:
        with open_text(path, "rt", encoding="utf-8-sig") as file:
            for line in filter(str.strip, file):
                query_id, _, passage_id, *numbers, _ = line.split(maxsplit=5)
                _, score = map(float, numbers)
                if not math.isfinite(score):
                    raise ValueError(f"the score of {passage_id} for {query_id} is {score}")
                scores = run.setdefault(query_id, {})
                if passage_id in scores:
                    raise ValueError(f"{passage_id} is twice among the results of {query_id}")
                scores[passage_id] = score
    except ValueError as error:
        raise ValueError(
            f"{path} is no run file ({error}): expected lines of query Q0 passage rank score tag."
        ) from error
    return run


@dataclass(frozen=True)
class Fusion:
    """How to fuse the best 100 passages of a BM25 run with those of a dense run.

    With a `weight`, the score of a passage is weight * dense + (1 - weight) * BM25. A query's
    scores are first standardised by their mean and population standard deviation; a passage that is
    not among the best 100 gets the lowest, and a run with equal scores contributes 0. Where BM25
    finds fewer passages than the dense run, the others count with its score of a passage without
    a word of the query, 0: so a rare name outweighs what vectors say of it.

    Without a weight it is reciprocal rank fusion: the sum of 1 / (60 + rank) over the runs that
    contain a passage (Cormack, Clarke & Büttcher 2009, Reciprocal Rank Fusion Outperforms Condorcet
    and Individual Rank Learning Methods). Ranks start at 1 and follow `rank_passages`.

    Passages beyond the best 100 of both runs follow in the order of the better of their two ranks,
    with scores below the others; they change neither scores nor order of the others.
    """

    weight: float | None = None

    def __str__(self) -> str:
        if self.weight is None:
            method = f"reciprocal rank fusion (k = {RRF_K})"
        else:
            weights = f"BM25 {1 - self.weight:.2g}, vectors {self.weight:.2g}"
            method = f"a sum of standardised scores ({weights})"
        return f"{method} of the best {CANDIDATES} passages of each"

    def fuse(self, bm25_run: Run, dense_run: Run, *, depth: int = CANDIDATES) -> Run:
        """Fuse the two runs; keep the best `depth` passages of each query."""
        fused: Run = {}
        for query_id in dict.fromkeys(chain(bm25_run, dense_run)):
            bm25 = rank_passages(bm25_run.get(query_id, {}))
            dense = rank_passages(dense_run.get(query_id, {}))
            scores = self._add(bm25[:CANDIDATES], dense[:CANDIDATES])
            lowest = min(scores.values(), default=0.0)
            further = zip_longest(bm25[CANDIDATES:], dense[CANDIDATES:])
            for rank, pairs in enumerate(further, start=1):
                for passage, _ in filter(None, pairs):
                    scores.setdefault(passage, lowest - rank)
            fused[query_id] = scores
        return cut_run(fused, depth)

    def _add(self, bm25: Ranking, dense: Ranking) -> dict[str, float]:
        """Add up the points of the passages in the best lists of one query."""
        if self.weight is None:
            first, second = 1.0, 1.0
            bm25_points, missing_bm25 = _reciprocal_ranks(bm25)
            dense_points, missing_dense = _reciprocal_ranks(dense)
        else:
            first, second = 1 - self.weight, self.weight
            bm25_points, missing_bm25 = standardise(bm25, len(dense))
            dense_points, missing_dense = standardise(dense)
        return {
            passage: first * bm25_points.get(passage, missing_bm25)
            + second * dense_points.get(passage, missing_dense)
            for passage in chain(bm25_points, dense_points)
        }


def _reciprocal_ranks(ranking: Ranking) -> tuple[dict[str, float], float]:
    """Return the points of a query's passages, and those of a passage that is not among them."""
    return {passage: 1 / (RRF_K + rank) for rank, (passage, _) in enumerate(ranking, start=1)}, 0.0


def standardise(ranking: Ranking, least: int = 0) -> tuple[dict[str, float], float]:
    """As `_reciprocal_ranks`; a ranking of fewer than `least` is filled with scores of 0."""
    values = [score for _, score in ranking]
    is_filled = len(values) < least
    values += [0.0] * (least - len(values))
    if len(set(values)) < 2:  # the rounded deviation of equal scores may not be 0
        return {passage: 0.0 for passage, _ in ranking}, 0.0
    mean = fmean(values)  # correctly rounded, so the order of passages does not matter
    deviation = math.sqrt(fmean((value - mean) ** 2 for value in values))
    points = {passage: (score - mean) / deviation for passage, score in ranking}
    return points, -mean / deviation if is_filled else min(points.values())


FUSIONS = {"rrf": Fusion(), **{f"{i / 10}": Fusion(i / 10) for i in range(1, 10)}}
"""Fusions by their names in `hybrid:MODEL,fusion=...`; a number is the dense run's weight."""

DEFAULT = FUSIONS["0.5"]
"""Where there are no dev queries to choose a fusion on, or too few."""


FUSION_VERSION = 3
"""Of the rule by which a fusion is chosen; stored choices and runs have it."""


def choose_fusion(bm25_run: Run, dense_run: Run, qrels: Qrels) -> Fusion:
    """Choose the fusion with the highest nDCG@10 on judged queries; the first if several tie.

    Fewer than `FEWEST_QUERIES` with a relevant passage say too little: the choice is then the
    default.
    """
    n_queries = sum(max(grades.values(), default=0) > 0 for grades in qrels.values())
    if n_queries < FEWEST_QUERIES:
        logger.info("%d dev queries are too few to choose by: %s", n_queries, DEFAULT)
        return DEFAULT
    figures = {}
    for fusion in FUSIONS.values():
        run = {  # ranks as scores, because ir-measures breaks ties in another way
            query: {passage: -rank for rank, (passage, _) in enumerate(rank_passages(scores))}
            for query, scores in drop_own_passages(fusion.fuse(bm25_run, dense_run), qrels).items()
        }
        figures[fusion] = ir_measures.calc_aggregate([nDCG @ 10], qrels, run)[nDCG @ 10]
    best = max(figures, key=lambda fusion: figures[fusion])
    logger.info("Chosen on %d dev queries: %s, nDCG@10 %.3f", n_queries, best, figures[best])
    return best
