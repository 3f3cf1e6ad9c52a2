"""DPR's answer matching: does a passage contain one of the answers to a question?

As in `SimpleTokenizer` and `has_answer` of Karpukhin et al. (2020), text and answer are decomposed
(NFD) and split into tokens: runs of letters, digits and combining marks, or else single characters
that are neither blank nor control. An answer is found where its lower-case tokens stand one after
another in the text. So "U.S." is not found in "US", nor "café" in "cafe", nor "art" in "party".
"""

import logging
import unicodedata
from collections.abc import Iterable
from typing import Literal

import regex  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

Match = Literal["string", "regex"]

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


class AnswerMatcher:
    """Looks for the answers to one question in many passages.

    Args:
        answers: to one question.
        match: "string" for token sequences; "regex" for regular expressions in any case, as the
            answers of CuratedTREC are.
    """

    def __init__(self, answers: Iterable[str], *, match: Match = "string") -> None:
        if match not in ("string", "regex"):
            raise ValueError(f'match is {match!r}, expected "string" or "regex".')
        forms = [unicodedata.normalize("NFD", answer) for answer in answers]
        self._patterns = _compile(forms) if match == "regex" else []
        self._answers = [_tokenize(form) for form in forms] if match == "string" else []

    def is_in(self, text: str) -> bool:
        """Whether a text contains one of the answers.

        Args:
            text: of a passage, without its title, since DPR searches the text only.
        """
        text = unicodedata.normalize("NFD", text)
        if self._patterns:
            return any(pattern.search(text) for pattern in self._patterns)
        # Most passages fail this test, and splitting a text into tokens takes much longer. Lower
        # case can depend on neighbouring letters (Greek sigma), but not for ASCII letters.
        lowered = text.lower()
        possible = [
            tokens for tokens in self._answers if all(t in lowered for t in tokens if t.isascii())
        ]
        if not possible:
            return False
        words = f" {' '.join(_tokenize(text))} "  # no token contains a blank
        # An answer without tokens is found everywhere, as in DPR.
        return any(not tokens or f" {' '.join(tokens)} " in words for tokens in possible)


def _tokenize(form: str) -> list[str]:
    return [token.lower() for token in _TOKEN.findall(form)]


def _compile(forms: Iterable[str]) -> list[regex.Pattern]:
    patterns = []
    for form in forms:
        try:
            patterns.append(regex.compile(form, flags=regex.IGNORECASE | regex.MULTILINE))
        except regex.error as error:
            logger.warning("%r is not a regular expression (%s); it finds nothing", form, error)
    return patterns
