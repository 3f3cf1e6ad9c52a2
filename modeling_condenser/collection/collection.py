"""A collection: passages, with the queries and the judgements (or answers) of one split."""

import hashlib
import json
import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Value

from .rows import file_states, iterate_rows, store_rows

logger = logging.getLogger(__name__)

COLUMNS = ("_id", "title", "text")

Row = tuple[Any, Any, Any]
"""Id, title, text; `check_passages` checks that they are strings."""

Qrels = dict[str, dict[str, int]]
"""Query id -> passage id -> grade; above 0 is relevant."""

Question = tuple[str, Any, Any]
"""Query id, text, and a list of answers or None."""

Judgement = tuple[str, str, Any]
"""Query id, passage id, grade; 1.0 and "1" are the grade 1."""

_BATCH_ROWS = 8192  # part of the fingerprint's definition
# By object: the fingerprint of `datasets` is that of a path and a time for rows in a file.
_fingerprints: WeakKeyDictionary[Dataset, str] = WeakKeyDictionary()


def store_passages(rows: Iterable[Row], files: Sequence[Path]) -> Dataset:
    """Check and store passages, or open them if these files were read before.

    Returns:
        Columns `_id`, `title`, `text`, all strings, memory-mapped, in the order of the rows.
    """
    what = ", ".join(map(str, files))
    features = {column: Value("string") for column in COLUMNS}
    identity = ["passages 2", *file_states(files)]
    return store_rows(lambda: check_passages(rows, what), features, identity=identity)


def check_passages(rows: Iterable[Row], what: str) -> Iterator[dict[str, str]]:
    """Check rows one by one, and yield them by `COLUMNS`; `what` is for the messages.

    Raises:
        ValueError: an id, title or text is no text, an id has white space, two passages have one
            id, or there are no passages.
    """
    # Hashes of 64 bits: two of 10 million ids share one with a probability of 3e-6.
    hashes, n_blank = array("q"), 0
    for row in rows:
        if not all(isinstance(value, str) for value in row):
            raise ValueError(
                f"{what}: got the id, title and text {row!r:.100}, expected three texts."
            )
        hashes.append(hash(row[0]))
        check_id(row[0], f"{what}: the id of passage {len(hashes)}")
        n_blank += not any(map(str.strip, row[1:]))
        yield dict(zip(COLUMNS, row, strict=True))
    if not hashes:
        raise ValueError(f"{what}: there are no passages, expected at least one.")
    repeated = pd.Series(hashes).duplicated()
    if repeated.any():
        raise ValueError(
            f"{what}: {repeated.sum()} passages repeat the id of another one, the first is "
            f"passage {repeated.argmax() + 1}; ids must be unique."
        )
    if n_blank:
        logger.warning("%s: %d passages have neither a title nor a text", what, n_blank)


def check_id(name: str, what: str) -> None:
    """Raise a ValueError unless an id is one word, as run files need; `what` is for the message."""
    if name.split() != [name]:
        raise ValueError(
            f"{what} is {name!r:.80}, expected no white space, which separates the columns of run "
            "files: replace it, such as by '_', also in the judgements."
        )


def check_text(text: str, what: str) -> None:
    """Raise a ValueError of a text with half a character, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{what} is {text!r:.80}, which has half of a character (a lone surrogate): replace it "
            "by text.encode(errors='replace').decode()."
        ) from None


def plain_text(text: str) -> str:
    """Return a text in lower case, with single blanks, to compare it with near-copies."""
    return " ".join(text.split()).casefold()


def hash_text(text: str) -> int:
    """Return the hash of a text's `plain_text`, in this process."""
    return hash(plain_text(text))


def find_rows(passages: Dataset, ids: Iterable[str], *, strict: bool = True) -> dict[str, int]:
    """Return the row of each id, in the order of the rows, with one scan of the column `_id`.

    An unknown id is a ValueError, or has no row if not `strict`.
    """
    wanted = sorted(set(ids))
    column = passages.select_columns(["_id"]).with_format("arrow")[:]["_id"]
    is_wanted = pc.is_in(column, value_set=pa.array(wanted, type=column.type))
    in_passages = column.filter(is_wanted).to_pylist()
    rows: dict[str, int] = dict(zip(in_passages, np.flatnonzero(is_wanted).tolist(), strict=True))
    if strict and (missing := [name for name in wanted if name not in rows]):
        raise ValueError(
            f"{len(missing)} of {len(wanted)} passage ids are not in the collection, such as"
            f" {', '.join(map(repr, missing[:3]))}. Take ids and passages from the same release."
        )
    return rows


def titles_and_texts(passages: Dataset, rows: Sequence[int] | np.ndarray) -> list[tuple[str, str]]:
    """Return the titles and texts of rows, in the given order."""
    # Reading in the order of the file is several times as fast as in any other order.
    unique, inverse = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
    batch = passages[unique]
    pairs = list(zip(batch["title"], batch["text"], strict=True))
    return [pairs[i] for i in inverse]


class PassageIndex:
    """Finds passages by id repeatedly, and shows which passages have the same text.

    Memory holds only 64-bit hashes of ids and texts.
    """

    def __init__(self, passages: Dataset):
        self._passages = passages
        rows = iterate_rows(passages.select_columns(["_id"]))
        self._ids = pd.Index(np.asarray(array("q", (hash(row["_id"]) for row in rows))))

    @cached_property
    def content(self) -> np.ndarray:
        """`hash_text` of the texts (of the titles, where the text is empty), (N,) int64."""
        rows = iterate_rows(self._passages.select_columns(["title", "text"]))
        hashes = (hash_text(row["text"] or f"\0{row['title']}") for row in rows)
        return np.asarray(array("q", hashes))

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """Return the rows of ids, (n,) int64; an unknown id is a ValueError."""
        rows = self._ids.get_indexer(np.fromiter(map(hash, ids), np.int64, len(ids)))
        if -1 in rows:
            raise ValueError(
                f"The collection has no passage {ids[rows.argmin()]!r}. Take ids and passages from"
                " the same release."
            )
        return rows

    def read(self, ids: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return passage id -> (title, text)."""
        unique = list(dict.fromkeys(ids))
        return dict(zip(unique, titles_and_texts(self._passages, self.rows(unique)), strict=True))


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


def sample_collection(
    collection: Collection, *, n_queries: int, n_passages: int, seed: int
) -> Collection:
    """Queries with a relevant passage, the passages judged for them, and others, all at random.

    There are up to `n_queries` queries, and `n_passages` passages unless more are judged.

    Raises:
        ValueError: no query has a relevant passage in the collection.
    """
    known = {
        query: {p: grade for p, grade in grades.items() if p not in collection.absent}
        for query, grades in collection.qrels.items()
    }
    answerable = [query for query, grades in known.items() if max(grades.values(), default=0) > 0]
    if not answerable:
        raise ValueError(
            f"No query of {collection.name} has a relevant passage among its passages: choose "
            "another split or collection."
        )
    generator = np.random.default_rng(seed)
    qrels = {q: known[q] for q in generator.permutation(answerable)[:n_queries].tolist()}
    judged = {passage for grades in qrels.values() for passage in grades}
    rows = list(find_rows(collection.passages, judged).values())
    others = np.setdiff1d(np.arange(len(collection.passages)), rows)
    n_others = min(max(n_passages - len(rows), 0), len(others))
    drawn = generator.choice(others, n_others, replace=False)
    return replace(
        collection,
        passages=collection.passages.select(sorted([*rows, *drawn.tolist()])),
        queries={query: collection.queries[query] for query in qrels},
        qrels=qrels,
        answers={},
    )


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
