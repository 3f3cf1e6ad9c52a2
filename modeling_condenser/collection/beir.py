"""BEIR folders (Thakur et al. 2021) as collections.

In: `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`, for some collections
`answers`) and `qrels/<split>.tsv` (header `query-id corpus-id score`) or, as MTEB has it,
`qrels/<split>.jsonl`; each also with `.gz`. Out: a `Collection`, whose ids are known to fit.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from .collection import Collection
from .judgements import (
    Question,
    gather_questions,
    judged_by_answers,
    judged_by_passages,
    read_beir_qrels,
)
from .passages import Row, store_passages
from .records import read_answers, read_id, read_text, read_title
from .text_files import find_file, plain_name, read_objects

CORPUS_FILE = "corpus.jsonl"
QUERIES_FILE = "queries.jsonl"
QRELS_FOLDER = "qrels"
_QRELS_ENDINGS = (".tsv", ".jsonl")


def is_beir_folder(folder: Path) -> bool:
    """Whether a folder holds a corpus as BEIR has it."""
    return find_file(folder, CORPUS_FILE) is not None


def load_beir_collection(
    path: str | Path,
    *,
    split: str = "test",
    qrels_folder: Path | None = None,
    name: str | None = None,
) -> Collection:
    """Load one split of a BEIR folder.

    A split without a file of judgements is judged by answers: it holds the queries that have some
    and that no other split judges.

    Args:
        path: the folder.
        split: name of a file in `qrels/`, without its ending.
        qrels_folder: where the judgements are, `qrels/` by default.
        name: of the collection, by default the folder's.

    Returns:
        All passages, and the queries that the split judges.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: unknown split, malformed line, empty file, duplicate id, or an id in the qrels
            that the corpus or the queries lack; the message names file and line, or id.
    """
    folder = _find_folder(path)
    name = name or folder.resolve().name
    qrels_files = find_qrels_files(qrels_folder or folder / QRELS_FOLDER)
    queries_file = _need_file(folder, QUERIES_FILE)
    qrels = read_beir_qrels(qrels_files[split]) if split in qrels_files else None
    questions = gather_questions(_read_questions(queries_file), source=str(queries_file))
    if qrels is None:
        questions = _answered(questions, qrels_files, folder=folder, split=split)
        return judged_by_answers(load_beir_passages(folder), questions, name=name)
    return judged_by_passages(
        load_beir_passages(folder),
        questions,
        qrels,
        name=name,
        places=(_need_file(folder, CORPUS_FILE), queries_file, qrels_files[split]),
    )


def load_beir_passages(path: str | Path) -> Dataset:
    """Load the passages of a BEIR folder: columns `_id`, `title`, `text`.

    Raises:
        FileNotFoundError: the folder or its corpus is missing.
        ValueError: malformed line, empty file or duplicate id.
    """
    file = _need_file(_find_folder(path), CORPUS_FILE)
    return store_passages(partial(_read_passages, file), files=[file], where=str(file))


def find_qrels_files(folder: Path) -> dict[str, Path]:
    """Split -> file of its judgements, of all files in a folder that could hold some."""
    files: dict[str, Path] = {}
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        ending = Path(plain_name(path)).suffix
        if path.is_file() and ending in _QRELS_ENDINGS:
            files.setdefault(plain_name(path).removesuffix(ending), path)
    return files


def read_question(record: Mapping[str, Any], *, place: str) -> Question:
    """The text of a query and, where it has some, its answers."""
    answers = record.get("answers")
    found = () if answers is None else read_answers(answers, place=place)
    return Question(read_text(record, "text", place=place), found)


def _read_passages(file: Path) -> Iterator[Row]:
    for number, record in read_objects(file):
        place = f"{file}:{number}"
        passage_id = read_id(record, "_id", place=place)
        text = read_text(record, "text", place=place)
        yield number, passage_id, read_title(record, place=place), text


def _read_questions(file: Path) -> Iterator[tuple[str, str, Question]]:
    for number, record in read_objects(file):
        place = f"{file}:{number}"
        yield place, read_id(record, "_id", place=place), read_question(record, place=place)


def _answered(
    questions: dict[str, Question], qrels_files: dict[str, Path], *, folder: Path, split: str
) -> dict[str, Question]:
    """The queries with answers that no file of judgements names: the split without a file."""
    answered = {query_id: question for query_id, question in questions.items() if question.answers}
    if answered:
        for file in qrels_files.values():
            for query_id in read_beir_qrels(file):
                answered.pop(query_id, None)
    if answered:
        return answered
    if not qrels_files:
        raise FileNotFoundError(
            f"{folder} judges nothing: expected {QRELS_FOLDER}/<split>.tsv, or queries with"
            ' "answers"; add a qrels file'
        )
    raise ValueError(
        f"{folder} has no split {split!r}, expected one of {', '.join(sorted(qrels_files))}: choose"
        " one of them"
    )


def _find_folder(path: str | Path) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no collection at {folder}: expected a folder with {CORPUS_FILE}, {QUERIES_FILE} and"
            f" {QRELS_FOLDER}/; mend the path"
        )
    return folder


def _need_file(folder: Path, name: str) -> Path:
    file = find_file(folder, name)
    if file is None:
        raise FileNotFoundError(f"no {name} in {folder}: a BEIR folder has one; add it")
    return file
