"""Loads the training data of a recipe, as a data set with the columns that the loss reads.

Labelled rows, or the pairs of a collection, become examples. An example is a query with passages,
the positive first, and optionally a cross-encoder's scores; or two sentences with a score. The
texts include the prompts. Rows that cannot be used are left out and counted (`LEFT_OUT`).
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, count, islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, List, Value

from modeling_condenser.collection.collection import (
    Collection,
    fingerprint_judgements,
    fingerprint_passages,
)
from modeling_condenser.collection.load import load_collection
from modeling_condenser.collection.passages import (
    PassageIndex,
    file_states,
    fingerprint_rows,
    iterate_rows,
    plain_text,
    store_rows,
    titles_and_texts,
)
from modeling_condenser.collection.text_files import load_hub_rows, match_paths, read_rows
from modeling_condenser.files.contract import EncodingContract
from modeling_condenser.mining.hard_negatives import (
    HardNegatives,
    KnownPassages,
    judged_positives,
    read_hard_negatives,
)
from modeling_condenser.pretraining.counter_random import EpochKeys, uniforms

from .recipe import FinetuningRecipe

logger = logging.getLogger(__name__)

Fields = Mapping[str, Any]
Example = dict[str, Any]

_LABEL_COLUMNS = {"query": "question", "positive": "passage"}  # those of `condenser collect`
_VERSION = 5  # to increase when the same rows give other examples
LABEL = "label"
LEFT_OUT = "left_out"  # the reason why a row is not an example
ROW_NUMBER = "row_number"  # of an example, before a subset is taken


class TrainingData(NamedTuple):
    """The examples of a recipe, the transform that draws negatives, and facts for the record.

    The columns of `examples` are `query`, `positive`, `negative_1`, ... and, for distillation,
    `label` (a cross-encoder's scores); or `sentence1`, `sentence2`, `label`.
    """

    examples: Dataset
    drawn: "DrawnNegatives | None"
    facts: dict[str, Any]


def load_training_data(
    recipe: FinetuningRecipe, contract: EncodingContract, *, seed: int
) -> TrainingData:
    """Load the training data of a recipe; `seed` is for drawing negatives."""
    collection, passages = None, None
    facts: dict[str, Any] = {}
    if recipe.collection is not None:
        collection = load_collection(recipe.collection, split=recipe.split or "train")
        passages = collection.passages
        facts["passages_fingerprint"] = fingerprint_passages(passages)
        facts["judgements_fingerprint"] = fingerprint_judgements(collection)
    what = str(recipe.data or recipe.negatives or recipe.collection)
    table = _store_examples(recipe, contract, collection, [*facts.values()])
    reasons = table.data.column(LEFT_OUT).to_pandas()
    if left_out := reasons.value_counts().to_dict():
        table = table.select(np.flatnonzero(reasons.isna()))
        logger.warning("%s: left out %s; %d examples remain.", what, left_out, len(table))
        facts["left_out"] = left_out
    if not len(table):
        raise ValueError(f"{what} contains no training example (left out: {left_out}).")
    n_negatives, size = _n_negatives(recipe, table, what), recipe.train_size
    if size is not None:  # the subsets of one seed are nested
        if size > len(table):
            raise ValueError(
                f"train_size is {size}, but {what} has {len(table)} training examples."
            )
        chosen = np.random.default_rng(recipe.subset_seed).permutation(len(table))[:size]
        table = table.select(np.sort(chosen))
    facts["rows_sha256"] = fingerprint_rows(table)
    facts |= {"n_negatives": n_negatives, "n_examples": len(table)}
    if recipe.objective == "mse_cosine":
        return TrainingData(table.remove_columns([LEFT_OUT, ROW_NUMBER]), None, facts)
    drawn = DrawnNegatives(n_negatives, seed, contract=contract, passages=passages)
    return TrainingData(table.with_transform(drawn), drawn, facts)


def _store_examples(
    recipe: FinetuningRecipe,
    contract: EncodingContract,
    collection: Collection | None,
    identity: list[str],
) -> Dataset:
    """Store all examples, memory-mapped, or open examples that were stored before.

    A passage is stored as its text, or for a collection as its row. `identity` identifies the
    collection.
    """
    text = Value("string")
    features = {"sentence1": text, "sentence2": text, LABEL: Value("float64")}
    if recipe.objective != "mse_cosine":
        passage = text if collection is None else Value("int64")
        features = {"query": text, "passages": List(passage), "scores": List(Value("float32"))}
    features |= {LEFT_OUT: text, ROW_NUMBER: Value("int64")}
    if collection is None:
        rows, state = open_rows(recipe)
        examples = make_text_examples(islice(rows, recipe.first_rows), recipe, contract)
    else:
        lines = None if recipe.negatives is None else read_hard_negatives(Path(recipe.negatives))
        state = [] if recipe.negatives is None else file_states([Path(recipe.negatives)])
        examples = make_collection_examples(
            collection, contract, lines, with_scores=recipe.is_distilled
        )
    texts = (contract.title_separator, contract.query_prompt, contract.passage_prompt)
    settings = (recipe.objective, recipe.columns, recipe.first_rows, recipe.score_range)
    wanted = (recipe.n_negatives == 0, recipe.needs_negatives)

    def numbered() -> Iterator[Example]:
        number = -1
        for number, example in enumerate(examples):
            yield {**dict.fromkeys(features), **example, ROW_NUMBER: number}
        if number < 0:
            raise ValueError(f"{recipe.data or recipe.collection} has no rows to train on.")

    identity += [*state, repr((_VERSION, *texts, *settings, *wanted))]
    return store_rows(numbered, features, identity=identity)


def _n_negatives(recipe: FinetuningRecipe, table: Dataset, what: str) -> int:
    """Return with how many negatives each example is trained."""
    if recipe.objective == "triplet":
        return 1
    if recipe.n_negatives is not None or "passages" not in table.column_names:
        return recipe.n_negatives or 0
    lengths = pc.list_value_length(table.data.column("passages")).drop_null()
    numbers = [length - 1 for length in lengths.unique().to_pylist()]
    if len(numbers) > 1:
        raise ValueError(
            f"The examples of {what} have from {min(numbers)} to {max(numbers)} negatives: set "
            "n_negatives, the number to train with (drawn anew in each epoch)."
        )
    return numbers[0]


def open_rows(recipe: FinetuningRecipe) -> tuple[Iterable[Fields], list[str]]:
    """Open the rows of a recipe's files or Hub data set; also return what identifies them."""
    names = [recipe.data] if isinstance(recipe.data, str) else recipe.data or []
    found = {name: list(filter(Path.is_file, match_paths(name))) for name in names}
    missing = [name for name, files in found.items() if not files]
    if not missing:
        files = list(chain.from_iterable(found.values()))
        columns = None if isinstance(recipe.columns, Mapping) else recipe.columns
        return chain.from_iterable(read_rows(file, columns) for file in files), file_states(files)
    if len(found) > 1:
        raise FileNotFoundError(
            f"There is no local file {missing[0]!r}: list local files only, or name one Hub data "
            "set."
        )
    split, revision = recipe.split or "train", recipe.data_revision
    table = load_hub_rows(missing[0], recipe.data_name, split=split, revision=revision)
    return iterate_rows(table), [f"{missing[0]}: {table._fingerprint}"]


def make_text_examples(
    rows: Iterable[Fields], recipe: FinetuningRecipe, contract: EncodingContract
) -> Iterator[Example]:
    """Make examples of rows that contain the texts, after renaming their columns to our names."""
    columns = recipe.columns if isinstance(recipe.columns, Mapping) else {}
    usual = {} if columns else _LABEL_COLUMNS
    make = _make_graded_pair if recipe.objective == "mse_cosine" else _make_example
    for number, row in enumerate(rows, start=1):
        try:
            labels = {ours: row[theirs] for ours, theirs in usual.items() if theirs in row}
            named = {**labels, **row, **{ours: row[theirs] for ours, theirs in columns.items()}}
            yield make(named, recipe, contract)
        except KeyError as error:
            raise ValueError(
                f"{recipe.data}, row {number}: there is no column {error}; the columns are "
                f"{', '.join(row)}. Map our names to theirs, as columns: {{query: question}}, or "
                "list all columns of a .tsv or .csv file without a header."
            ) from error
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{recipe.data}, row {number}: {error}") from error


def _make_example(row: Fields, recipe: FinetuningRecipe, contract: EncodingContract) -> Example:
    """Make an example of a query with passages."""
    if "positive_ctxs" in row:
        row = _read_dpr(row, contract.title_separator)
    others = [] if recipe.n_negatives == 0 else _values(row, "negatives", "negative")
    query, *texts = _texts(row["query"], row["positive"], *others)
    asked, own, *rest = map(plain_text, (query, *texts))
    if not asked or not own:
        return {LEFT_OUT: "rows with a blank text"}
    passages = [contract.passage("", text) for text in texts]
    example = {"query": contract.query(query), "passages": passages[:1]}
    if not others and not recipe.needs_negatives:
        return example
    scores = _scores(row) if recipe.is_distilled else None
    if scores is not None and len(scores) != len(texts):
        raise ValueError(f"{len(scores)} scores for {len(texts)} passages.")
    return example | _choose(passages, [text not in ("", own, asked) for text in rest], scores)


def _read_dpr(entry: Fields, separator: str) -> Fields:
    """Read an entry of DPR's JSON as a row; passages begin with their titles.

    As in DPR (Karpukhin et al. 2020, section 4.2), only the first positive is used, and other
    negatives only if there are no hard ones.
    """
    negatives = entry.get("hard_negative_ctxs") or entry.get("negative_ctxs") or []
    positives = entry["positive_ctxs"] or [{"text": ""}]
    contexts = [(own.get("title"), own["text"]) for own in (positives[0], *negatives)]
    positive, *others = [f"{title}{separator}{text}" if title else text for title, text in contexts]
    return {"query": entry["question"], "positive": positive, "negatives": others}


def _make_graded_pair(row: Fields, recipe: FinetuningRecipe, contract: EncodingContract) -> Example:
    """Make an example of two sentences; both are encoded as passages, as in the evaluation."""
    texts = _texts(row["sentence1"], row["sentence2"])
    low, high = recipe.score_range or (0.0, 1.0)
    score = float(row["score"])
    if not low <= score <= high:
        raise ValueError(f"score {score:g} is outside [{low:g}, {high:g}]: set score_range.")
    if not all(map(str.strip, texts)):
        return {LEFT_OUT: "rows with a blank text"}
    first, second = (contract.passage("", text) for text in texts)
    return {"sentence1": first, "sentence2": second, LABEL: (score - low) / (high - low)}


def _texts(*values: Any) -> list[str]:
    """Check texts; null is a blank text, as an empty field of a table is."""
    for value in values:
        if value is not None and not isinstance(value, str):
            raise ValueError(f"got {value!r:.60}, expected text.")
    return [value or "" for value in values]


def _scores(row: Fields) -> list[float]:
    """Read a cross-encoder's scores of positive and negatives."""
    scores = row.get("scores")
    if scores is None:
        scores = [row["positive_score"], *_values(row, "negative_scores", "negative_score")]
    scores = list(map(float, scores))
    if not all(map(math.isfinite, scores)):
        raise ValueError(f"the scores are {scores}, expected finite numbers.")
    return scores


def _values(row: Fields, plural: str, singular: str) -> list[Any]:
    """Read the list `plural`, or `singular`, or `singular_1`, ...; empty if there is none."""
    if (values := row.get(plural)) is not None:
        if not isinstance(values, list):
            raise ValueError(f"{plural} is {values!r:.60}, expected a list.")
        return values
    numbered = takewhile(row.__contains__, (f"{singular}_{n}" for n in count(1)))
    names = [singular] if singular in row else numbered
    return [row[name] for name in names if row[name] not in (None, "")]


def _choose(
    passages: Sequence[Any], is_useful: Sequence[bool], scores: Sequence[float] | None
) -> Example:
    """Keep the positive and the useful negatives, with their scores."""
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

    Texts are looked up when a batch needs them, so that a passage which is a negative of a thousand
    queries is stored once. Negatives that are known to be none (`KnownPassages`) are dropped.

    A line without positives has those of the judgements; without lines, examples are judged pairs.
    """
    index, relevant = PassageIndex(collection.passages), judged_positives(collection)
    known = KnownPassages(collection, index)
    left = set(() if lines is None else collection.queries)
    for line in map(HardNegatives, relevant) if lines is None else lines:
        if line.query_id not in collection.queries:
            yield {LEFT_OUT: "lines of queries that are not in the split"}
            continue
        left.discard(line.query_id)
        positives = line.positive_ids or relevant.get(line.query_id, ())
        own, others = line.positive_teacher_scores, line.negative_teacher_scores
        if not positives or (with_scores and (own is None or others is None)):
            lacks = "cross-encoder scores" if positives else "positives"
            raise ValueError(
                f"The line of query {line.query_id!r} has no {lacks}: mine with a cross-encoder, or"
                " use objective contrastive; without judgements, mine with --positives answers."
            )
        query = contract.query(collection.queries[line.query_id])
        rows = index.rows([*positives, *line.negative_ids])
        negatives = rows[len(positives) :].tolist()
        ids, contents = known.find(line.query_id, positives)
        found = zip(line.negative_ids, index.content[negatives].tolist(), strict=True)
        useful = [own_id not in ids and content not in contents for own_id, content in found]
        for place, positive in enumerate(rows[: len(positives)].tolist()):
            example = {"query": query, "passages": [positive]}
            if lines is not None:
                scores = [own[place], *(others or ())] if with_scores and own else None
                example |= _choose([positive, *negatives], useful, scores)
            yield example
    yield from [{LEFT_OUT: "queries of the split without a line of negatives"}] * len(left)


def passage_columns(n_negatives: int) -> list[str]:
    """Return the names of the columns of a query's passages."""
    return ["positive", *(f"negative_{n}" for n in range(1, n_negatives + 1))]


class DrawnNegatives(EpochKeys):
    """Draws the negatives of an epoch; a transform of a `datasets.Dataset`.

    The draw depends only on the seed, the epoch and the number of the example, so data loader
    workers, batch sizes and restarts do not change it. Negatives of an example that has fewer than
    `n_negatives` are repeated.

    With `passages`, the examples contain rows of passages, which are written as in `contract`.
    """

    def __init__(
        self,
        n_negatives: int,
        seed: int,
        *,
        contract: EncodingContract,
        passages: Dataset | None = None,
    ):
        super().__init__(seed)
        self.n_negatives, self.contract, self.passages = n_negatives, contract, passages

    def __call__(self, rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Make the columns `query`, `positive`, `negative_1`, ..., and `label` for scores."""
        pairs = zip(rows["passages"], self.keys(rows[ROW_NUMBER]), strict=True)
        places = [self._draw(len(passages), key) for passages, key in pairs]
        chosen = _take(rows["passages"], places)
        if self.passages is not None:
            found = titles_and_texts(self.passages, chosen.ravel())
            texts = [self.contract.passage(title, text) for title, text in found]
            chosen = np.array(texts, dtype=object).reshape(chosen.shape)
        names = passage_columns(self.n_negatives)
        drawn = {"query": rows["query"], **dict(zip(names, chosen.T.tolist(), strict=True))}
        if any(rows["scores"]):
            drawn[LABEL] = _take(rows["scores"], places).tolist()
        return drawn

    def _draw(self, n_passages: int, key: np.ndarray) -> list[int]:
        """Draw the places of the positive, which is the first, and of the negatives."""
        [draws] = uniforms(np.atleast_1d(key), n_passages - 1)
        negatives = np.sort(np.resize(np.argsort(draws), self.n_negatives))
        return [0, *(1 + negatives).tolist()]


def _take(values: Sequence[Sequence[Any]], places: Sequence[Sequence[int]]) -> np.ndarray:
    """Take the places of each row: (B, 1 + negatives) objects."""
    rows = zip(values, places, strict=True)
    return np.array([[own[place] for place in taken] for own, taken in rows], dtype=object)
