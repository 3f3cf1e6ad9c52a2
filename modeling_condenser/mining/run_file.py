"""Search in a TREC run file of any size.

The run of half a million queries has a hundred million lines. Only the positions of each query's
lines are kept in memory; they are read when the query is searched.
"""

import math
from array import array
from collections.abc import Mapping
from pathlib import Path

from tqdm.auto import tqdm

from modeling_condenser.retrieval.runs import RUN_COLUMNS, Run, rank_passages


class RunFile:
    """A TREC run that is read query by query.

    Args:
        path: six columns a line, separated by blanks; the lines of a query are consecutive.
        progress: whether to show a bar.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a query's lines are not consecutive.
    """

    def __init__(self, path: str | Path, *, progress: bool = False) -> None:
        self._path = Path(path)
        if not self._path.is_file():
            raise FileNotFoundError(f"There is no run file {path}: correct the path.")
        self.query_numbers: dict[str, int] = {}  # in the order of the file
        self._starts = array("q")  # byte of each query's first line, and of the end
        self._index(progress)

    def _index(self, progress: bool) -> None:
        last, byte = None, 0
        size = self._path.stat().st_size
        bar = tqdm(total=size, desc="indexing the run", unit="B", delay=2, disable=not progress)
        with bar, self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                query_id = line.split(maxsplit=1)[0].decode() if line.strip() else last
                if query_id is not None and query_id != last:
                    if query_id in self.query_numbers:
                        raise ValueError(
                            f"{self._path}:{number}: the lines of query {query_id!r} are not "
                            "consecutive: sort the file, for example with `sort -s -k1,1`."
                        )
                    self.query_numbers[query_id] = len(self._starts)
                    self._starts.append(byte)
                    last = query_id
                byte += len(line)
                bar.update(len(line))
        self._starts.append(byte)

    def search(self, queries: Mapping[str, str], *, depth: int) -> Run:
        """The first `depth` passages that the run has for each query.

        Raises:
            ValueError: a line of a query is malformed.
        """
        run: Run = {}
        with self._path.open("rb") as file:
            for query_id in queries:
                if query_id not in self.query_numbers:
                    continue
                number = self.query_numbers[query_id]
                file.seek(self._starts[number])
                block = file.read(self._starts[number + 1] - self._starts[number])
                run[query_id] = dict(rank_passages(self._scores(block.decode()))[:depth])
        return run

    def _scores(self, block: str) -> dict[str, float]:
        scores: dict[str, float] = {}
        for line in block.split("\n"):
            if not line.strip():
                continue
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
