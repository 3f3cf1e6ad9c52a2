"""Turn labelled rows, or the pairs of a collection, into training examples.

An example is a query with its positive and, for some formats, any number of negatives and a
cross-encoder's scores; or two sentences with a score. Its texts include the prompts. What cannot
teach is left out and counted (`LEFT_OUT`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, count, takewhile
from typing import Any, TypeVar

from modeling_condenser.collection.collection import Collection
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.mining.hard_negatives import HardNegatives, judged_positives
from modeling_condenser.mining.passage_index import PassageIndex

from .recipe import FinetuningRecipe
from .rows import Fields

Example = dict[str, Any]
Converted = TypeVar("Converted")

LEFT_OUT = "left_out"  # why a row is not an example


def convert_rows(
    rows: Iterable[Fields], recipe: FinetuningRecipe, convert: Callable[[Fields], Converted]
) -> Iterator[Converted]:
    """Convert rows, of which `convert` gets the fields by our names."""
    columns = recipe.columns if isinstance(recipe.columns, Mapping) else {}
    for number, row in enumerate(rows, start=1):
        try:
            yield convert({**row, **{ours: row[theirs] for ours, theirs in columns.items()}})
        except KeyError as error:
            raise ValueError(
                f"{recipe.data}, row {number}: there is no column {error}; the columns are "
                f"{', '.join(row)}. Map our names to theirs, as columns: {{query: question}}, or "
                "list all columns of a .tsv or .csv file without a header."
            ) from error
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{recipe.data}, row {number}: {error}") from error


def make_text_example(recipe: FinetuningRecipe, contract: EncodingContract, row: Fields) -> Example:
    """Make an example of a row that holds the texts."""
    match recipe.format:
        case "graded_pairs" | "stsb":
            return _make_graded_pair(recipe, contract, row)
        case "dpr":
            # As in DPR (Karpukhin et al. 2020, section 4.2), the first positive is used, and other
            # negatives only for a question without hard ones.
            if not row["positive_ctxs"]:
                return {LEFT_OUT: "questions without a positive passage"}
            negatives = row.get("hard_negative_ctxs") or row.get("negative_ctxs") or []
            contexts = [row["positive_ctxs"][0], *negatives]
            passages = [(context.get("title") or "", context["text"]) for context in contexts]
        case "pairs":
            passages = [("", _text(row, "positive"))]
        case _:
            texts = [_text(row, "positive"), *_values(row, "negatives", "negative")]
            passages = [("", text) for text in texts]
    query = _text(row, "question" if recipe.format == "dpr" else "query")
    scores = _scores(row) if recipe.format == "scored" else None
    if scores is not None and len(scores) != len(passages):
        raise ValueError(f"{len(scores)} scores for {len(passages)} passages.")
    own, *others = (text.strip() for _, text in passages)  # without titles
    if not query.strip() or not own:
        return {LEFT_OUT: "rows with a blank text"}
    positive, *negatives = (contract.passage(title, text) for title, text in passages)
    example = {"query": contract.query(query), "positive": positive}
    if recipe.format == "pairs" or recipe.n_negatives == 0:
        return example
    return example | _choose(negatives, [text not in ("", own) for text in others], scores)


def _make_graded_pair(recipe: FinetuningRecipe, contract: EncodingContract, row: Fields) -> Example:
    """Both sentences are encoded as passages are, as in the evaluation of graded pairs."""
    texts = _text(row, "sentence1"), _text(row, "sentence2")
    low, high = recipe.score_range or (0.0, 5.0 if recipe.format == "stsb" else 1.0)
    score = float(row["score"])
    if not low <= score <= high:
        raise ValueError(f"score {score:g} is outside [{low:g}, {high:g}]: set score_range.")
    if not all(map(str.strip, texts)):
        return {LEFT_OUT: "rows with a blank text"}
    first, second = (contract.passage("", text) for text in texts)
    return {"sentence1": first, "sentence2": second, "label": (score - low) / (high - low)}


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


def _choose(
    negatives: Sequence[Any], useful: Sequence[bool], scores: Sequence[float] | None
) -> Example:
    """The useful negatives, and the scores of the positive and of these."""
    if not any(useful):
        return {LEFT_OUT: "rows without a negative"}
    chosen = {"negatives": list(compress(negatives, useful))}
    if scores is not None:
        chosen["teacher_scores"] = list(compress(scores, [True, *useful]))
    return chosen


def make_collection_examples(
    collection: Collection,
    contract: EncodingContract,
    lines: Iterable[HardNegatives] | None,
    *,
    with_scores: bool,
) -> Iterator[Example]:
    """Make an example of each query and positive; passages are given by their rows.

    A passage's text is looked up when a batch needs it, so that a passage which is a negative of a
    thousand queries is stored once. Negatives that are relevant, or copies of the positive, are
    dropped.

    Args:
        lines: the negatives of each query; its positives are those of its line, or else the
            passages judged relevant. None for judged pairs without negatives.
        with_scores: whether to read a cross-encoder's scores.
    """
    index, relevant = PassageIndex(collection.passages), judged_positives(collection)
    left = set(() if lines is None else collection.queries)
    for line in map(HardNegatives, relevant) if lines is None else lines:
        if line.query_id not in collection.queries:
            yield {LEFT_OUT: "lines of queries that are not in the split"}
            continue
        left.discard(line.query_id)
        judged = relevant.get(line.query_id, ())
        positives = line.positive_ids or judged
        own, others = line.positive_teacher_scores, line.negative_teacher_scores
        if not positives or (with_scores and (own is None or others is None)):
            raise ValueError(
                f"The line of query {line.query_id!r} has no "
                f"{'cross-encoder scores' if positives else 'positives'}: mine with a "
                "cross-encoder, or use objective contrastive; without judgements, mine with "
                "--positives answers."
            )
        query = contract.query(collection.queries[line.query_id])
        n_known = len(positives) + len(judged)
        rows = index.rows([*positives, *judged, *line.negative_ids]).tolist()
        known, negatives = rows[:n_known], rows[n_known:]
        for place, positive in enumerate(known[: len(positives)]):
            example = {"query": query, "positive": positive}
            if lines is not None:
                text = index.content[positive]
                useful = [row not in known and index.content[row] != text for row in negatives]
                scores = [own[place], *(others or ())] if with_scores and own else None
                example |= _choose(negatives, useful, scores)
            yield example
    yield from [{LEFT_OUT: "queries of the split without a line of negatives"}] * len(left)
