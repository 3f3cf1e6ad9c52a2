"""A collection: passages, with the queries and the judgements (or answers) of one split."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from .lookup import find_missing

Qrels = dict[str, dict[str, int]]
"""Query id -> passage id -> grade; above 0 is relevant."""


@dataclass(frozen=True)
class Collection:
    """Passages, and the queries and judgements of one split; all ids fit together.

    Attributes:
        passages: columns `_id`, `title`, `text`, all strings, memory-mapped; ids are unique.
        queries: query id -> text; the judged queries only, in the order of their file.
        qrels: judgements of the same queries; empty where a collection is judged by answers only.
        answers: query id -> answer strings; empty where there are none.
        name: of the collection, in files and tables.
    """

    passages: Dataset
    queries: dict[str, str]
    qrels: Qrels
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    name: str = "collection"


def gather_judgements(rows: Iterable[tuple[str, str, Any]], *, source: str | Path) -> Qrels:
    """Collect judgements (query id, passage id, grade); a grade of 1.0 or "1" becomes 1."""
    qrels: Qrels = {}
    for query_id, passage_id, value in rows:
        grade = _whole_number(value)
        if grade is None:
            raise ValueError(f"{source}: the grade {value!r} is not a whole number.")
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
    questions: Iterable[tuple[str, Any, Any]],
    qrels: Qrels | None,
    *,
    name: str,
    source: str | Path,
) -> Collection:
    """Build a collection from its parts, and check them.

    Args:
        passages: all passages.
        questions: id, text and list of answers (or None) of all queries, judged or not.
        qrels: judgements of one split; None if only the answers tell what is relevant.
        name: of the collection.
        source: for errors.
    """
    queries: dict[str, str] = {}
    answers: dict[str, tuple[str, ...]] = {}
    for query_id, text, listed in questions:
        if query_id in queries or not isinstance(text, str):
            raise ValueError(
                f"{source}: query {query_id!r} has the text {text!r:.80}, expected a string, once."
            )
        queries[query_id] = text
        if listed:
            answers[query_id] = _check_answers(listed, source)
    if qrels is None:
        kept = [key for key in queries if key in answers]
    else:
        kept = [key for key in queries if key in qrels]
        judged = {passage_id for grades in qrels.values() for passage_id in grades}
        _refuse("passages", find_missing(judged, passages), source)
        _refuse("queries", [key for key in qrels if key not in queries], source)
    if not kept:
        raise ValueError(f"{source} holds no query that is judged or answered.")
    return Collection(
        passages=passages,
        queries={key: queries[key] for key in kept},
        qrels={} if qrels is None else {key: qrels[key] for key in kept},
        answers={key: answers[key] for key in kept if key in answers},
        name=name,
    )


def _whole_number(value: Any) -> int | None:
    try:
        return int(float(value)) if float(value).is_integer() else None
    except (TypeError, ValueError):
        return None


def _check_answers(answers: Any, source: str | Path) -> tuple[str, ...]:
    """Refuse blank answers, which DPR's matching would find in every passage."""
    if isinstance(answers, list) and all(isinstance(a, str) and a.strip() for a in answers):
        return tuple(answers)
    raise ValueError(
        f"{source}: the answers are {answers!r:.80}, expected a list of texts such as ['Oslo']."
    )


def _refuse(what: str, missing: list[str], source: str | Path) -> None:
    if missing:
        raise ValueError(
            f"{source}: {len(missing)} judged {what} are not in the collection, such as"
            f" {', '.join(map(repr, missing[:3]))}. Take all files from the same release."
        )
