"""A run file of any size as a searcher: a TREC run in, the passages of some of its queries out.

The run of half a million queries has a hundred million lines. Only where each query's lines lie is
kept in memory; they are read again when the query's turn comes.
"""

import math
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path

from tqdm.auto import tqdm

from modeling_condenser.retrieval.runs import RUN_COLUMNS, Run, rank_passages


class RunFile:
    """A TREC run whose queries are read when they are asked for.

    Args:
        path: six columns a line, separated by blanks; the lines of a query stand together.
        progress: whether to show a bar.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a malformed line, a passage that a query lists twice, or a query whose lines do
            not stand together; the message names file and line.
    """

    def __init__(self, path: str | Path, *, progress: bool = False) -> None:
        self._path = Path(path)
        if not self._path.is_file():
            raise FileNotFoundError(f"no run file at {path}: mend the path")
        self._number: dict[str, int] = {}  # of a query, in the order of the file
        self._first = array("q")  # byte in the file, one entry more than there are queries
        self._index(progress)

    def search(self, queries: Mapping[str, str], *, depth: int) -> Run:
        """The first `depth` passages that the run has for each of the queries."""
        run: Run = {}
        with self._path.open("rb") as file:
            for query_id in queries:
                number = self._number.get(query_id)
                if number is None:
                    continue
                file.seek(self._first[number])
                block = file.read(self._first[number + 1] - self._first[number]).decode()
                lines = (line.split() for line in block.split("\n") if line.strip())
                scores = {passage_id: float(score) for _, _, passage_id, _, score, _ in lines}
                run[query_id] = dict(rank_passages(scores)[:depth])
        return run

    def count_known(self, query_ids: Iterable[str]) -> int:
        """How many of the queries the run has."""
        return sum(query_id in self._number for query_id in query_ids)

    def _index(self, progress: bool) -> None:
        """Check all lines, and note where each query's begin."""
        last, byte = None, 0
        passages: set[str] = set()  # of one query
        bar = tqdm(
            total=self._path.stat().st_size,
            desc=f"reading {self._path.name}",
            unit="B",
            unit_scale=True,
            disable=not progress,
            delay=2,
        )
        with bar, self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    place = f"{self._path}:{number}"
                    query_id, passage_id = _parse_line(line, place)
                    if query_id != last:
                        self._begin(query_id, byte, place)
                        last, passages = query_id, set()
                    if passage_id in passages:
                        raise ValueError(
                            f"{place}: query {query_id!r} lists passage {passage_id!r} a second "
                            "time: expected it once; drop one of the two lines"
                        )
                    passages.add(passage_id)
                byte += len(line)
                bar.update(len(line))
        self._first.append(byte)

    def _begin(self, query_id: str, byte: int, place: str) -> None:
        if query_id in self._number:
            raise ValueError(
                f"{place}: query {query_id!r} stands further up too, with other queries between: "
                "expected its lines together; sort the file, as with `sort -s -k1,1`"
            )
        self._number[query_id] = len(self._first)
        self._first.append(byte)


def _parse_line(line: bytes, place: str) -> tuple[str, str]:
    """Query and passage of a line that is well made."""
    try:
        columns = line.decode().split()
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: not UTF-8 ({error}): expected text; mend the line") from error
    if len(columns) != len(RUN_COLUMNS):
        raise ValueError(
            f"{place}: {len(columns)} columns, expected {len(RUN_COLUMNS)}"
            f" ({' '.join(RUN_COLUMNS)}): mend the line {line.decode().strip()!r}"
        )
    query_id, _, passage_id, _, score, _ = columns
    try:
        is_finite = math.isfinite(float(score))
    except ValueError:
        is_finite = False
    if not is_finite:
        raise ValueError(
            f"{place}: score {score!r}, expected a finite number in column 5: mend the line"
        )
    return query_id, passage_id
