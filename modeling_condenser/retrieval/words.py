"""Words for BM25: splits text of all scripts, leaves out stopwords, and stems.

As in Lucene's analysers, a language decides the stopwords and the stems (Snowball, Porter 2001). It
is recognised by its most frequent words. `PlainWords` is the analysis of this package's figures for
the papers: two characters and more, no stems.
"""

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import regex
import Stemmer
from datasets import Dataset

from modeling_condenser.collection.rows import iterate_rows

# bm25s calls JAX as soon as it is imported, and JAX then takes three quarters of a GPU's memory.
_jax = sys.modules.pop("jax", None)
sys.modules["jax"] = None  # type: ignore[assignment]  # an import of it is an ImportError
try:
    import bm25s
    import bm25s.stopwords
finally:
    del sys.modules["jax"]
    if _jax is not None:
        sys.modules["jax"] = _jax

# Code, name in Snowball, and most frequent words of a language, if it is to be recognised. Those
# with "-" have no stemmer, and are here so that they are not taken for a neighbour.
_LANGUAGES = """
ar arabic      في من على إلى أن التي عن الذي هذا مع ما لا
ca catalan     de la el i els les que per amb del és una
cs czech       v na se je že to do jako který pro ale byl
da danish      og i at det er en til af på ikke der med blev
de german      der die und in den das von zu mit ist nicht des
el greek       και το να του η της με που την από για είναι
en english     the of and to in is that for it with as was a i
eo esperanto   la de kaj en al estas por kiu ke ne sed aŭ
es spanish     de la que el en y los del las por con una
et estonian    on ja ei et see oli ka kui või ta mis nii
eu basque      eta da ez du bat dira ere zen baina dute hau izan
fa persian     و در به از که این را با است برای آن می
fi finnish     ja on ei että se oli joka mutta myös ovat kuin hän
fr french      de la le et les des en du est une que pour
ga irish       agus an na ar le go is ag tá i ní bhí
hi hindi       के का में की है और से को पर ने कि हैं
hu hungarian   a az és hogy nem is egy ez de volt meg mint
hy armenian
id indonesian  yang dan di dengan untuk dari pada adalah ini dalam tidak itu
it italian     di che il la e è per un della con non del
lt lithuanian  ir kad yra su į iš tai kaip bet buvo ne jis
ne nepali
nl dutch       de het een van en in dat is op te voor niet
no norwegian   og i det som er en på til av ikke for med ble
pl polish      w na się nie do że jest to jak po od przez
pt portuguese  de que o a do da em um para com não uma
ro romanian    și în de la cu pe din care este nu pentru a
ru russian     и в не на что с он по это как из к
sr serbian     и у је на се да за су од који као није
sv swedish     och i att det som en på är av för inte med
ta tamil
tr turkish     ve bir bu da de için ile çok olarak olan daha ne
yi yiddish
-  bulgarian   на да се за от не че със като по е това
-  croatian    i u je na se da za su od koji kao nije
-  galician    o a de que e do da en un para non unha
-  slovak      v na sa je že to do ako ktorý pre ale bol
-  slovenian   v je in na se da za so ki pa z po
-  ukrainian   і у на не що до та як це від за з
-  vietnamese  và của là có các được trong cho với một không người
"""
_FREQUENT: dict[str, frozenset[str]] = {}
_CODES: dict[str, str] = {}
for _line in _LANGUAGES.split("\n")[1:-1]:
    _code, _name, *_words = _line.split()
    if _code != "-":
        _CODES[_code] = _name
    _FREQUENT[_name] = frozenset(_words)

NO_LANGUAGE = "none"
LANGUAGES: Sequence[str] = (NO_LANGUAGE, *_CODES.values(), *_CODES)
"""Names and codes of languages; `none` is without stopwords and stems."""

_LEAST_SHARE = 0.05  # of the most frequent words; 0.08 to 0.25 in text of 15 of the languages
_FEWEST_WORDS = 3  # of these, of two letters or more: "a", "i" and "to" are not English alone
_MOST_KNOWN = 200_000  # parts of texts between blanks, whose terms are remembered
_SAMPLE, _SAMPLE_LENGTH = 1000, 1000  # passages, characters of each

# Hangul has spaces, but not between a word and its particle.
_SPACELESS = (
    r"\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Hangul}"
    r"\p{scx=Thai}\p{scx=Lao}\p{scx=Khmer}\p{scx=Myanmar}"
)
_RUN = rf"[[\p{{L}}\p{{M}}\p{{N}}]&&[{_SPACELESS}]]+"
_LETTERS = rf"[[\p{{L}}\p{{M}}\p{{N}}_]--[{_SPACELESS}]]"
_SPACELESS_LETTER = regex.compile(f"[{_SPACELESS}]")
_CHARACTER = regex.compile(r".\p{M}*")  # with its vowel signs and tones
# A number with points; or a word up to such a number, with what stands after an apostrophe, and ++
# or #.
_TOKEN = regex.compile(
    rf"(?V1){_RUN}|\p{{N}}+(?:\.\p{{N}}+)+"
    rf"|(?:(?!\p{{N}}+\.\p{{N}}){_LETTERS})+(?:['’]{_LETTERS}+)*(?:\+\+|\#(?!{_LETTERS}))?"
)
_PLURAL = regex.compile(r"\p{Lu}{2,}s")
_APOSTROPHE = re.compile("['’]")
# Capitals before a small letter begin a part, as in parse|HTML|File; so do digits.
_PART = regex.compile(r"\p{Lu}+(?!\p{Ll})|\p{Lu}?[\p{Ll}\p{Lo}\p{Lm}\p{Lt}\p{M}]+|\p{Lu}|\p{N}+")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")  # soft hyphens, widths of zero

_PLAIN_WORD = regex.compile(rf"(?V1){_RUN}|{_LETTERS}{{2,}}")


class Words:
    """Splits text into the terms of an index.

    A word is a run of letters, marks, digits and underscores, in lower case and Unicode's form
    NFKC; `C++`, `C#` and `2.0.1` are words. Beside a word stand its parts at changes of case,
    digits and underscores: "parseHTML2" is "parsehtml2", "parse", "html", "2"; "v2.0.1" is "v" and
    "2.0.1" with its parts, and "CPUs" is "cpus", "cpu". A single letter at an apostrophe is none
    (I'm, l'eau). A run of a script that does not separate words becomes its
    pairs of adjacent characters, as in Lucene's CJKAnalyzer: "abc" is "ab", "bc".

    Args:
        language: one of `LANGUAGES`.
    """

    def __init__(self, language: str) -> None:
        self.language = _CODES.get(language, language)
        self._stem = None
        self._stopwords: frozenset[str] = frozenset()
        if self.language != NO_LANGUAGE:
            self._stem = Stemmer.Stemmer(self.language).stemWord
            # A single letter is a stopword only if it is frequent: not the D of vitamin D.
            listed = {word for word in _list_stopwords(self.language) if len(word) > 1}
            self._stopwords = _FREQUENT[self.language] | listed
        self._known: dict[str, list[str]] = {}

    def terms(self, text: str) -> list[str]:
        """The terms of a text: stems of its words without stopwords."""
        terms: list[str] = []
        for part in _normalise(text).split():
            if (of_part := self._known.get(part)) is None:
                of_part = [term for word in self.split(part) if (term := self.term(word))]
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                if not _SPACELESS_LETTER.search(part):  # these seldom repeat
                    self._known[part] = of_part
            terms += of_part
        return terms

    def split(self, text: str) -> list[str]:
        """The words of a text, with stopwords, in their order."""
        words: list[str] = []
        for token in _TOKEN.findall(_normalise(text)):
            words += self._split(token)
        return words

    def term(self, word: str) -> str:
        """The stem of a word; empty for a stopword."""
        if word in self._stopwords:
            return ""
        return self._stem(word) if self._stem else word

    def _split(self, token: str) -> list[str]:
        """The words of a token, in lower case, each with its parts."""
        if _SPACELESS_LETTER.match(token):
            return _pairs(token)
        pieces = _APOSTROPHE.split(token)
        words: list[str] = []
        for piece in pieces:
            if len(pieces) > 1 and len(piece) == 1:
                continue
            parts = [piece]
            if _PLURAL.fullmatch(piece):
                parts = [piece[:-1]]
            elif not (piece.isalpha() and piece.islower()):
                parts = _PART.findall(piece)
            if parts != [piece]:
                parts = [piece, *parts]
            words += map(self._lower, parts)
        return words

    def _lower(self, word: str) -> str:
        # str.lower makes two characters of a capital I with a dot; Lucene makes one.
        word = word.replace("İ", "i")
        return (word.replace("I", "ı") if self.language == "turkish" else word).lower()


class PlainWords(Words):
    """Words of two characters and more, without parts and stems, as in the papers' presets.

    English stopwords are Lucene's 33.
    """

    def __init__(self, language: str) -> None:
        super().__init__(NO_LANGUAGE)
        self.language = _CODES.get(language, language)
        self._stopwords = frozenset(_list_stopwords(self.language, "STOPWORDS_EN"))

    def terms(self, text: str) -> list[str]:
        return [word for word in self.split(text) if word not in self._stopwords]

    def split(self, text: str) -> list[str]:
        if text.isascii():  # the same, twice as fast
            return re.findall(r"\w{2,}", text.lower())
        words: list[str] = []
        for word in _PLAIN_WORD.findall(unicodedata.normalize("NFKC", text).lower()):
            words += _pairs(word) if _SPACELESS_LETTER.match(word) else [word]
        return words


def _list_stopwords(language: str, english: str = "STOPWORDS_EN_PLUS") -> Sequence[str]:
    """The stopwords of bm25s for a language; none if it has none."""
    name = english if language == "english" else f"STOPWORDS_{language.upper()}"
    return getattr(bm25s.stopwords, name, ())


def _normalise(text: str) -> str:
    if text.isascii():
        return text
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))


def _pairs(run: str) -> list[str]:
    characters = _CHARACTER.findall(run)
    return ["".join(pair) for pair in pairwise(characters)] or characters


def recognize_language(passages: Dataset) -> str:
    """The language of a sample of passages, by its most frequent words; "none" if it has few."""
    counts: Counter[str] = Counter()
    words = Words(NO_LANGUAGE)
    rows = range(0, len(passages), max(1, len(passages) // _SAMPLE))
    for row in iterate_rows(passages.select(rows).select_columns(["title", "text"])):
        counts.update(words.split(f"{row['title']} {row['text'][:_SAMPLE_LENGTH]}"))
    counted = {
        language: {word: counts[word] for word in frequent if counts[word]}
        for language, frequent in _FREQUENT.items()
    }
    shares: Mapping[str, int] = {
        language: sum(seen.values())
        for language, seen in counted.items()
        if sum(len(word) > 1 for word in seen) >= _FEWEST_WORDS
    }
    language = max(shares, key=shares.__getitem__, default=NO_LANGUAGE)
    is_sure = language in LANGUAGES and shares.get(language, 0) >= _LEAST_SHARE * counts.total()
    return language if is_sure else NO_LANGUAGE
