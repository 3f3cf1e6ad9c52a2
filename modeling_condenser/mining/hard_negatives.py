"""Files of hard negatives: one line a query, as mining writes and fine-tuning reads them."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.passages import PassageIndex, hash_text
from modeling_condenser.collection.text_files import plain_ending, read_lines


@dataclass(frozen=True)
class HardNegatives:
    """The hard negatives of one query.

    Attributes:
        query_id: the query.
        positive_ids: passages that are relevant by judgement or by the cross-encoder.
        negative_ids: best first; empty if no candidate remained.
        positive_teacher_scores, negative_teacher_scores: the cross-encoder's (log-odds), or None.
    """

    query_id: str
    positive_ids: tuple[str, ...] = ()
    negative_ids: tuple[str, ...] = ()
    positive_teacher_scores: tuple[float, ...] | None = None
    negative_teacher_scores: tuple[float, ...] | None = None


_LISTS = {field.name for field in fields(HardNegatives)} - {"query_id"}


def judged_positives(collection: Collection) -> dict[str, tuple[str, ...]]:
    """Return query id -> passages with a grade above 0, without queries that have none.

    Passages that the corpus lacks are left out.
    """
    absent = collection.absent
    positives = {
        query_id: tuple(p for p, grade in grades.items() if grade > 0 and p not in absent)
        for query_id, grades in collection.qrels.items()
    }
    return {query_id: ids for query_id, ids in positives.items() if ids}


class KnownPassages:
    """The passages of a collection that are no negatives of a query.

    These are the positives of all queries with its text, the query itself as a passage (by id or by
    text), and near-copies of these passages: texts that differ in blanks or case.
    """

    def __init__(self, collection: Collection, index: PassageIndex):
        self._queries, self._index = collection.queries, index
        self._positives: dict[int, list[str]] = defaultdict(list)  # hash of a query's text -> ids
        for query_id, positives in judged_positives(collection).items():
            self._positives[hash_text(collection.queries[query_id])] += positives

    def find(self, query_id: str, positives: Sequence[str]) -> tuple[set[str], set[int]]:
        """Return ids and text hashes (`PassageIndex.content`) of a query's known passages."""
        own = hash_text(self._queries[query_id])
        known = {*positives, *self._positives.get(own, ())}
        contents = self._index.content[self._index.rows(list(known))].tolist()
        return {query_id, *known}, {own, *contents}


def _make(record: Mapping[str, Any]) -> HardNegatives:
    """Make a record of a line's fields, whose ids may be numbers."""
    lists: dict[str, Any] = {}
    for name in _LISTS & record.keys():
        if isinstance(record[name], str):
            raise ValueError(f"{name} is {record[name]!r}, expected a list")
        convert = str if name.endswith("_ids") else float
        lists[name] = tuple(map(convert, record[name]))
    for side in ("positive", "negative"):
        scores = lists.get(f"{side}_teacher_scores")
        if scores is not None and len(scores) != len(lists.get(f"{side}_ids", ())):
            raise ValueError(f"{side}_teacher_scores and {side}_ids differ in length")
    return HardNegatives(str(record["query_id"]), **lists)


def read_hard_negatives(file: Path) -> Iterator[HardNegatives]:
    """Read a file of hard negatives, which may end in .gz.

    It holds JSON lines as `condenser mine` writes them; or, if it is a .tsv or .txt file, lines of
    query id, tab and passage ids separated by commas (train.negatives.tsv of RocketQA).

    Raises:
        ValueError: a line is malformed.
    """
    is_table = plain_ending(file) in (".tsv", ".txt")
    for number, line in read_lines(file):
        try:
            if is_table:
                query_id, joined = line.split("\t")
                record = {"query_id": query_id, "negative_ids": filter(None, joined.split(","))}
            else:
                record = json.loads(line)
            yield _make(record)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{file}:{number}: {line!r:.80} cannot be read ({error}); expected JSON as "
                "`condenser mine` writes it, or in .tsv a query id, a tab, and ids with commas."
            ) from error
