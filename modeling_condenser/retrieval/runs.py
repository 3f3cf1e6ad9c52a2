"""Runs: what a searcher answers, in memory and as a TREC run file.

In: scores per query and passage. Out: one text file, `query Q0 passage rank score tag` a line, that
trec_eval and its kin read. Also the one ordering that the whole project uses: score descending,
ties by passage id ascending (by code point), so that a run never depends on the order of the
corpus, the batch size or the sorting routine.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from modeling_condenser.collection.text_files import read_lines

Run = dict[str, dict[str, float]]
"""Query id -> passage id -> score; a query that found nothing has an empty dict or no entry."""

RUN_COLUMNS = ("query", "Q0", "passage", "rank", "score", "tag")


def rank_passages(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """Order the (passage id, score) pairs of one query: best first, ties by id ascending."""
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def order_of_ids(ids: Sequence[str]) -> np.ndarray:
    """Give each id its place in the sorted ids: the (N,) int64 tie-breaker for `best_first`."""
    order = np.empty(len(ids), dtype=np.int64)
    order[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return order


def best_first(scores: np.ndarray, *, id_order: np.ndarray, depth: int) -> np.ndarray:
    """Find the positions of the best scores, in the order of `rank_passages`.

    Everything that ties with the last place is sorted too, so ties are broken by id at the cut-off
    as well, in O(N + ties log ties).

    Args:
        scores: (N,) floats, no NaN.
        id_order: (N,) int64 from `order_of_ids`.
        depth: how many positions to return at most, at least 1.

    Returns:
        (min(depth, N),) int64 positions into `scores`.
    """
    kept = np.arange(len(scores))
    if depth < len(scores):
        kept = np.flatnonzero(scores >= np.partition(scores, -depth)[-depth])
    return kept[np.lexsort((id_order[kept], -scores[kept]))][:depth]


def write_run(run: Run, path: str | Path, *, tag: str) -> Path:
    """Write a run as a TREC file, atomically.

    Queries come in the run's order, passages by `rank_passages`, ranks from 1. Scores are written
    so that reading them gives the same float64. A query without passages leaves no line.
    trec_eval ignores the rank column and breaks ties by id *descending*: its figures can differ
    from ours where scores tie.

    Args:
        run: query id -> passage id -> score.
        path: the file to write; its folder must exist.
        tag: name of the system, one word.

    Returns:
        The path written.

    Raises:
        ValueError: an id or the tag is empty or holds white space, or a score is not finite.
    """
    path = Path(path)
    _check_word(tag, what="run tag")
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(_run_lines(run, tag))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _run_lines(run: Run, tag: str) -> Iterator[str]:
    for query_id, scores in run.items():
        _check_word(query_id, what="query id")
        for rank, (passage_id, score) in enumerate(rank_passages(scores), start=1):
            _check_word(passage_id, what="passage id")
            if not math.isfinite(score):
                raise ValueError(
                    f"query {query_id!r} scores passage {passage_id!r} {score}: expected a finite"
                    " number; look for NaN or overflow in the embeddings"
                )
            yield f"{query_id} Q0 {passage_id} {rank} {float(score)!r} {tag}\n"


def _check_word(word: str, *, what: str) -> None:
    if not word or len(word.split()) != 1 or word != word.strip():
        raise ValueError(
            f"{what} {word!r} can't stand in a TREC run file, whose columns blanks separate:"
            " expected one word; replace its white space, e.g. by '_'"
        )


def read_run(path: str | Path, *, words_behind_tag: bool = False) -> Run:
    """Read a TREC run file.

    The rank column is not used (nor does trec_eval): the order of a run is that of its scores.

    Args:
        path: a file with six columns a line, separated by blanks or tabs, or the same as `.gz`;
            empty lines are skipped.
        words_behind_tag: whether lines may go on behind the sixth column, as trec_eval lets them.
            By default they may not, since a blank within an id shifts the columns too.

    Returns:
        Query id -> passage id -> score, in file order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a malformed line, named as file:line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"no run file at {path}: write one with write_run, or mend the path"
        )
    run: Run = {}
    for number, line in read_lines(path):
        if not line.strip():
            continue
        query_id, passage_id, score = _parse_line(
            line, place=f"{path}:{number}", words_behind_tag=words_behind_tag
        )
        scores = run.setdefault(query_id, {})
        if passage_id in scores:
            raise ValueError(
                f"{path}:{number}: query {query_id!r} lists passage {passage_id!r} a second"
                " time: expected it once; drop one of the two lines"
            )
        scores[passage_id] = score
    return run


def _parse_line(line: str, *, place: str, words_behind_tag: bool) -> tuple[str, str, float]:
    columns = line.split()
    expected = len(RUN_COLUMNS)
    if len(columns) < expected or (len(columns) > expected and not words_behind_tag):
        raise ValueError(
            f"{place}: {len(columns)} columns, expected {expected} ({' '.join(RUN_COLUMNS)}): mend"
            f" the line {line.strip():.200}"
            + ("; words behind the tag need words_behind_tag=True" if len(columns) > 6 else "")
        )
    query_id, _, passage_id, _, score = columns[:5]
    try:
        value = float(score)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"{place}: score {score!r}, expected a finite number in column 5: mend the line"
        )
    return query_id, passage_id, value
