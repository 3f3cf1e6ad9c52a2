"""Search in a TREC run file of any size.

The run of half a million queries has a hundred million lines. Only the positions of each query's
lines are kept in memory; they are read when the query is searched.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path

from modeling_condenser.retrieval.runs import RUN_COLUMNS, Run, rank_passages


class RunFile:
    """A TREC run that is read query by query.

    Args:
        path: six columns a line, separated by blanks; the lines of a query are consecutive.
        expected: queries, of which the run must have one.

    Attributes:
        places: query id -> first byte and number of bytes of its lines.
    """

    def __init__(self, path: str | Path, expected: Collection[str]) -> None:
        self._path = Path(path)
        self.places: dict[str, tuple[int, int]] = {}
        last, byte = None, 0
        with self._path.open("rb") as file:
            for line in file:
                query_id = line.split(maxsplit=1)[0].decode() if line.strip() else last
                if query_id is not None:
                    start, length = self.places.get(query_id, (byte, 0))
                    if start + length != byte:
                        raise ValueError(
                            f"{path}: the lines of query {query_id!r} are not consecutive: sort "
                            "the file, for example with `sort -s -k1,1`."
                        )
                    self.places[query_id] = (start, length + len(line))
                last = query_id
                byte += len(line)
        if self.places.keys().isdisjoint(expected):
            raise ValueError(
                f"{path} has none of the {len(expected)} queries: use a run of the same split."
            )

    def search(self, queries: Mapping[str, str], *, depth: int) -> Run:
        """The first `depth` passages that the run has for each query."""
        run: Run = {}
        with self._path.open("rb") as file:
            for query_id in filter(self.places.__contains__, queries):
                start, length = self.places[query_id]
                file.seek(start)
                scores = self._scores(file.read(length).decode())
                run[query_id] = dict(rank_passages(scores)[:depth])
        return run

    def _scores(self, block: str) -> dict[str, float]:
        scores: dict[str, float] = {}
        for line in filter(str.strip, block.split("\n")):
            try:
                _, _, passage_id, _, score, _ = line.split()
                is_valid = passage_id not in scores and math.isfinite(float(score))
            except ValueError:
                is_valid = False
            if not is_valid:
                raise ValueError(
                    f"{self._path}: the line {line!r} is malformed, expected "
                    f"{' '.join(RUN_COLUMNS)} with a finite score, once for each passage."
                )
            scores[passage_id] = float(score)
        return scores
