"""DPR's files (Karpukhin et al. 2020), which are judged by answers.

Passages are in psgs_w100.tsv (header `id text title`), questions in <split>.qa.csv or <split>.csv
(question, and a Python list of answers). Both have tabs between columns and the quotes of the csv
module, and may end in `.gz`. `answers.py` decides whether a passage holds an answer.
"""

import ast
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset

from .collection import Collection, build_collection
from .passages import Row, store_passages
from .text_files import open_text, plain_name

DESCRIPTION = "psgs_w100.tsv (DPR)"
PASSAGES_PATTERN = "psgs*.tsv*"
_COLUMNS = ["id", "text", "title"]


def is_layout(folder: Path) -> bool:
    return any(folder.glob(PASSAGES_PATTERN))


def load_collection(folder: Path, *, split: str) -> Collection:
    """Load the questions of one file, such as nq-test.qa.csv; their ids are their places in it."""
    files: dict[str, Path] = {}
    for file in sorted(folder.glob("*.csv*")):
        files.setdefault(plain_name(file).removesuffix(".csv").removesuffix(".qa"), file)
    if split not in files:
        raise ValueError(
            f"{folder} has no split {split!r}; its splits are {', '.join(files) or '(none)'}."
        )
    source = files[split]
    questions = (
        (str(row), question, _parse_list(answers))
        for row, (question, answers) in enumerate(_read_rows(source, n=2))
    )
    passages = load_passages(folder)
    return build_collection(passages, questions, None, name=folder.resolve().name, source=source)


def load_passages(folder: Path) -> Dataset:
    """Load DPR's passages: columns `_id`, `title`, `text`."""
    files = {plain_name(file): file for file in sorted(folder.glob(PASSAGES_PATTERN), reverse=True)}
    if len(files) != 1:
        raise ValueError(
            f"{folder} holds {', '.join(sorted(files))}, expected one file {PASSAGES_PATTERN}."
        )
    (file,) = files.values()
    return store_passages(_passages(file), files=[file], name=file)


def _passages(file: Path) -> Iterator[Row]:
    rows = _read_rows(file, n=3)
    header = next(rows, [])
    if sorted(header) != _COLUMNS:
        raise ValueError(f"{file}: the header is {header}, expected the columns {_COLUMNS}.")
    for fields in rows:
        record = dict(zip(header, fields, strict=True))
        yield record["id"], record["title"], record["text"]


def _parse_list(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # refused as answers


def _read_rows(file: Path, *, n: int) -> Iterator[list[str]]:
    with open_text(file, newline="") as stream:
        rows = csv.reader(stream, delimiter="\t")
        for fields in filter(None, rows):
            if len(fields) != n:
                raise ValueError(
                    f"{file}:{rows.line_num}: {len(fields)} fields between tabs, expected {n}."
                )
            yield fields
