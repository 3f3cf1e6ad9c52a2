"""Finds answers in passages as DPR does (Karpukhin et al. 2020)."""

import unicodedata
from collections.abc import Iterable

import regex

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


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
