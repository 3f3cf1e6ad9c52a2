"""Turn labelled rows, or the pairs of a collection, into training examples.

An example is a query with its passages, the positive first, and possibly a cross-encoder's scores
of them; or two sentences with a score. Its texts include the prompts. What cannot teach is left out
and counted (`LEFT_OUT`).
"""

import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, count, repeat, takewhile
from pathlib import Path
from typing import Any

from datasets import load_dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.passages import PassageIndex, file_states, iterate_rows
from modeling_condenser.collection.text_files import read_rows
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.mining.hard_negatives import HardNegatives, judged_positives

from .recipe import FinetuningRecipe

Fields = Mapping[str, Any]
Example = dict[str, Any]

LEFT_OUT = "left_out"  # why a row is not an example


def open_rows(recipe: FinetuningRecipe) -> tuple[Iterable[Fields], list[str]]:
    """The rows of the files or the Hub data set that a recipe names; and what identifies them."""
    names = [recipe.data] if isinstance(recipe.data, str) else recipe.data
    found = {
        str(name): sorted(filter(os.path.isfile, glob.glob(str(name), recursive=True)))
        for name in names
    }
    if all(found.values()):
        files = list(map(Path, chain.from_iterable(found.values())))
        columns = None if isinstance(recipe.columns, Mapping) else recipe.columns
        return chain.from_iterable(read_rows(file, columns) for file in files), file_states(files)
    name = next(name for name, files in found.items() if not files)
    split = "train" if recipe.format == "id_triples" else recipe.split or "train"
    try:
        table = load_dataset(name, recipe.data_name, split=split, revision=recipe.data_revision)
    except (OSError, ValueError) as error:  # OSError by the Hub; ValueError for a wrong split
        raise FileNotFoundError(
            f"There is no local file {name!r}, and the Hub data set of that name could not be "
            f"loaded ({str(error).splitlines()[0]}): correct data, data_name or split."
        ) from error
    return iterate_rows(table), [f"{name}: {table._fingerprint}"]


def convert_rows(
    rows: Iterable[Fields], recipe: FinetuningRecipe, convert: Callable[[Fields], Any]
) -> Iterator[Any]:
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
    if recipe.objective == "mse_cosine":
        return _make_graded_pair(recipe, contract, row)
    titles: Iterable[str] = repeat("")
    if recipe.format == "dpr":
        # As in DPR (Karpukhin et al. 2020, section 4.2), the first positive is used, and other
        # negatives only for a question without hard ones.
        if not row["positive_ctxs"]:
            return {LEFT_OUT: "questions without a positive passage"}
        negatives = row.get("hard_negative_ctxs") or row.get("negative_ctxs") or []
        contexts = [row["positive_ctxs"][0], *negatives]
        query, texts = row["question"], [context["text"] for context in contexts]
        titles = [context.get("title") or "" for context in contexts]
    else:
        others = [] if recipe.format == "pairs" else _values(row, "negatives", "negative")
        query, texts = row["query"], [row["positive"], *others]
    _check_texts(query, *texts)
    scores = _scores(row) if recipe.format == "scored" else None
    if scores is not None and len(scores) != len(texts):
        raise ValueError(f"{len(scores)} scores for {len(texts)} passages.")
    own, *rest = map(str.strip, texts)
    if not query.strip() or not own:
        return {LEFT_OUT: "rows with a blank text"}
    passages = list(map(contract.passage, titles, texts))
    example = {"query": contract.query(query), "passages": passages[:1]}
    if recipe.format == "pairs" or recipe.n_negatives == 0:
        return example
    return example | _choose(passages, [text not in ("", own) for text in rest], scores)


def _make_graded_pair(recipe: FinetuningRecipe, contract: EncodingContract, row: Fields) -> Example:
    """Both sentences are encoded as passages are, as in the evaluation of graded pairs."""
    texts = row["sentence1"], row["sentence2"]
    _check_texts(*texts)
    low, high = recipe.score_range or (0.0, 5.0 if recipe.format == "stsb" else 1.0)
    score = float(row["score"])
    if not low <= score <= high:
        raise ValueError(f"score {score:g} is outside [{low:g}, {high:g}]: set score_range.")
    if not all(map(str.strip, texts)):
        return {LEFT_OUT: "rows with a blank text"}
    first, second = (contract.passage("", text) for text in texts)
    return {"sentence1": first, "sentence2": second, "label": (score - low) / (high - low)}


def _check_texts(*texts: Any) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{text!r:.60} is no text.")


def _scores(row: Fields) -> list[float]:
    """The scores of the positive and of the negatives; a margin is that of a negative with 0."""
    if row.get("scores") is not None:
        scores = _values(row, "scores", "score")
    elif row.get("margin") is not None:
        scores = [row["margin"], 0.0]
    else:
        scores = [row["positive_score"], *_values(row, "negative_scores", "negative_score")]
    return list(map(float, scores))


def _values(row: Fields, plural: str, singular: str) -> list[Any]:
    """The list `plural` (in tables, as JSON); or `singular`; or `singular_1`, `singular_2`, ..."""
    if (values := row.get(plural)) is not None:
        return json.loads(values) if isinstance(values, str) else values
    numbered = list(takewhile(row.__contains__, (f"{singular}_{n}" for n in count(1))))
    names = numbered if numbered and row.get(singular) is None else [singular]
    return [row[name] for name in names if row[name] not in (None, "")]


def _choose(
    passages: Sequence[Any], is_useful: Sequence[bool], scores: Sequence[float] | None
) -> Example:
    """The positive and the useful negatives behind it, and their scores."""
    if not any(is_useful):
        return {LEFT_OUT: "rows without a negative"}
    kept = [True, *is_useful]
    return {
        "passages": list(compress(passages, kept)),
        "scores": None if scores is None else list(compress(scores, kept)),
    }


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
            lacks = "cross-encoder scores" if positives else "positives"
            raise ValueError(
                f"The line of query {line.query_id!r} has no {lacks}: mine with a cross-encoder, or"
                " use objective contrastive; without judgements, mine with --positives answers."
            )
        query = contract.query(collection.queries[line.query_id])
        n_known = len(positives) + len(judged)
        rows = index.rows([*positives, *judged, *line.negative_ids]).tolist()
        known, negatives = rows[:n_known], rows[n_known:]
        for place, positive in enumerate(known[: len(positives)]):
            example = {"query": query, "passages": [positive]}
            if lines is not None:
                text = index.content[positive]
                useful = [row not in known and index.content[row] != text for row in negatives]
                scores = [own[place], *(others or ())] if with_scores and own else None
                example |= _choose([positive, *negatives], useful, scores)
            yield example
    yield from [{LEFT_OUT: "queries of the split without a line of negatives"}] * len(left)
