"""DPR's answer matching: answers and a passage's text in; whether the text holds one of them out.

The rule of Karpukhin et al. (2020), as their `SimpleTokenizer` and `has_answer` have it: text and
answer are decomposed (NFD) and cut into tokens, which are runs of letters, digits and combining
marks, or else single characters that are neither blank nor control; in lower case, an answer's
tokens must stand in the text one after another. So "U.S." is not found in "US", nor "café" in
"cafe", nor "art" in "party". A rule of whole words that ignores punctuation finds "U.S." in "U S"
too, and "rock n roll" in "rock 'n' roll": its figures are a little higher.
"""

import logging
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal

import regex  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

Match = Literal["string", "regex"]

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def has_answer(answers: Iterable[str], text: str, *, match: Match = "string") -> bool:
    """Whether a text holds one of the answers.

    Args:
        answers: of one question.
        text: of a passage, without its title (DPR looks in the text only).
        match: "string" for token sequences, "regex" for answers that are regular expressions, as
            those of CuratedTREC, which are searched for in any case.
    """
    return AnswerMatcher(answers, match=match).is_in(text)


class AnswerMatcher:
    """Looks for the answers of one question in many passages.

    Args:
        answers: of one question.
        match: see `has_answer`.
    """

    def __init__(self, answers: Iterable[str], *, match: Match = "string") -> None:
        if match not in ("string", "regex"):
            raise ValueError(
                f'match is {match!r}, expected "string" or "regex": choose one of them'
            )
        forms = [unicodedata.normalize("NFD", answer) for answer in answers]
        self._patterns = _compile(forms) if match == "regex" else []
        self._answers = [_tokenize(form) for form in forms] if match == "string" else []

    def is_in(self, text: str) -> bool:
        """Whether the text holds one of the answers."""
        text = unicodedata.normalize("NFD", text)
        if self._patterns:
            return any(pattern.search(text) for pattern in self._patterns)
        lowered = text.lower()
        possible = [tokens for tokens in self._answers if _may_be_in(tokens, lowered)]
        if not possible:
            return False
        words = f" {' '.join(_tokenize(text))} "  # no token holds a blank
        # An answer without tokens is found everywhere, as in DPR.
        return any(not tokens or f" {' '.join(tokens)} " in words for tokens in possible)


def _tokenize(form: str) -> list[str]:
    return [token.lower() for token in _TOKEN.findall(form)]


def _may_be_in(tokens: Sequence[str], lowered: str) -> bool:
    """A quick test that most passages fail; cutting a text into tokens takes much longer."""
    # Lower case can depend on a letter's neighbours (Greek sigma), but not that of ASCII letters.
    return all(token in lowered for token in tokens if token.isascii())


def _compile(forms: Iterable[str]) -> list[regex.Pattern]:
    patterns = []
    for form in forms:
        try:
            patterns.append(regex.compile(form, flags=regex.IGNORECASE | regex.MULTILINE))
        except regex.error as error:
            logger.warning(
                "%r is no regular expression (%s); as in DPR, it finds nothing", form, error
            )
    return patterns
