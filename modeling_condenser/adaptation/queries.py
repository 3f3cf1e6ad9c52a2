"""Queries for adapting a retriever: parts of the passages, or read from a file.

A part of a passage stands for what a user could ask for:

title       its title
heading     a heading of Markdown or HTML
sentence    a sentence, as in the Inverse Cloze Task (Lee, Chang & Toutanova 2019)
span        4 to 10 consecutive words
keywords    3 to 6 of its 12 words with the highest tf-idf, in their order in the passage

Where a script puts no blanks between words, two characters count as a word of a sentence or span.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import regex  # type: ignore[import-untyped]

from modeling_condenser.collection.sentences import SPACELESS, sentence_starts

_WORD = re.compile(r"\w\w+")
_PIECE = regex.compile(rf"[{SPACELESS}]{{1,2}}|[^\s{SPACELESS}]+")
_HEADING = re.compile(
    r"^#{1,6}[ \t]+(\S.*?)[ \t]*#*$|<h[1-6][^>]*>(.+?)</h[1-6]>", re.MULTILINE | re.IGNORECASE
)
_TAG = re.compile(r"<[^>]+>")
_SENTENCE_WORDS = range(4, 31)
_BEST_WORDS = 12  # of a passage, among which keywords are drawn
_COMMON = 0.1  # a word of a larger share of the passages is no keyword

FILE, JUDGED = "file", "judged"  # kinds of queries that were not made from their passage


class Query(NamedTuple):
    """A query, without prompt, and the row of its passage."""

    text: str
    passage: int
    kind: str  # a name of `KINDS`, "file" or "judged"


class PassageParts:
    """Makes queries from passages, given as titles and texts."""

    def __init__(self, titles: Sequence[str], texts: Sequence[str]):
        self.titles, self.texts = titles, texts
        self._n_passages_with = Counter[str]()
        for row in range(len(texts)):
            self._n_passages_with.update(self._words(row).keys())

    def title(self, row: int, random: Random) -> str | None:
        return self.titles[row].strip() or None

    def heading(self, row: int, random: Random) -> str | None:
        matches = _HEADING.findall(self.texts[row])
        headings = [markdown or _TAG.sub("", html) for markdown, html in matches]
        return random.choice(headings) if headings else None

    def sentence(self, row: int, random: Random) -> str | None:
        text = self.texts[row]
        bounds = [*sentence_starts(text), len(text)]
        parts = [text[start:end].strip() for start, end in pairwise(bounds)]
        fitting = [part for part in parts if len(_PIECE.findall(part)) in _SENTENCE_WORDS]
        return random.choice(fitting) if len(parts) > 1 and fitting else None

    def span(self, row: int, random: Random) -> str | None:
        pieces = list(_PIECE.finditer(self.texts[row]))
        length = random.randint(4, 10)
        if len(pieces) < 2 * length:
            return None
        first = random.randrange(len(pieces) - length + 1)
        start, end = pieces[first].start(), pieces[first + length - 1].end()
        return " ".join(self.texts[row][start:end].split())

    def keywords(self, row: int, random: Random) -> str | None:
        counts, n_with = self._words(row), self._n_passages_with
        most = max(_COMMON * len(self.texts), 2)
        weights = {
            word: math.sqrt(count) * math.log(len(self.texts) / n_with[word])
            for word, count in counts.items()
            if 1 < n_with[word] <= most
        }
        best = sorted(weights, key=lambda word: (-weights[word], word))[:_BEST_WORDS]
        if len(best) < 4:
            return None
        chosen = set(random.sample(best, random.randint(3, min(6, len(best)))))
        return " ".join(word for word in counts if word in chosen)  # in their first order

    def _words(self, row: int) -> Counter[str]:
        """How often each word is in a passage."""
        return Counter(_WORD.findall(f"{self.titles[row]} {self.texts[row]}".lower()))


KINDS = ("title", "heading", "sentence", "span", "keywords")
"""The methods of `PassageParts`; a new one comes last, because all share one random generator."""


def make_queries(
    titles: Sequence[str], texts: Sequence[str], *, kinds: Sequence[str], n: int, seed: int
) -> list[Query]:
    """Make up to n queries of each kind, each of another passage, in random order."""
    parts, random = PassageParts(titles, texts), Random(seed)
    queries: list[Query] = []
    for kind in kinds:
        make, n_made = getattr(parts, kind), 0
        for row in random.sample(range(len(texts)), len(texts)):
            if n_made == n:
                break
            if text := make(row, random):
                queries.append(Query(text, row, kind))
                n_made += 1
    random.shuffle(queries)
    return queries


def read_queries(file: Path, ids: Sequence[str]) -> list[Query]:
    """Read queries for passages from JSON lines with the fields `query` and `passage_id`.

    Raises:
        ValueError: a line has no query, or names a passage that does not exist.
    """
    rows = {name: row for row, name in enumerate(ids)}
    queries = []
    lines = file.read_text("utf-8").split("\n")  # splitlines would split texts at U+2028
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record = json.loads(line)
        text, name = record.get("query"), str(record.get("passage_id"))
        if not isinstance(text, str) or not text.strip() or name not in rows:
            raise ValueError(
                f"{file}, line {number}: query is {text!r:.80} and passage_id {name!r}, expected a "
                "text and the id of a passage of the corpus."
            )
        queries.append(Query(text, rows[name], FILE))
    return queries
