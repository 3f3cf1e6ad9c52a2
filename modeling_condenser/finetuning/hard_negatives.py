"""Files of hard negatives, one line a query, and the passages that are no negatives of a query."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from modeling_condenser.collection.collection import Collection, PassageIndex, hash_text
from modeling_condenser.collection.rows import plain_ending, read_json, read_table

NEGATIVES_FILE = "negatives.jsonl"  # in the output folder of `mine`


def read_hard_negatives(file: Path) -> Iterator[dict[str, Any]]:
    """Read a file of hard negatives, plain or .gz, or the folder that `condenser mine` wrote.

    It holds JSON lines as `condenser mine` writes them; or, if it is a .tsv or .txt file, lines of
    query id, tab and passage ids separated by commas (train.negatives.tsv of RocketQA).

    Yields:
        `query_id` and `negative_ids` (best first), and what else a line has: `positive_ids`, and a
        cross-encoder's `positive_teacher_scores` and `negative_teacher_scores` (log-odds).

    Raises:
        ValueError: a line has other fields, or not one score for each passage.
    """
    if file.is_dir():
        file /= NEGATIVES_FILE
    is_table = plain_ending(file) in (".tsv", ".txt")
    records: Any = read_table(file, ["query_id", "negative_ids"]) if is_table else read_json(file)
    for number, record in enumerate(records, start=1):
        if is_table:
            record["negative_ids"] = [name for name in record["negative_ids"].split(",") if name]
        for kind in ("positive", "negative"):
            names, scores = record.get(f"{kind}_ids"), record.get(f"{kind}_teacher_scores")
            is_missing = names is None and (kind == "negative" or scores is not None)
            is_list = names is None or isinstance(names, list)
            if is_missing or not is_list or "query_id" not in record:
                raise ValueError(
                    f"{file}, line {number}, has {', '.join(record)}; expected query_id and "
                    "negative_ids, a list of ids of passages, as `condenser mine` writes them. "
                    "Lines that contain the texts are data, not negatives."
                )
            if names is not None:
                record[f"{kind}_ids"] = [str(name) for name in names]
            if scores is not None and not isinstance(scores, list):
                raise ValueError(
                    f"{file}, line {number}: {kind}_teacher_scores is {scores!r:.80}, expected a "
                    "list of numbers."
                )
            if scores is not None and len(scores) != len(names):
                raise ValueError(
                    f"{file}, line {number}: {len(names)} {kind}_ids have {len(scores)} "
                    f"{kind}_teacher_scores."
                )
        record["query_id"] = str(record["query_id"])
        yield record


def judged_positives(collection: Collection) -> dict[str, list[str]]:
    """Return query id -> passages with a grade above 0, without queries that have none.

    Passages that the corpus lacks are left out.
    """
    positives: dict[str, list[str]] = {}
    for query_id, grades in collection.qrels.items():
        relevant = [name for name, grade in grades.items() if grade > 0]
        present = [name for name in relevant if name not in collection.absent]
        if present:
            positives[query_id] = present
    return positives


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
        query = hash_text(self._queries[query_id])
        known = {*positives, *self._positives.get(query, ())}
        contents = self._index.content[self._index.rows(list(known))].tolist()
        return {query_id, *known}, {query, *contents}
