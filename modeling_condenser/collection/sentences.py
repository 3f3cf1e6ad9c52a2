"""Find the sentences of a text in any script: at marks that end a sentence, and at line breaks.

Full stops, question and exclamation marks of European scripts are judged by Punkt (Kiss & Strunk
2006), which knows abbreviations. All other marks with Unicode's property Sentence_Terminal, such as
those of Chinese, Hindi and Arabic, end a sentence without a blank after them.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import regex
from nltk.tokenize.punkt import PunktLanguageVars, PunktParameters, PunktSentenceTokenizer

SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts that put no spaces between words, for a character class of `regex`."""

_ABBREVIATIONS = frozenset(
    "a.m al approx apr aug bros bzw ca cf cm co corp d.h dec dept dr e.g ed eds eq eqs etc feb fig "
    "figs gen ggf i.e inc jan jr km lt ltd mar mm mr mrs ms mt no nos nov nr oct op p.m pp prof "
    "ref rev sec sen sept sr st u.a u.k u.n u.s univ usw vgl viz vol vols vs z.b".split()
)
_END = regex.compile(
    r"""
    (?<! [\p{Sentence_Terminal}--[.?!]])
    (?: [\p{Sentence_Terminal}--[.?!．﹒]] | [．﹒](?!\d)
      | (?<=[\p{Han}\p{Hiragana}\p{Katakana}]) [.?!]+ (?=[\p{Han}\p{Hiragana}\p{Katakana}]) )
    [\p{Sentence_Terminal}]*+ [\p{Pe}\p{Pf}\p{Pi}"']*+ \s*+
    (?=[^\s\p{Sentence_Break=SContinue}])  # a quoted question may stand within a sentence
    """,
    regex.VERBOSE | regex.V1,
)
_LINE_BREAK = regex.compile(r"[\n\r\v\f\x85\u2028\u2029]\s*+(?=\S)")
_SINGLE = regex.compile(r"\h*\R\h*")
_ITEM = regex.compile(r"[^\p{L}\p{N}\p{Ps}\p{Pi}\"'`>]|[\p{N}\p{L}]{1,3}[.):]\s|>*\s*[-*•]\s")
_CONTINUATION = regex.compile(r"[>\s]*\p{Ll}")
_BLANK = regex.compile(r"[\s\u200b]|.[\s\u200b]", regex.DOTALL)
_LETTER = regex.compile(r".\P{M}", regex.DOTALL)
_NARROWEST = 30  # characters of a line that is hard-wrapped


class _LanguageVars(PunktLanguageVars):  # type: ignore[misc]
    def period_context_re(self) -> regex.Pattern:
        """Return NLTK's pattern without its limit of five seconds for a text, however long."""
        return regex.compile(super().period_context_re().pattern, regex.VERBOSE)


@cache
def _splitter() -> PunktSentenceTokenizer:
    """Punkt with common abbreviations instead of NLTK's downloaded model."""
    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS)
    return PunktSentenceTokenizer(parameters, lang_vars=_LanguageVars())


def sentence_starts(text: str) -> list[int]:
    """Character offsets at which the sentences of a text begin; empty for a blank text.

    Example:
        >>> sentence_starts("Dr. Smith left. It rained.")
        [0, 16]
        >>> sentence_starts("企鹅生活在南极。它们吃磷虾。")
        [0, 8]
    """
    starts = {start for start, _ in _splitter().span_tokenize(text)}
    if not text.isascii():
        starts.update(mark.end() for mark in _END.finditer(text))
    starts.update(_line_starts(text))
    return sorted(starts)


def _line_starts(text: str) -> Iterator[int]:
    """Where the lines begin that begin a sentence."""
    paragraph: list[regex.Match] = []  # its line breaks
    first = 0
    for line_break in _LINE_BREAK.finditer(text, 0, len(text.rstrip())):
        if _SINGLE.fullmatch(line_break[0]):
            paragraph.append(line_break)
            continue
        yield from _unwrapped(text, first, line_break.start(), paragraph)
        yield line_break.end()
        paragraph, first = [], line_break.end()
    yield from _unwrapped(text, first, len(text), paragraph)


def _unwrapped(text: str, first: int, end: int, breaks: list[regex.Match]) -> Iterator[int]:
    """Where a sentence begins after one of the line breaks of a paragraph, `text[first:end]`."""
    # Items of a list, rows and log entries are sentences; but a line of hard-wrapped prose (e-mail,
    # docstrings, PDF) ends because the next word did not fit. So a full line continues where full
    # lines are often followed by a lower-case letter; one in three, because German nouns are not.
    starts = [line_break.end() for line_break in breaks]
    ends = [line_break.start() for line_break in breaks]
    lengths = [end - start for start, end in zip([first, *starts], ends, strict=False)]
    longest = max([*lengths, end - starts[-1]]) if breaks else 0
    is_full = [
        length >= max(_NARROWEST, longest * 2 / 3) and not _ITEM.match(text, start)
        for length, start in zip(lengths, starts, strict=True)
    ]
    after_full = [start for start, full in zip(starts, is_full, strict=True) if full]
    n_lower = sum(bool(_CONTINUATION.match(text, start)) for start in after_full)
    is_wrapped = 3 * n_lower >= len(after_full)
    for start, full in zip(starts, is_full, strict=True):
        if not (full and is_wrapped):
            yield start


def cut_at_sentences(
    text: str, tokens: Sequence[int] | np.ndarray, *, room: int
) -> Iterator[tuple[int, int]]:
    """Cut a text into parts of whole sentences; a sentence that is too long is cut, too.

    Args:
        text: of any length.
        tokens: character offsets at which its tokens begin.
        room: the most tokens of a part.

    Yields:
        Where a part begins and ends, in characters.
    """
    if 0 < len(tokens) <= room:
        yield 0, len(text)
        return
    offsets = [0, *tokens[1:], len(text)]
    starts = np.searchsorted(tokens, [*sentence_starts(text)[1:], len(text)])
    bounds = [0, *starts.tolist()]  # of sentences, in tokens
    first = 0
    while first < len(tokens):
        last = bounds[bisect_right(bounds, first + room) - 1]
        stop = last if last > first else _find_break(text, offsets, first, first + room)
        yield offsets[first], offsets[stop]
        first = stop


def _find_break(text: str, offsets: Sequence[int], first: int, stop: int) -> int:
    """Where to cut a sentence that is too long: at the last blank of its second half, if any.

    Thai and Khmer have blanks between phrases. A combining mark stays with its letter.
    """
    for is_break in (_BLANK, _LETTER):
        for place in range(stop, (first + stop) // 2, -1):
            if is_break.match(text, offsets[place] - 1):
                return place
    return stop
