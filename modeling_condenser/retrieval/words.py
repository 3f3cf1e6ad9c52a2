"""Words for BM25: splits texts of all scripts into words, and chooses the stopwords."""

import logging
import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise

import regex  # type: ignore[import-untyped]
from datasets import Dataset

from modeling_condenser.collection.rows import iterate_rows

from .without_jax import bm25s

logger = logging.getLogger(__name__)

LANGUAGES: Mapping[str, Sequence[str]] = {
    "none": (),
    "english": bm25s.stopwords.STOPWORDS_EN,
    **{
        name.removeprefix("STOPWORDS_").lower(): words
        for name, words in vars(bm25s.stopwords).items()
        if name.startswith("STOPWORDS_") and not name.startswith("STOPWORDS_EN")
    },
}
"""Language -> stopwords: those of bm25s; the English ones are Lucene's 33."""

_ONLY_ENGLISH = set(LANGUAGES["english"]).difference(
    *(words for language, words in LANGUAGES.items() if language != "english")
)
_LEAST_SHARE = 0.05  # of these among the words of English text; our collections have 0.18 to 0.20
_SAMPLE, _SAMPLE_LENGTH = 1000, 1000  # passages, characters of each

# Hangul has spaces, but not between a word and its particle.
_SPACELESS = "".join(
    rf"\p{{scx={script}}}"
    for script in ("Han", "Hiragana", "Katakana", "Hangul", "Thai", "Lao", "Khmer", "Myanmar")
)
_WORD = regex.compile(
    rf"(?V1)[[\p{{L}}\p{{M}}\p{{N}}]&&[{_SPACELESS}]]+|[[\p{{L}}\p{{M}}\p{{N}}_]--[{_SPACELESS}]]{{2,}}"
)
_IS_SPACELESS = regex.compile(f"[{_SPACELESS}]").match
_CHARACTER = regex.compile(r".\p{M}*")  # with its vowel signs and tones


def split_words(text: str) -> list[str]:
    """Split a text into words, in lower case and Unicode's form NFKC.

    A word is two or more letters, marks, digits or underscores. A run of a script that does not
    separate words becomes its pairs of adjacent characters, as in Lucene's CJKAnalyzer: "abc" is
    "ab", "bc". A single character of such a script is a word.
    """
    if text.isascii():  # the same, twice as fast
        return re.findall(r"\w{2,}", text.lower())
    words: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).lower()):
        words += _pairs(word) if _IS_SPACELESS(word) else [word]
    return words


def _pairs(run: str) -> list[str]:
    characters = _CHARACTER.findall(run)
    return ["".join(pair) for pair in pairwise(characters)] or characters


def choose_language(passages: Dataset) -> str:
    """Choose the stopwords: "english" if a sample of the passages looks English, else "none"."""
    rows = range(0, len(passages), max(1, len(passages) // _SAMPLE))
    are_english: list[bool] = []
    for row in iterate_rows(passages.select(rows).select_columns(["title", "text"])):
        words = split_words(f"{row['title']} {row['text'][:_SAMPLE_LENGTH]}")
        are_english += (word in _ONLY_ENGLISH for word in words)
    if sum(are_english) >= _LEAST_SHARE * len(are_english) > 0:
        logger.info("BM25: the text looks English, so English stopwords are left out.")
        return "english"
    logger.info(
        "BM25: the text does not look English, so no stopwords are left out; bm25,language=german"
        " leaves out German ones."
    )
    return "none"
