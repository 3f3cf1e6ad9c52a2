"""Turn rows of labelled data into training examples.

An example is a query with its positive and, for some formats, any number of negatives and a
cross-encoder's scores; or two sentences with a score. Its texts include the prompts. A malformed
row is an error; a row without a usable text or negative is left out and counted (`LEFT_OUT`).
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from modeling_condenser.collection.text_files import read_lines
from modeling_condenser.repository.contract import EncodingContract

from .data_files import DataSource, Record
from .stored_examples import BLANK, LEFT_OUT, NO_NEGATIVE, Example

NO_POSITIVE = "questions without a positive passage"
_STSB_FIELDS = ("genre", "file", "year", "number", "score", "sentence1", "sentence2")


@dataclass(frozen=True)
class RowReader:
    """Turns rows of one format into examples.

    Attributes:
        format: see `FinetuningRecipe`.
        contract: gives the prompts and the title separator.
        columns: our names -> the data's names, where they differ.
        score_range: lowest and highest score of graded pairs, which become 0 and 1.
        keep_without_negatives: whether to keep questions of format "dpr" that have no negative.
    """

    format: str
    contract: EncodingContract
    columns: Mapping[str, str] = field(default_factory=dict)
    score_range: tuple[float, float] = (0.0, 1.0)
    keep_without_negatives: bool = False

    def read(self, records: Iterable[Record]) -> Iterator[Example]:
        """Turn records into examples, one each.

        Raises:
            ValueError: a column is missing or has the wrong type; the message names file and line.
        """
        read_row: Callable[[Row], Example] = {
            "pairs": self._pair,
            "triples": self._with_negatives,
            "negatives": self._with_negatives,
            "scored": self._scored,
            "graded_pairs": self._graded_pair,
            "stsb": self._graded_pair,
            "dpr": self._dpr,
        }[self.format]
        for place, fields in records:
            yield read_row(Row(place, fields, self.columns))

    def _pair(self, row: "Row") -> Example:
        query, positive = row.text("query"), row.text("positive")
        if not query.strip() or not positive.strip():
            return {LEFT_OUT: BLANK}
        return {
            "query": self.contract.query(query),
            "positive": self.contract.passage("", positive),
        }

    def _with_negatives(self, row: "Row") -> Example:
        return self._add_negatives(self._pair(row), row.negatives(), scores=None)

    def _scored(self, row: "Row") -> Example:
        negatives, scores = row.negatives(), row.teacher_scores()
        if len(scores) != 1 + len(negatives):
            raise ValueError(
                f"{row.place}: {len(scores)} scores for {1 + len(negatives)} passages, expected "
                "one for the positive and then one for each negative: correct the row."
            )
        return self._add_negatives(self._pair(row), negatives, scores=scores)

    def _add_negatives(
        self, example: Example, negatives: list[str], *, scores: list[float] | None
    ) -> Example:
        """Add the negatives that are not blank and do not have the text of the positive."""
        if LEFT_OUT in example:
            return example
        texts = [self.contract.passage("", text) for text in negatives]
        kept = [
            i
            for i, text in enumerate(texts)
            if negatives[i].strip() and text.strip() != example["positive"].strip()
        ]
        if not kept:
            return {LEFT_OUT: NO_NEGATIVE}
        example = {**example, "negatives": [texts[i] for i in kept]}
        if scores is not None:
            example["teacher_scores"] = [scores[0], *(scores[1 + i] for i in kept)]
        return example

    def _graded_pair(self, row: "Row") -> Example:
        """Both sentences are encoded as passages are, as in the evaluation of graded pairs."""
        first, second, score = row.text("sentence1"), row.text("sentence2"), row.number("score")
        lowest, highest = self.score_range
        if not lowest <= score <= highest:
            raise ValueError(
                f"{row.place}: the score {score:g} is outside score_range [{lowest:g}, "
                f"{highest:g}]: set score_range to the lowest and the highest possible score."
            )
        if not first.strip() or not second.strip():
            return {LEFT_OUT: BLANK}
        return {
            "sentence1": self.contract.passage("", first),
            "sentence2": self.contract.passage("", second),
            "label": (score - lowest) / (highest - lowest),
        }

    def _dpr(self, row: "Row") -> Example:
        """An entry of DPR's retriever training data (Karpukhin et al. 2020, section 4.2).

        As in DPR, the first positive is used; the negatives are the hard ones, and the other ones
        only for a question without hard ones.
        """
        question, positives = row.text("question"), self._contexts(row, "positive_ctxs")
        if not positives:
            return {LEFT_OUT: NO_POSITIVE}
        if not question.strip() or not positives[0].strip():
            return {LEFT_OUT: BLANK}
        negatives = self._contexts(row, "hard_negative_ctxs")
        negatives = negatives or self._contexts(row, "negative_ctxs")
        blanks = (positives[0].strip(), self.contract.passage("", "").strip())
        kept = [text for text in negatives if text.strip() not in blanks]
        if not kept and not self.keep_without_negatives:
            return {LEFT_OUT: NO_NEGATIVE}
        return {
            "query": self.contract.query(question),
            "positive": positives[0],
            "negatives": kept,
        }

    def _contexts(self, row: "Row", name: str) -> list[str]:
        """The passages of a list of `title` and `text`."""
        if name not in row.fields and name != "positive_ctxs":
            return []
        texts = []
        for context in row.listed(name):
            passage = Row(f"{row.place}: {name}", context if isinstance(context, dict) else {}, {})
            title = passage.text("title") if passage.fields.get("title") else ""
            texts.append(self.contract.passage(title, passage.text("text")))
        return texts


@dataclass(frozen=True)
class Row:
    """The fields of one row, read by our names and checked.

    Attributes:
        place: file and line, for error messages.
        fields: by the data's names.
        columns: our names -> the data's names, where they differ.
    """

    place: str
    fields: Mapping[str, Any]
    columns: Mapping[str, str]

    def has(self, name: str) -> bool:
        """Whether the row has a value for one of our names."""
        return self.fields.get(self._key(name)) is not None

    def text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        return value

    def number(self, name: str) -> float:
        return self._to_number(self._value(name), name)

    def listed(self, name: str) -> list[Any]:
        """A list; a table of texts may contain it as JSON."""
        value = self._value(name)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise self._wrong(name, "a list") from error
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def negatives(self) -> list[str]:
        """`negatives`, a list; `negative`; or `negative_1`, `negative_2`, ..."""
        if self.has("negatives"):
            negatives = self.listed("negatives")
            if not all(isinstance(text, str) for text in negatives):
                raise self._wrong("negatives", "a list of texts")
            return negatives
        if self.has("negative"):
            return [self.text("negative")]
        # In a table, rows with fewer negatives than others have blank or null fields at their end.
        names = self._numbered("negative")
        if not names:
            raise self._missing("negatives", "negative", "negative_1")
        return [self.text(name) for name in names if self.has(name)]

    def teacher_scores(self) -> list[float]:
        """The scores of the positive and of the negatives; a margin is the score of a positive
        whose negative has 0."""
        if self.has("scores"):
            return [self._to_number(score, "scores") for score in self.listed("scores")]
        if self.has("margin"):
            return [self.number("margin"), 0.0]
        if not self.has("positive_score"):
            raise self._missing("positive_score", "scores", "margin")
        positive = self.number("positive_score")
        if self.has("negative_scores"):
            scores = self.listed("negative_scores")
            return [positive, *(self._to_number(score, "negative_scores") for score in scores)]
        if self.has("negative_score"):
            return [positive, self.number("negative_score")]
        names = self._numbered("negative_score")
        return [positive, *(self.number(name) for name in names if self.has(name))]

    def _key(self, name: str) -> str:
        return self.columns.get(name, name)

    def _value(self, name: str) -> Any:
        if self._key(name) not in self.fields:
            raise self._missing(name)
        return self.fields[self._key(name)]

    def _numbered(self, name: str) -> list[str]:
        names: list[str] = []
        while self._key(f"{name}_{len(names) + 1}") in self.fields:
            names.append(f"{name}_{len(names) + 1}")
        return names

    def _to_number(self, value: Any, name: str) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise self._wrong(name, "finite numbers")
        return number

    def _wrong(self, name: str, expected: str) -> ValueError:
        value = self._value(name)
        return ValueError(f"{self.place}: {self._key(name)} is {value!r:.60}, expected {expected}.")

    def _missing(self, *names: str) -> ValueError:
        keys = " or ".join(repr(self._key(name)) for name in names)
        columns = [name[:40] for name in self.fields]
        nearest = get_close_matches(self._key(names[0]), columns, n=1, cutoff=0.0) or ["..."]
        return ValueError(
            f"{self.place}: there is no column {keys}; the columns are {', '.join(columns)}. Map "
            f"our names to the data's, for example columns: {{{names[0]}: {nearest[0]}}}, or list "
            "all columns of a .tsv or .csv file without a header."
        )


def read_stsb(source: DataSource) -> Iterator[Record]:
    """Read the STS benchmark's own files, such as sts-train.csv (Cer et al. 2017).

    They have tabs between fields and no header, quotes are part of the text, and some lines have
    licences after the two sentences.

    Raises:
        ValueError: the source is a Hub data set, or a line has too few fields.
    """
    if source.table is not None:
        raise ValueError(
            f"{source.name} is a Hub data set, but format stsb is for the benchmark's own files: "
            "use format: graded_pairs, and map its columns."
        )
    for file in source.files:
        for number, line in read_lines(file):
            fields = line.split("\t")
            if len(fields) < len(_STSB_FIELDS):
                raise ValueError(
                    f"{file}:{number}: {len(fields)} fields between tabs, expected "
                    f"{', '.join(_STSB_FIELDS)}. A file with the header sentence1,sentence2,score "
                    "has format graded_pairs."
                )
            yield f"{file}:{number}", dict(zip(_STSB_FIELDS, fields, strict=False))
