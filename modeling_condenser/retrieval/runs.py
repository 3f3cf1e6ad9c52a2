"""Runs: the passages that a system found for each query, in memory and as TREC files.

The whole project orders passages by score, descending, and then by passage id, ascending by code
point, so that a run does not depend on the order of the corpus.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from modeling_condenser.collection.text_files import read_lines
from modeling_condenser.runs.whole_files import whole_file

Run = dict[str, dict[str, float]]
"""Query id -> passage id -> score; a query without passages has an empty dict or no entry."""

RUN_COLUMNS = ("query", "Q0", "passage", "rank", "score", "tag")


def rank_passages(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """Order the (passage id, score) pairs of one query: best first, ties by id."""
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def order_of_ids(ids: Sequence[str]) -> np.ndarray:
    """The rank of each id among the sorted ids, (N,) int64, which breaks ties."""
    order = np.empty(len(ids), dtype=np.int64)
    order[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return order


def best_first(scores: np.ndarray, *, id_order: np.ndarray, depth: int) -> np.ndarray:
    """The positions of the best scores, in the order of `rank_passages`.

    Args:
        scores: (N,) floats without NaN.
        id_order: (N,) int64 from `order_of_ids`.
        depth: the most positions to return, at least 1.

    Returns:
        (min(depth, N),) int64 positions in `scores`. Ties at the last place go to the lower ids.
    """
    kept = np.arange(len(scores))
    if depth < len(scores):
        kept = np.flatnonzero(scores >= np.partition(scores, -depth)[-depth])
    return kept[np.lexsort((id_order[kept], -scores[kept]))][:depth]


def write_run(run: Run, path: str | Path, *, tag: str) -> Path:
    """Write a run as a TREC file, atomically.

    Scores are written so that reading them gives the same float64. A query without passages gets no
    line. trec_eval breaks ties by descending id, so its figures can differ where scores tie.

    Args:
        run: query id -> passage id -> score.
        path: the file; its folder must exist.
        tag: name of the system, one word.

    Returns:
        The path.

    Raises:
        ValueError: an id or the tag is not one word, or a score is not finite.
    """
    path = Path(path)
    _check_word(tag, what="run tag")
    with whole_file(path) as file:
        file.writelines(line.encode() for line in _run_lines(run, tag))
    return path


def _run_lines(run: Run, tag: str) -> Iterator[str]:
    for query_id, scores in run.items():
        _check_word(query_id, what="query id")
        for rank, (passage_id, score) in enumerate(rank_passages(scores), start=1):
            _check_word(passage_id, what="passage id")
            if not math.isfinite(score):
                raise ValueError(
                    f"Query {query_id!r} scores passage {passage_id!r} {score}; expected a finite "
                    "number."
                )
            yield f"{query_id} Q0 {passage_id} {rank} {float(score)!r} {tag}\n"


def _check_word(word: str, *, what: str) -> None:
    if len(word.split()) != 1 or word != word.strip():
        raise ValueError(
            f"The {what} {word!r} is not one word, but spaces separate the columns of a TREC run "
            "file: replace white space, e.g. by '_'."
        )


def read_run(path: str | Path, *, words_behind_tag: bool = False) -> Run:
    """Read a TREC run file; the rank column is ignored, as in trec_eval.

    Args:
        path: a file with six columns a line, separated by spaces or tabs, or the same as `.gz`.
        words_behind_tag: accept lines with more than six columns, as trec_eval does. By default
            they are an error, because a space in an id shifts the columns, too.

    Returns:
        Query id -> passage id -> score, in file order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is malformed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no run file {path}: correct the path.")
    run: Run = {}
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            query_id, passage_id, score = _parse_line(line, words_behind_tag=words_behind_tag)
            scores = run.setdefault(query_id, {})
            if passage_id in scores:
                raise ValueError(f"query {query_id!r} lists passage {passage_id!r} twice")
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}.") from error
        scores[passage_id] = score
    return run


def _parse_line(line: str, *, words_behind_tag: bool) -> tuple[str, str, float]:
    columns = line.split()
    expected = len(RUN_COLUMNS)
    if len(columns) < expected or (len(columns) > expected and not words_behind_tag):
        raise ValueError(f"{len(columns)} columns, expected {expected} ({' '.join(RUN_COLUMNS)})")
    query_id, _, passage_id, _, score = columns[:5]
    value = float(score)
    if not math.isfinite(value):
        raise ValueError(f"score {score!r}, expected a finite number")
    return query_id, passage_id, value
