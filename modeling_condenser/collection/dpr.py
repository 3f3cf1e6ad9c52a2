"""Reads DPR's files, and finds answers in passages as DPR does (Karpukhin et al. 2020).

Passages are in psgs_w100.tsv (header `id text title`), questions in <split>.qa.csv or <split>.csv
(question, and a Python list of answers). Columns are separated by tabs and quoted as by the csv
module; files may end in `.gz`. There are no judgements.
"""

import ast
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import regex  # type: ignore[import-untyped]

from .collection import Question
from .passages import PassageRows
from .text_files import find_file, need_file, read_table

DESCRIPTION = "psgs_w100.tsv (DPR)"
PASSAGES_FILE = "psgs_w100.tsv"

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def is_layout(folder: Path) -> bool:
    return find_file(folder, PASSAGES_FILE) is not None


def read_passages(folder: Path, split: str) -> PassageRows:
    file = need_file(folder, PASSAGES_FILE)
    rows = read_table(file, quoted=True)
    return ((row.get("id"), row.get("title"), row.get("text")) for row in rows), [file]


def read_split(folder: Path, split: str) -> tuple[list[Question], None]:
    """Read the questions of a file such as nq-test.qa.csv; a question's id is its row, from 0."""
    file = need_file(folder, f"{split}.qa.csv", f"{split}.csv")
    rows = read_table(file, ["question", "answers"], quoted=True)
    questions: list[Question] = []
    for place, row in enumerate(rows):
        try:
            answers = ast.literal_eval(row["answers"])
        except (SyntaxError, ValueError):
            raise ValueError(
                f"{file}: the answers in row {place + 1} are {row['answers']!r:.80}, expected a"
                " list as in Python, such as ['Oslo']."
            ) from None
        questions.append((str(place), row["question"], answers))
    return questions, None


class AnswerMatcher:
    """Decides whether a passage contains one of the answers to a question.

    As in DPR's `SimpleTokenizer` and `has_answer`, text and answer are decomposed (NFD) and split
    into tokens: runs of letters, digits and combining marks, or single other characters, except
    blanks and control characters. The lower-case tokens of an answer must follow each other in the
    text. So "U.S." is not found in "US", nor "café" in "cafe", nor "art" in "party".
    """

    def __init__(self, answers: Iterable[str]) -> None:
        self._answers = list(map(_tokens, answers))

    def is_in(self, text: str) -> bool:
        """Return whether a passage's text (without its title, as in DPR) contains an answer."""
        tokens = _tokens(text)
        return any(answer in tokens for answer in self._answers)


def _tokens(text: str) -> str:
    """Join lower-case tokens with a blank before and after each."""
    tokens = _TOKEN.findall(unicodedata.normalize("NFD", text))
    return "".join(f" {token} " for token in tokens).lower()
