"""Turn labelled rows, or the pairs of a collection, into training examples.

An example is a query with its positive and, for some formats, any number of negatives and a
cross-encoder's scores; or two sentences with a score. Its texts include the prompts. What cannot
teach is left out and counted (`LEFT_OUT`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, count, takewhile
from typing import Any

from modeling_condenser.collection.collection import Collection
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.mining.hard_negatives import HardNegatives, judged_positives
from modeling_condenser.mining.passage_index import PassageIndex

from .recipe import FinetuningRecipe
from .rows import Fields

Example = dict[str, Any]

LEFT_OUT = "left_out"  # why a row is not an example
BLANK = "rows with a blank text"
NO_NEGATIVE = "rows without a negative"
NO_POSITIVE = "questions without a positive passage"
NOT_IN_SPLIT = "lines of queries that are not in the split"
WITHOUT_LINE = "queries of the split without a line of negatives"


def make_examples(
    rows: Iterable[Fields], recipe: FinetuningRecipe, make: Callable[[Fields], Example]
) -> Iterator[Example]:
    """Make an example of each row, of which `make` gets the fields by our names."""
    columns = recipe.columns if isinstance(recipe.columns, Mapping) else {}
    for number, row in enumerate(rows, start=1):
        try:
            yield make({**row, **{ours: row[theirs] for ours, theirs in columns.items()}})
        except KeyError as error:
            raise ValueError(
                f"{recipe.data}, row {number}: there is no column {error}; the columns are "
                f"{', '.join(row)}. Map our names to theirs, as columns: {{query: question}}, or "
                "list all columns of a .tsv or .csv file without a header."
            ) from error
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{recipe.data}, row {number}: {error}") from error


@dataclass(frozen=True)
class TextExamples:
    """Makes examples of rows that hold the texts."""

    recipe: FinetuningRecipe
    contract: EncodingContract

    def make(self, row: Fields) -> Example:
        match self.recipe.format:
            case "graded_pairs" | "stsb":
                return self._graded_pair(row)
            case "dpr":
                return self._dpr(row)
            case "pairs":
                return self._ranked(_text(row, "query"), ("", _text(row, "positive")))
        negatives = [("", text) for text in _values(row, "negatives", "negative")]
        scores = _scores(row) if self.recipe.format == "scored" else None
        if scores is not None and len(scores) != 1 + len(negatives):
            raise ValueError(f"{len(scores)} scores for {1 + len(negatives)} passages.")
        positive = ("", _text(row, "positive"))
        return self._ranked(_text(row, "query"), positive, negatives, scores)

    def _ranked(
        self,
        query: str,
        positive: tuple[str, str],
        negatives: Sequence[tuple[str, str]] | None = None,
        scores: Sequence[float] | None = None,
    ) -> Example:
        """An example of passages (title, text); those without a text of their own are dropped."""
        own = positive[1].strip()
        if not query.strip() or not own:
            return {LEFT_OUT: BLANK}
        query, joined = self.contract.query(query), self.contract.passage(*positive)
        if negatives is None or self.recipe.n_negatives == 0:
            return {"query": query, "positive": joined}
        useful = [text.strip() not in ("", own) for _, text in negatives]
        texts = [self.contract.passage(*negative) for negative in negatives]
        return _with_useful(query, joined, texts, useful, scores)

    def _dpr(self, row: Fields) -> Example:
        """An entry of DPR's retriever training data (Karpukhin et al. 2020, section 4.2).

        As in DPR, the first positive is used; the negatives are the hard ones, and the other ones
        only for a question without hard ones.
        """
        if not row["positive_ctxs"]:
            return {LEFT_OUT: NO_POSITIVE}
        negatives = row.get("hard_negative_ctxs") or row.get("negative_ctxs") or []
        contexts = [row["positive_ctxs"][0], *negatives]
        positive, *others = [(context.get("title") or "", context["text"]) for context in contexts]
        return self._ranked(_text(row, "question"), positive, others)

    def _graded_pair(self, row: Fields) -> Example:
        """Both sentences are encoded as passages are, as in the evaluation of graded pairs."""
        texts = _text(row, "sentence1"), _text(row, "sentence2")
        low, high = self.recipe.score_range or (0.0, 5.0 if self.recipe.format == "stsb" else 1.0)
        score = float(row["score"])
        if not low <= score <= high:
            raise ValueError(f"score {score:g} is outside [{low:g}, {high:g}]: set score_range.")
        if not all(map(str.strip, texts)):
            return {LEFT_OUT: BLANK}
        first, second = (self.contract.passage("", text) for text in texts)
        label = (score - low) / (high - low)
        return {"sentence1": first, "sentence2": second, "label": label}


def _text(row: Fields, name: str) -> str:
    if not isinstance(row[name], str):
        raise ValueError(f"{name} is {row[name]!r:.60}, expected text.")
    return row[name]


def _scores(row: Fields) -> list[float]:
    """The scores of the positive and of the negatives; a margin is that of a negative with 0."""
    if row.get("scores") is not None:
        scores = _values(row, "scores", "score")
    elif row.get("margin") is not None:
        scores = [row["margin"], 0.0]
    else:
        scores = [row["positive_score"], *_values(row, "negative_scores", "negative_score")]
    return [float(score) for score in scores]


def _values(row: Fields, plural: str, singular: str) -> list[Any]:
    """The list `plural` (in tables, as JSON); or `singular`; or `singular_1`, `singular_2`, ..."""
    values = row.get(plural)
    if values is not None:
        return json.loads(values) if isinstance(values, str) else values
    numbered = takewhile(row.__contains__, (f"{singular}_{n}" for n in count(1)))
    names = [singular] if row.get(singular) is not None else list(numbered) or [singular]
    return [row[name] for name in names if row[name] not in (None, "")]


def _with_useful(
    query: str,
    positive: Any,
    negatives: Sequence[Any],
    useful: Sequence[bool],
    scores: Sequence[float] | None,
) -> Example:
    """An example with the useful negatives, and the scores of the positive and of these."""
    if not any(useful):
        return {LEFT_OUT: NO_NEGATIVE}
    example = {"query": query, "positive": positive}
    example["negatives"] = list(compress(negatives, useful))
    if scores is not None:
        example["teacher_scores"] = list(compress(scores, [True, *useful]))
    return example


@dataclass(frozen=True)
class CollectionExamples:
    """Makes examples whose `positive` and `negatives` are rows of a collection's passages.

    A passage's text is looked up when a batch needs it, so that a passage which is a negative of a
    thousand queries is stored once.
    """

    collection: Collection
    contract: EncodingContract

    @cached_property
    def _index(self) -> PassageIndex:
        return PassageIndex(self.collection.passages)

    @cached_property
    def _relevant(self) -> dict[str, tuple[str, ...]]:
        return judged_positives(self.collection)

    def judged(self) -> Iterator[Example]:
        """One example for each query and passage judged relevant for it."""
        for query_id, ids in self._relevant.items():
            for row in self._index.rows(ids).tolist():
                yield {"query": self._query(query_id), "positive": row}

    def triple(self, fields: Fields) -> Example:
        """A triple of ids, as in MS MARCO's qidpidtriples.train.full.2.tsv."""
        names = ("query_id", "positive_id", "negative_id")
        query_id, positive, negative = (str(fields[name]) for name in names)
        if query_id not in self.collection.queries:
            raise ValueError(
                f"query {query_id!r} is not in the split of {self.collection.name}: use the split "
                "that the triples were made from."
            )
        return self._ranked(query_id, positive, [negative])

    def mined(self, lines: Iterable[HardNegatives], *, with_scores: bool) -> Iterator[Example]:
        """One example for each query and positive, with the query's hard negatives.

        A query's positives are those of its line, or else the passages judged relevant.
        """
        seen: set[str] = set()
        for line in lines:
            query_id = line.query_id
            seen.add(query_id)
            if query_id not in self.collection.queries:
                yield {LEFT_OUT: NOT_IN_SPLIT}
                continue
            positives = line.positive_ids or self._relevant.get(query_id, ())
            own, others = line.positive_teacher_scores, line.negative_teacher_scores
            if not positives or (with_scores and (own is None or others is None)):
                missing = "cross-encoder's scores" if positives else "positives"
                raise ValueError(
                    f"The line of query {query_id!r} has no {missing}: mine with a cross-encoder, "
                    "or use objective contrastive; without judgements, mine with --positives "
                    "answers."
                )
            for place, positive in enumerate(positives):
                scores = [own[place], *(others or ())] if with_scores and own else None
                yield self._ranked(query_id, positive, line.negative_ids, scores, known=positives)
        yield from [{LEFT_OUT: WITHOUT_LINE}] * len(self.collection.queries.keys() - seen)

    def _ranked(
        self,
        query_id: str,
        positive: str,
        negatives: Sequence[str],
        scores: Sequence[float] | None = None,
        *,
        known: Sequence[str] = (),
    ) -> Example:
        """Negatives that are relevant (or `known` to be) or copies of the positive are dropped."""
        relevant = {*known, *self._relevant.get(query_id, ())}
        row, *rows = self._index.rows([positive, *negatives]).tolist()
        is_copy = self._index.content[rows] == self._index.content[row]
        useful = [i not in relevant and not c for i, c in zip(negatives, is_copy, strict=True)]
        return _with_useful(self._query(query_id), row, rows, useful, scores)

    def _query(self, query_id: str) -> str:
        return self.contract.query(self.collection.queries[query_id])
