"""Runs: the passages that a system found for each query, in memory and as TREC files.

Passages are always ordered by descending score, and then by ascending id (by code point), so that
a run does not depend on the order of the corpus.
"""

import gzip
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modeling_condenser.files.atomic import atomic_file

Run = dict[str, dict[str, float]]
"""Query id -> passage id -> score; a query without passages has an empty dict or no entry."""


def rank_passages(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """Order the (passage id, score) pairs of one query: best first, ties by id."""
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def cut_run(run: Run, depth: int) -> Run:
    """Keep the best `depth` passages of each query, best first."""
    return {query_id: dict(rank_passages(scores)[:depth]) for query_id, scores in run.items()}


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
    """Read a TREC run file, plain or `.gz`; as in trec_eval, the rank column is ignored."""
    path = Path(path)
    open_text: Any = gzip.open if path.suffix == ".gz" else open
    run: Run = {}
    with open_text(path, "rt", encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                query_id, _, passage_id, rank, score, _ = line.split(maxsplit=5)
                _, value = float(rank), float(score)
                if not math.isfinite(value) or passage_id in run.setdefault(query_id, {}):
                    raise ValueError
            except ValueError:
                raise ValueError(
                    f"{path}:{number}: {line.strip()!r:.80}, expected query Q0 passage rank score"
                    " tag, with a finite score, and each passage once for a query."
                ) from None
            run[query_id][passage_id] = value
    return run
