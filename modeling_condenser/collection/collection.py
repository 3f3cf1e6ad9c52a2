"""A collection: passages, with the queries and the judgements (or answers) of one split."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from .passages import COLUMNS, check_id, find_rows

logger = logging.getLogger(__name__)

Qrels = dict[str, dict[str, int]]
"""Query id -> passage id -> grade; above 0 is relevant."""

Question = tuple[str, Any, Any]
"""Query id, text, and a list of answers or None."""

Judgement = tuple[str, str, Any]
"""Query id, passage id, grade; 1.0 and "1" are the grade 1."""

_BATCH_ROWS = 8192  # part of the fingerprint's definition
# By object: the fingerprint of `datasets` is that of a path and a time for rows in a file.
_fingerprints: WeakKeyDictionary[Dataset, str] = WeakKeyDictionary()


@dataclass(frozen=True)
class Collection:
    """Passages, and the queries and judgements of one split, whose ids are checked.

    Attributes:
        passages: columns `_id` (unique), `title`, `text`, all strings, memory-mapped.
        queries: query id -> text, of the judged queries, in the order of their file.
        qrels: judgements of these queries; empty if they have only answers.
        absent: judged passages that `passages` lacks; they are never found.
        shared: other split -> number of these queries that it has too; see `load_reported`.
        answers: query id -> answer strings.
        name: of the collection, in files and tables.
    """

    passages: Dataset
    queries: dict[str, str]
    qrels: Qrels
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    shared: Mapping[str, int] = field(default_factory=dict)
    name: str = "collection"


def gather_judgements(judgements: Iterable[Judgement]) -> Qrels:
    """Collect the judgements of each query; two grades of one passage are a ValueError."""
    qrels: Qrels = {}
    for query_id, passage_id, grade in judgements:
        try:
            number = float(grade)
        except (TypeError, ValueError):
            number = float("nan")
        if not number.is_integer():
            raise ValueError(
                f"the grade of passage {passage_id!r} for query {query_id!r} is {grade!r}, expected"
                " a whole number."
            )
        first = qrels.setdefault(query_id, {}).setdefault(passage_id, int(number))
        if first != number:
            raise ValueError(
                f"passage {passage_id!r} has two grades for query {query_id!r}, {first} and"
                f" {grade}: keep one."
            )
    return qrels


def build_collection(
    passages: Dataset,
    questions: Iterable[Question],
    judgements: Iterable[Judgement] | None,
    *,
    name: str,
) -> Collection:
    """Build a collection from all queries and the judgements of one split, and check both.

    If `judgements` is None, the queries with answers are kept.
    """
    queries: dict[str, str] = {}
    answers: dict[str, tuple[str, ...]] = {}
    for query_id, text, listed in questions:
        if query_id in queries:
            raise ValueError(f"two queries have the id {query_id!r}; ids must be unique.")
        if not isinstance(text, str):
            raise ValueError(f"the text of query {query_id!r} is {text!r:.80}, expected text.")
        check_id(query_id, "the id of a query")
        queries[query_id] = text
        if listed:
            # `AnswerMatcher` finds a blank answer in every passage.
            if not isinstance(listed, list) or not all(
                isinstance(answer, str) and answer.strip() for answer in listed
            ):
                raise ValueError(
                    f"the answers are {listed!r:.80}, expected a list of texts such as ['Oslo']."
                )
            answers[query_id] = tuple(listed)
    qrels = gather_judgements(judgements or ())
    judged = answers if judgements is None else qrels
    if missing := judged.keys() - queries.keys():
        raise ValueError(
            f"{len(missing)} judged queries are not in the collection, such as {min(missing)!r}."
        )
    if not judged:
        raise ValueError("no query has judgements or answers.")
    absent = _find_absent(passages, qrels)
    collection = Collection(passages, queries, qrels, answers, absent, name=name)
    return keep_queries(collection, judged.keys())


def keep_queries(collection: Collection, kept: Set[str]) -> Collection:
    """Return the collection with only these queries, in the order of `collection`."""
    queries = {key: text for key, text in collection.queries.items() if key in kept}
    return replace(
        collection,
        queries=queries,
        qrels={key: collection.qrels[key] for key in queries if key in collection.qrels},
        answers={key: collection.answers[key] for key in queries if key in collection.answers},
    )


def _find_absent(passages: Dataset, qrels: Qrels) -> frozenset[str]:
    """Find the judged passages that a corpus lacks; ArguAna as published has five."""
    judged = {passage for grades in qrels.values() for passage in grades}
    absent = judged - find_rows(passages, judged, strict=False).keys()
    if not absent:
        return frozenset()
    problem = (
        f"{len(absent)} of {len(judged)} judged passages are not in the corpus, such as"
        f" {', '.join(map(repr, sorted(absent)[:3]))}"
    )
    if absent == judged:
        raise ValueError(f"{problem}. Take judgements and passages from the same release.")
    logger.warning("%s. In measures they count as never found; they are not trained on.", problem)
    return frozenset(absent)


# Embeddings, run folders and model cards record fingerprints, so these functions must not change.


def fingerprint_passages(passages: Dataset) -> str:
    """Return the SHA-256 of the ids, titles and texts of passages, in their order.

    A data set is read once; later calls take the result of the first.
    """
    if passages not in _fingerprints:
        _fingerprints[passages] = _hash_passages(passages)
    return _fingerprints[passages]


def _hash_passages(passages: Dataset) -> str:
    """Hash, for each 8,192 rows and each column, the lengths in bytes (int64, little-endian), and
    then the texts (UTF-8)."""
    digest = hashlib.sha256(b"condenser passages 1")
    table = passages.select_columns(list(COLUMNS)).with_format("arrow")
    for batch in table.iter(batch_size=_BATCH_ROWS):
        for column in COLUMNS:
            texts = batch[column].cast(pa.large_binary())
            digest.update(pc.binary_length(texts).to_numpy().astype("<i8").tobytes())
            digest.update(b"".join(texts.to_numpy()))
    digest.update(len(passages).to_bytes(8, "little"))
    return digest.hexdigest()


def fingerprint_judgements(collection: Collection) -> str:
    """Return the SHA-256 of queries, judgements and answers, whatever their order."""
    digest = hashlib.sha256(b"condenser judgements 1")
    for query_id in sorted(collection.queries):
        grades = sorted(collection.qrels.get(query_id, {}).items())
        answers = sorted(collection.answers.get(query_id, ()))
        line = [query_id, collection.queries[query_id], grades, answers]
        digest.update(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def checksum_qrels(qrels: Mapping[str, Mapping[str, int]]) -> str:
    """Return the SHA-256 of the sorted lines of a TREC qrels file (`LC_ALL=C sort | sha256sum`)."""
    lines = sorted(
        f"{query_id} 0 {passage_id} {grade}\n".encode()
        for query_id, grades in qrels.items()
        for passage_id, grade in grades.items()
    )
    return hashlib.sha256(b"".join(lines)).hexdigest()
