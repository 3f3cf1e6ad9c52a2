"""Judgements, and what they leave of a collection: lines in, a `Collection` whose ids fit out.

Two kinds of files hold judgements: BEIR's (a header, then query, passage, grade between tabs; MTEB
has the same as JSON lines) and TREC's (query, an unused column, passage, grade between any blanks;
RocketQA's have query and passage alone, all of grade 1).
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset

from .collection import Collection, Qrels
from .passages import find_missing
from .records import read_grade, read_id
from .text_files import plain_name, read_lines, read_objects

logger = logging.getLogger(__name__)

QRELS_HEADER = ("query-id", "corpus-id", "score")


class Judgement(NamedTuple):
    """One line of judgements."""

    place: str
    query_id: str
    passage_id: str
    grade: int


class Question(NamedTuple):
    """One query of a collection, with the strings that answer it, if that is how it is judged."""

    text: str
    answers: tuple[str, ...] = ()


def read_beir_qrels(path: Path) -> Qrels:
    """Read BEIR's judgements, `.tsv` or `.jsonl`.

    Raises:
        ValueError: no header, a malformed line, a pair judged twice with different grades, or no
            judgement; the message names the line.
    """
    is_json = plain_name(path).endswith(".jsonl")
    return gather_judgements(_beir_objects(path) if is_json else _beir_lines(path), source=path)


def _beir_objects(path: Path) -> Iterator[Judgement]:
    for number, record in read_objects(path):
        yield read_judgement(record, place=f"{path}:{number}")


def read_judgement(record: Mapping[str, object], *, place: str) -> Judgement:
    """A judgement from the columns of BEIR and MTEB."""
    query_id, passage_id = (read_id(record, key, place=place) for key in QRELS_HEADER[:2])
    return Judgement(place, query_id, passage_id, read_grade(record.get("score"), place=place))


def _beir_lines(path: Path) -> Iterator[Judgement]:
    lines = read_lines(path)
    number, line = next(lines, (1, ""))
    header = tuple(line.split("\t"))
    if header != QRELS_HEADER:
        raise ValueError(
            f"{path}:{number}: header {header}, expected {QRELS_HEADER}, separated by tabs: add it"
        )
    for number, line in lines:
        place, fields = f"{path}:{number}", line.split("\t")
        if len(fields) != len(QRELS_HEADER) or not all(fields):
            raise ValueError(
                f"{place}: {fields}, expected a query id, a passage id and a whole number,"
                " separated by tabs: mend the line"
            )
        yield Judgement(place, fields[0], fields[1], read_grade(fields[2], place=place))


def read_trec_qrels(path: Path) -> Qrels:
    """Read TREC's judgements, or pairs of query and passage, which are relevant.

    Raises:
        ValueError: a malformed line, a pair judged twice with different grades, or no judgement;
            the message names the line.
    """
    return gather_judgements(_trec_lines(path), source=path)


def _trec_lines(path: Path) -> Iterator[Judgement]:
    width = None  # of the first line; a file does not mix the two
    for number, line in read_lines(path):
        place, fields = f"{path}:{number}", line.split()
        if len(fields) not in (2, 4) or width not in (None, len(fields)):
            raise ValueError(
                f"{place}: {len(fields)} fields, expected {width or '4 (query, 0, passage, grade)'}"
                f"{'' if width else ' or 2 (query, passage)'}, separated by tabs or blanks: mend"
                " the line"
            )
        width = len(fields)
        if width == 2:
            yield Judgement(place, fields[0], fields[1], 1)
        else:
            yield Judgement(place, fields[0], fields[2], read_grade(fields[3], place=place))


def gather_judgements(judgements: Iterable[Judgement], *, source: str | Path) -> Qrels:
    """Put judgements together by query; a line that merely repeats another is dropped.

    Raises:
        ValueError: a pair is judged twice with different grades, or there is no judgement.
    """
    qrels: Qrels = {}
    repeated = 0
    for place, query_id, passage_id, grade in judgements:
        grades = qrels.setdefault(query_id, {})
        if grades.setdefault(passage_id, grade) != grade:
            raise ValueError(
                f"{place}: query {query_id!r} judges passage {passage_id!r} a second time, {grade}"
                f" after {grades[passage_id]}, expected one grade: drop one of the two lines"
            )
        repeated += 1
    if not qrels:
        raise ValueError(
            f"{source} judges no query, expected at least one line of judgements (besides a"
            " header): the file is empty or cut off; fetch it again"
        )
    repeated -= sum(len(grades) for grades in qrels.values())
    if repeated:
        logger.warning("%s: %d lines repeat a judgement and are dropped.", source, repeated)
    return qrels


def gather_questions(
    rows: Iterable[tuple[str, str, Question]], *, source: str
) -> dict[str, Question]:
    """Put the queries of a file together by id.

    Args:
        rows: place (file and line), id and question.
        source: the file, for errors.

    Raises:
        ValueError: an id stands twice, or there is no row.
    """
    questions: dict[str, Question] = {}
    for place, query_id, question in rows:
        if query_id in questions:
            raise ValueError(
                f"{place}: id {query_id!r} stands on an earlier line too, expected unique ids:"
                " rename or drop one of the two"
            )
        questions[query_id] = question
    if not questions:
        raise ValueError(
            f"{source} holds no query, expected at least one: the file is empty or cut off; fetch"
            " it again"
        )
    return questions


def judged_by_passages(
    passages: Dataset,
    questions: Mapping[str, Question],
    qrels: Qrels,
    *,
    name: str,
    places: tuple[str | Path, str | Path, str | Path],
) -> Collection:
    """The judged queries, their judgements and, where there are any, their answers.

    Args:
        passages: all passages.
        questions: all queries by id, whether judged or not.
        qrels: the judgements of one split.
        name: of the collection.
        places: where passages, queries and judgements were read, for errors.

    Raises:
        ValueError: a judgement of a passage or of a query that there is not.
    """
    corpus, queries, place = places
    judged = {passage_id for grades in qrels.values() for passage_id in grades}
    _refuse(find_missing(judged, passages), where=corpus, place=place)
    _refuse(
        [query_id for query_id in qrels if query_id not in questions], where=queries, place=place
    )
    kept = {query_id: question for query_id, question in questions.items() if query_id in qrels}
    logger.debug("%s: %d of %d queries are judged", place, len(kept), len(questions))
    return Collection(
        passages=passages,
        queries={query_id: question.text for query_id, question in kept.items()},
        qrels={query_id: qrels[query_id] for query_id in kept},
        answers={
            query_id: question.answers for query_id, question in kept.items() if question.answers
        },
        name=name,
    )


def judged_by_answers(
    passages: Dataset, questions: Mapping[str, Question], *, name: str
) -> Collection:
    """The queries that have answers, which alone tell whether a passage is relevant."""
    kept = {query_id: question for query_id, question in questions.items() if question.answers}
    return Collection(
        passages=passages,
        queries={query_id: question.text for query_id, question in kept.items()},
        qrels={},
        answers={query_id: question.answers for query_id, question in kept.items()},
        name=name,
    )


def _refuse(missing: list[str], *, where: str | Path, place: str | Path) -> None:
    if missing:
        raise ValueError(
            f"{place} names {len(missing)} ids that {where} lacks, such as {missing[0]!r}: expected"
            " every judged id there; take both from the same release, or drop those lines"
        )
