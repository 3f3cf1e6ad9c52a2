"""DPR's files (Karpukhin et al. 2020), which are judged by answers.

Passages are in `psgs_w100.tsv` (header `id text title`), questions in files such as
`nq-test.qa.csv` (question, and a Python list of answers); both have tabs between columns and may
end in `.gz`. They are read as DPR reads them, with the csv module and its quotes. `answers.py` says
whether a passage holds an answer.
"""

import ast
import csv
from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset

from .collection import Collection, Question, build_collection, gather_questions
from .passages import Row, store_passages
from .records import read_answers
from .text_files import open_text, plain_name

PASSAGES_PATTERN = "psgs*.tsv*"
_COLUMNS = ["id", "text", "title"]


def is_dpr_folder(folder: Path) -> bool:
    """Whether a folder holds DPR's passages."""
    return any(folder.glob(PASSAGES_PATTERN))


def load_dpr_collection(path: str | Path, *, split: str = "nq-test") -> Collection:
    """Load the questions of one file, with DPR's passages; see `load_collection`.

    The split is the name of the file without `.qa.csv` or `.csv`, such as "nq-test". The id of a
    question is its place in the file, from 0.
    """
    folder = Path(path)
    files: dict[str, Path] = {}
    for file in sorted(folder.glob("*.csv*")):
        files.setdefault(plain_name(file).removesuffix(".csv").removesuffix(".qa"), file)
    if split not in files:
        raise ValueError(
            f"{folder} has no split {split!r}; its splits are {', '.join(files) or '(none)'}. A"
            " split is a file of questions such as nq-test.qa.csv."
        )
    questions = gather_questions(_questions(files[split]), source=files[split])
    passages = load_dpr_passages(folder)
    return build_collection(
        passages, questions, None, name=folder.resolve().name, source=files[split]
    )


def load_dpr_passages(path: str | Path) -> Dataset:
    """Load DPR's passages: columns `_id`, `title`, `text`."""
    files = {
        plain_name(file): file for file in sorted(Path(path).glob(PASSAGES_PATTERN), reverse=True)
    }
    if len(files) != 1:
        raise ValueError(
            f"{path} holds {', '.join(sorted(files)) or 'no passages'}, expected one file"
            f" {PASSAGES_PATTERN}."
        )
    (file,) = files.values()
    return store_passages(_passages(file), files=[file], name=file)


def _passages(file: Path) -> Iterator[Row]:
    rows = _read_rows(file)
    _, header = next(rows, ("", []))
    if sorted(header) != _COLUMNS:
        raise ValueError(f"{file}: the header is {header}, expected the columns {_COLUMNS}.")
    id_place, text_place, title_place = map(header.index, _COLUMNS)
    for place, fields in rows:
        _check_width(fields, 3, place)
        yield fields[id_place], fields[title_place], fields[text_place]


def _questions(file: Path) -> Iterator[tuple[str, Question]]:
    for row, (place, fields) in enumerate(_read_rows(file)):
        _check_width(fields, 2, place)
        question, answers = fields
        try:
            listed = ast.literal_eval(answers)
        except (ValueError, SyntaxError):
            listed = answers  # refused below
        yield str(row), Question(question, read_answers(listed or None, place=place))


def _read_rows(file: Path) -> Iterator[tuple[str, list[str]]]:
    """The place and the fields of each row."""
    with open_text(file, newline="") as stream:
        rows = csv.reader(stream, delimiter="\t")
        for fields in rows:
            if fields:
                yield f"{file}:{rows.line_num}", fields


def _check_width(fields: list[str], n: int, place: str) -> None:
    if len(fields) != n:
        raise ValueError(f"{place}: {len(fields)} fields between tabs, expected {n}.")
