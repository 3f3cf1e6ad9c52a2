"""Rows of training data as training examples: fields in, checked texts and numbers out.

An example is a query with its positive and, for some formats, any number of negatives and the
scores that a cross-encoder gave; or two sentences with a score. Its texts are as they are encoded,
prompts included. A row that is wrong is an error that names it; a row that merely cannot teach
anything (a blank text, a negative equal to the positive) is left out and counted.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from modeling_condenser.repository.contract import EncodingContract

from .data_files import Record
from .stored_examples import ROW_NUMBER, Example

_SENTENCES = pa.schema(
    [("sentence1", pa.string()), ("sentence2", pa.string()), ("label", pa.float64())]
)
_PAIR = [("query", pa.string()), ("positive", pa.string())]
_NEGATIVES = [("negatives", pa.list_(pa.string())), (ROW_NUMBER, pa.int64())]
SCHEMAS = {
    "pairs": pa.schema(_PAIR),
    "triples": pa.schema([*_PAIR, *_NEGATIVES]),
    "negatives": pa.schema([*_PAIR, *_NEGATIVES]),
    "dpr": pa.schema([*_PAIR, *_NEGATIVES]),
    "scored": pa.schema([*_PAIR, *_NEGATIVES, ("teacher_scores", pa.list_(pa.float32()))]),
    "graded_pairs": _SENTENCES,
    "stsb": _SENTENCES,
}

BLANK = "rows with a blank text"
IDENTICAL = "negatives with the text of the positive"
NO_NEGATIVE = "rows without a negative"


@dataclass(frozen=True)
class ExampleReader:
    """How rows of one format become examples.

    Attributes:
        format: see `FinetuningRecipe`.
        contract: how texts are encoded.
        columns: our names -> the data's, where they differ.
        score_range: of graded pairs.
        left_out: counts what is left out; filled while reading.
    """

    format: str
    contract: EncodingContract
    columns: Mapping[str, str] = field(default_factory=dict)
    score_range: tuple[float, float] = (0.0, 1.0)
    left_out: Counter[str] = field(default_factory=Counter)

    def read(self, records: Iterable[Record]) -> Iterator[Example]:
        """Make examples of records.

        Raises:
            ValueError: a column is missing or holds something else than it should; the message
                names file and line.
        """
        make: Callable[[Mapping[str, Any], str], Example | None] = {
            "pairs": self._pair,
            "triples": self._with_negatives,
            "negatives": self._with_negatives,
            "scored": self._scored,
            "graded_pairs": self._graded,
        }[self.format]
        for place, record in records:
            example = make(record, place)
            if example is not None:
                yield example

    def check_header(self, file: str, header: set[str]) -> None:
        """Check a table's columns before its rows are read.

        Raises:
            ValueError: one that the format needs is missing; the message offers the nearest.
        """
        groups = {
            "pairs": [["query"], ["positive"]],
            "triples": [["query"], ["positive"], ["negative"]],
            "negatives": [["query"], ["positive"], ["negatives", "negative", "negative_1"]],
            "scored": [["query"], ["positive"], ["negatives", "negative", "negative_1"]],
            "graded_pairs": [["sentence1"], ["sentence2"], ["score"]],
            "id_triples": [["query_id"], ["positive_id"], ["negative_id"]],
        }[self.format]
        for names in groups:
            if not any(self.key(name) in header for name in names):
                headerless = (
                    "; if the file has no header, name its columns in their order, as columns: "
                    f"[{', '.join(group[0] for group in groups)}]"
                    if file.removesuffix(".gz").endswith((".tsv", ".csv"))
                    else ""
                )
                if self.format == "graded_pairs":
                    headerless += "; the STS benchmark's own files have format stsb"
                raise ValueError(self._missing(file, names, header) + headerless)

    def key(self, name: str) -> str:
        """What the data calls one of our columns."""
        return self.columns.get(name, name)

    def _missing(self, place: str, names: list[str], there: Iterable[str]) -> str:
        shown = sorted(name if len(name) <= 40 else f"{name[:40]}…" for name in there)
        wanted = " or ".join(repr(self.key(name)) for name in names)
        nearest = get_close_matches(self.key(names[0]), shown, n=1, cutoff=0.0)
        return (
            f"{place} has no column {wanted}; there is {', '.join(shown) or 'nothing'}: map ours "
            f"to the data's, as columns: {{{names[0]}: {nearest[0] if nearest else '...'}}}"
        )

    def _pair(self, record: Mapping[str, Any], place: str) -> Example | None:
        query, positive = (self._text(record, name, place) for name in ("query", "positive"))
        if not query.strip() or not positive.strip():
            self.left_out[BLANK] += 1
            return None
        return {
            "query": self.contract.query(query),
            "positive": self.contract.passage("", positive),
        }

    def _with_negatives(self, record: Mapping[str, Any], place: str) -> Example | None:
        example = self._pair(record, place)
        if example is None:
            return None
        texts = [self.contract.passage("", text) for text in self._negatives(record, place)]
        kept = self.distinct(texts, example["positive"])
        if not kept:
            self.left_out[NO_NEGATIVE] += 1
            return None
        return {**example, "negatives": [texts[i] for i in kept]}

    def distinct(self, negatives: list[str], positive: str) -> list[int]:
        """Places of the negatives that can be negatives: not blank, and not the positive itself."""
        blank = self.contract.passage("", "").strip()
        useless = (positive.strip(), blank)
        kept = [i for i, text in enumerate(negatives) if text.strip() not in useless]
        self.left_out[IDENTICAL] += sum(text.strip() == useless[0] for text in negatives)
        return kept

    def _negatives(self, record: Mapping[str, Any], place: str) -> list[str]:
        if record.get(self.key("negatives")) is not None and self.format != "triples":
            values = _listed(record[self.key("negatives")], place, self.key("negatives"))
            return [_checked_text(value, place, self.key("negatives")) for value in values]
        if self.key("negative") in record:
            return [self._text(record, "negative", place)]
        names = list(self._numbered(record, "negative"))
        if not names:
            raise ValueError(self._missing(place, ["negatives", "negative", "negative_1"], record))
        # In a table, rows with fewer negatives than others have blanks behind them.
        return [_checked_text(record[name] or "", place, name) for name in names]

    def _numbered(self, record: Mapping[str, Any], name: str) -> Iterator[str]:
        number = 1
        while (key := self.key(f"{name}_{number}")) in record:
            yield key
            number += 1

    def _scored(self, record: Mapping[str, Any], place: str) -> Example | None:
        example = self._pair(record, place)
        if example is None:
            return None
        texts = [self.contract.passage("", text) for text in self._negatives(record, place)]
        scores = self._teacher_scores(record, place)
        if len(scores) != 1 + len(texts):
            raise ValueError(
                f"{place}: {len(scores)} scores for {1 + len(texts)} passages, expected one for "
                "the positive and one for each negative, in this order: mend the row"
            )
        kept = self.distinct(texts, example["positive"])
        if not kept:
            self.left_out[NO_NEGATIVE] += 1
            return None
        return {
            **example,
            "negatives": [texts[i] for i in kept],
            "teacher_scores": [scores[0], *(scores[1 + i] for i in kept)],
        }

    def _teacher_scores(self, record: Mapping[str, Any], place: str) -> list[float]:
        """The scores of the positive and of the negatives; a margin is as good as two scores."""
        if self.key("scores") in record:
            name = self.key("scores")
            return [_number(v, place, name) for v in _listed(record[name], place, name)]
        if self.key("margin") in record:
            return [_number(record[self.key("margin")], place, self.key("margin")), 0.0]
        if self.key("positive_score") not in record:
            raise ValueError(self._missing(place, ["positive_score", "scores", "margin"], record))
        positive = _number(record[self.key("positive_score")], place, self.key("positive_score"))
        if record.get(self.key("negative_scores")) is not None:
            name = self.key("negative_scores")
            negatives = [(name, value) for value in _listed(record[name], place, name)]
        elif self.key("negative_score") in record:
            negatives = [(self.key("negative_score"), record[self.key("negative_score")])]
        else:
            names = self._numbered(record, "negative_score")
            negatives = [(name, record[name]) for name in names]
        return [positive, *(_number(value, place, name) for name, value in negatives)]

    def _graded(self, record: Mapping[str, Any], place: str) -> Example | None:
        first, second = (self._text(record, name, place) for name in ("sentence1", "sentence2"))
        if self.key("score") not in record:
            raise ValueError(self._missing(place, ["score"], record))
        return self.graded(first, second, record[self.key("score")], place)

    def graded(self, first: str, second: str, score: object, place: str) -> Example | None:
        """A graded pair, its score from 0 to 1; both sentences are encoded as passages are."""
        lowest, highest = self.score_range
        value = _number(score, place, self.key("score"))
        if not lowest <= value <= highest:
            raise ValueError(
                f"{place}: the score {value:g} is beyond score_range [{lowest:g}, {highest:g}]: "
                "set score_range to the lowest and the highest score that there can be"
            )
        if not first.strip() or not second.strip():
            self.left_out[BLANK] += 1
            return None
        label = (value - lowest) / (highest - lowest)
        return {
            "sentence1": self.contract.passage("", first),
            "sentence2": self.contract.passage("", second),
            "label": label,
        }

    def _text(self, record: Mapping[str, Any], name: str, place: str) -> str:
        key = self.key(name)
        if key not in record:
            raise ValueError(self._missing(place, [name], record))
        return _checked_text(record[key], place, key)


def _checked_text(value: object, place: str, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{place}: {name} is {_shown(value)}, expected text: mend the row")
    return value


def _number(value: object, place: str, name: str) -> float:
    try:
        is_number = isinstance(value, str | int | float) and not isinstance(value, bool)
        number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{place}: {name} is {_shown(value)}, expected a number: mend the row")
    return number


def _listed(value: object, place: str, name: str) -> list[Any]:
    """A list, or in a table of text the JSON that spells one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            value = str(value)
    if not isinstance(value, list):
        raise ValueError(f"{place}: {name} is {_shown(value)}, expected a list: mend the row")
    return value


def _shown(value: object) -> str:
    if value is None:
        return "null"
    text = repr(value)
    return f"{text[:60]}{'…' if len(text) > 60 else ''} ({type(value).__name__})"
