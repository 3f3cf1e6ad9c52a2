"""DPR's files (Karpukhin et al. 2020) as collections that are judged by answers.

In: `psgs_w100.tsv` (header `id text title`, tabs between columns) and question files such as
`nq-test.qa.csv` (question, tab, Python's spelling of a list of answers); each also with `.gz`. Both
come from a CSV writer, so that a field may stand in quotes, with the quotes within it doubled. Out:
a `Collection` without judgements; `answers.py` says whether a passage holds an answer.
"""

import ast
import csv
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from datasets import Dataset

from .collection import Collection
from .judgements import Question, gather_questions, judged_by_answers
from .passages import Row, store_passages
from .records import read_answers, read_id
from .text_files import plain_name, read_lines

PASSAGES_PATTERN = "psgs*.tsv*"
_COLUMNS = ("id", "text", "title")
_QUESTION_ENDINGS = (".qa.csv", ".csv")


def is_dpr_folder(folder: Path) -> bool:
    """Whether a folder holds DPR's passages."""
    return bool(_list_passage_files(folder))


def load_dpr_collection(path: str | Path, *, split: str = "nq-test") -> Collection:
    """Load the questions of one file, over DPR's passages.

    Args:
        path: the folder.
        split: name of the question file without `.qa.csv` or `.csv`, such as "nq-test".

    Returns:
        All passages, and the questions with their answers; a question's id is its place in the
        file, from 0. There are no judgements.

    Raises:
        FileNotFoundError: the folder lacks passages or questions.
        ValueError: unknown split, malformed line, empty file or duplicate id; the message names the
            line.
    """
    folder = Path(path)
    files = _find_questions(folder)
    if not files:
        raise FileNotFoundError(
            f"{folder} holds no questions: expected a file such as nq-test.qa.csv beside the"
            " passages; add it"
        )
    if split not in files:
        raise ValueError(
            f"{folder} has no split {split!r}, expected one of {', '.join(files)}: choose one of"
            " them"
        )
    questions = gather_questions(_read_questions(files[split]), source=str(files[split]))
    name = folder.resolve().name
    return judged_by_answers(load_dpr_passages(folder), questions, name=name)


def load_dpr_passages(path: str | Path) -> Dataset:
    """Load DPR's passages: columns `_id`, `title`, `text`.

    Raises:
        FileNotFoundError: the folder holds none.
        ValueError: two files of passages, no header, malformed line, no passage or duplicate id.
    """
    files = _list_passage_files(Path(path))
    if not files:
        raise FileNotFoundError(
            f"no {PASSAGES_PATTERN} in {path}: DPR's passages lie in one; add it"
        )
    if len(files) > 1:
        raise ValueError(
            f"{path} holds {', '.join(file.name for file in files)}, expected one file of passages:"
            " move the others away"
        )
    return store_passages(partial(_read_passages, files[0]), files=files, where=str(files[0]))


def _list_passage_files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.glob(PASSAGES_PATTERN) if path.is_file())
    plain = {path.name for path in found if path.suffix == ".tsv"}
    zipped = (path for path in found if path.suffix == ".gz" and plain_name(path) not in plain)
    return [*(path for path in found if path.name in plain), *zipped]


def _read_passages(file: Path) -> Iterator[Row]:
    lines = read_lines(file)
    number, header = next(lines, (1, ""))
    columns = tuple(header.split("\t"))
    if sorted(columns) != sorted(_COLUMNS):
        raise ValueError(
            f"{file}:{number}: header {columns}, expected {_COLUMNS}, separated by tabs: add it"
        )
    id_place, text_place, title_place = map(columns.index, _COLUMNS)
    for number, line in lines:
        fields = _split_quoted(line, n=len(_COLUMNS), place=f"{file}:{number}")
        passage_id = read_id({"id": fields[id_place]}, "id", place=f"{file}:{number}")
        yield number, passage_id, fields[title_place], fields[text_place]


def _split_quoted(line: str, *, n: int, place: str) -> list[str]:
    """Split a line at its tabs and take off the quotes that a CSV writer put around fields.

    A quote that no CSV writer can have put there is part of the text.
    """
    fields = line.split("\t")
    if len(fields) != n and '"' in line:  # a tab within quotes
        fields = next(csv.reader([line], delimiter="\t"))
    elif '"' in line:
        fields = [_unquote(field) for field in fields]
    if len(fields) != n:
        raise ValueError(f"{place}: {len(fields)} fields between tabs, expected {n}: mend the line")
    return fields


def _unquote(field: str) -> str:
    if len(field) > 1 and field[0] == field[-1] == '"':
        inner = field[1:-1]
        if '"' not in inner.replace('""', ""):
            return inner.replace('""', '"')
    return field


def _find_questions(folder: Path) -> Mapping[str, Path]:
    """Split -> file of its questions."""
    files: dict[str, Path] = {}
    for path in sorted(folder.glob("*.csv*")):
        for ending in _QUESTION_ENDINGS:
            if plain_name(path).endswith(ending):
                files.setdefault(plain_name(path).removesuffix(ending), path)
                break
    return files


def _read_questions(file: Path) -> Iterator[tuple[str, str, Question]]:
    for row, (number, line) in enumerate(read_lines(file)):
        place = f"{file}:{number}"
        question, answers = _split_quoted(line, n=2, place=place)
        try:
            listed = ast.literal_eval(answers)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            listed = answers  # text, which is no list of answers
        found = read_answers(listed, place=place)
        if not found:
            raise ValueError(
                f"{place}: the question has no answer, expected at least one: drop the line"
            )
        yield place, str(row), Question(question, found)
