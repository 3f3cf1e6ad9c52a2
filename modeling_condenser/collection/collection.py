"""A collection: passages, with the queries and judgements (or answers) of one split.

All layouts are read into this record. Its ids are checked against each other when it is built, so
that later stages need no checks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset

from .lookup import find_missing

Qrels = dict[str, dict[str, int]]
"""Query id -> passage id -> grade; above 0 is relevant."""


@dataclass(frozen=True)
class Collection:
    """Passages, and the queries and judgements of one split.

    Attributes:
        passages: columns `_id`, `title`, `text`, all strings, memory-mapped; ids are unique.
        queries: query id -> text; the judged queries only, in the order of their file.
        qrels: query id -> passage id -> grade, for the same queries; empty where a collection is
            judged by answers only.
        answers: query id -> answer strings; empty where there are none.
        name: of the collection, in files and tables.
    """

    passages: Dataset
    queries: dict[str, str]
    qrels: Qrels
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    name: str = "collection"


class Question(NamedTuple):
    """A query and, where a collection is judged by answers, its answers."""

    text: str
    answers: tuple[str, ...] = ()


def gather_questions(
    rows: Iterable[tuple[str, Question]], *, source: str | Path
) -> dict[str, Question]:
    """Put queries together by id.

    Raises:
        ValueError: there is no query, or two have the same id.
    """
    questions: dict[str, Question] = {}
    for query_id, question in rows:
        if query_id in questions:
            raise ValueError(f"{source}: two queries have the id {query_id!r}; ids must be unique.")
        questions[query_id] = question
    if not questions:
        raise ValueError(f"{source} holds no query. Download it again.")
    return questions


def gather_judgements(rows: Iterable[tuple[str, str, int]], *, source: str | Path) -> Qrels:
    """Put judgements (query id, passage id, grade) together by query.

    Raises:
        ValueError: there is no judgement, or a passage has two grades for one query.
    """
    qrels: Qrels = {}
    for query_id, passage_id, grade in rows:
        grades = qrels.setdefault(query_id, {})
        if grades.setdefault(passage_id, grade) != grade:
            raise ValueError(
                f"{source}: passage {passage_id!r} has the grades {grades[passage_id]} and {grade}"
                f" for query {query_id!r}. Remove one of the two lines."
            )
    if not qrels:
        raise ValueError(f"{source} holds no judgement. Download it again.")
    return qrels


def build_collection(
    passages: Dataset,
    questions: Mapping[str, Question],
    qrels: Qrels | None,
    *,
    name: str,
    source: str | Path,
) -> Collection:
    """Build a collection from its parts, and check that their ids fit together.

    Args:
        passages: all passages.
        questions: all queries by id, judged or not.
        qrels: judgements of one split; None if only the answers tell what is relevant.
        name: of the collection.
        source: of the judgements, for errors.

    Raises:
        ValueError: a judgement names a passage or a query that does not exist.
    """
    if qrels is None:
        kept = {key: question for key, question in questions.items() if question.answers}
    else:
        judged = {passage_id for grades in qrels.values() for passage_id in grades}
        _check_known("passages", find_missing(judged, passages), source)
        _check_known("queries", [key for key in qrels if key not in questions], source)
        kept = {key: question for key, question in questions.items() if key in qrels}
    return Collection(
        passages=passages,
        queries={key: question.text for key, question in kept.items()},
        qrels={} if qrels is None else {key: qrels[key] for key in kept},
        answers={key: question.answers for key, question in kept.items() if question.answers},
        name=name,
    )


def _check_known(what: str, missing: list[str], source: str | Path) -> None:
    if missing:
        raise ValueError(
            f"{source} judges {len(missing)} {what} that the collection does not have, such as"
            f" {', '.join(map(repr, missing[:3]))}. Take all files from the same release."
        )
