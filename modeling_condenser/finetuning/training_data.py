"""Load what a recipe trains on, as a data set with the columns that its loss reads."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
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
from modeling_condenser.collection.passages import file_states, store_rows, titles_and_texts
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.mining.hard_negatives import HardNegatives, read_hard_negatives
from modeling_condenser.pretraining.counter_random import EpochKeys, uniforms

from .examples import (
    LEFT_OUT,
    Example,
    Fields,
    convert_rows,
    make_collection_examples,
    make_text_example,
    open_rows,
)
from .recipe import FinetuningRecipe

logger = logging.getLogger(__name__)

LABEL = "label"
ROW_NUMBER = "row_number"  # of an example in all of its data, before a subset is taken


class TrainingData(NamedTuple):
    """What a recipe trains on, what draws its negatives, and facts for the record.

    The columns of `examples` are `query`, `positive`, `negative_1`, ... and, for distillation,
    `label` (a cross-encoder's scores); or `sentence1`, `sentence2`, `label`.
    """

    examples: Dataset
    drawn: "DrawnNegatives | None"
    facts: dict[str, Any]


class DrawnNegatives(EpochKeys):
    """Draws the negatives of an epoch; a transform of a `datasets.Dataset`.

    An example may have far more negatives than a batch has room for. Which ones are used depends
    only on the seed, the epoch and the example's number, so that data loader workers, batch sizes
    and restarts do not change it. An example with fewer than `n_negatives` gives some again.

    With `passages`, the examples name them by row, and `contract` says how they are written.
    """

    def __init__(
        self,
        n_negatives: int,
        seed: int,
        *,
        contract: EncodingContract | None = None,
        passages: Dataset | None = None,
    ):
        super().__init__(seed)
        self.n_negatives, self.contract, self.passages = n_negatives, contract, passages

    def __call__(self, rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Columns `query`, `positive`, `negative_1`, ..., and `label` if there are scores."""
        pairs = zip(rows["passages"], self.keys(rows[ROW_NUMBER]), strict=True)
        places = [self._draw(len(passages), key) for passages, key in pairs]
        chosen = _take(rows["passages"], places)
        if self.passages is not None and self.contract is not None:
            found = titles_and_texts(self.passages, chosen.ravel())
            texts = [self.contract.passage(title, text) for title, text in found]
            chosen = np.array(texts, dtype=object).reshape(chosen.shape)
        names = ["positive", *(f"negative_{n}" for n in range(1, self.n_negatives + 1))]
        drawn = {"query": rows["query"], **dict(zip(names, chosen.T.tolist(), strict=True))}
        if any(rows["scores"]):
            drawn[LABEL] = _take(rows["scores"], places).tolist()
        return drawn

    def _draw(self, n_passages: int, key: np.ndarray) -> list[int]:
        """Places of an example's positive, which is the first, and of the negatives to use."""
        [draws] = uniforms(np.atleast_1d(key), n_passages - 1)
        negatives = np.sort(np.resize(np.argsort(draws), self.n_negatives))
        return [0, *(1 + negatives).tolist()]


def _take(values: Sequence[Sequence[Any]], places: Sequence[Sequence[int]]) -> np.ndarray:
    """(B, 1 + negatives) objects."""
    rows = zip(values, places, strict=True)
    return np.array([[own[place] for place in taken] for own, taken in rows], dtype=object)


def load_training_data(
    recipe: FinetuningRecipe, contract: EncodingContract, *, seed: int
) -> TrainingData:
    """Load what a recipe trains on; the seed is that of the drawn negatives."""
    collection = None
    facts: dict[str, Any] = {}
    if recipe.collection is not None:
        collection = load_collection(recipe.collection, split=recipe.split or "train")
        facts["passages_fingerprint"] = fingerprint_passages(collection.passages)
        facts["judgements_fingerprint"] = fingerprint_judgements(collection)
    what = str(recipe.data or recipe.negatives or recipe.collection)
    table = _store_examples(recipe, contract, collection, [*facts.values()])
    reasons = table.data.column(LEFT_OUT).to_pandas()
    left_out = reasons.value_counts().to_dict()
    if left_out:
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
    facts |= {"n_negatives": n_negatives, "n_examples": len(table)}
    if recipe.objective == "mse_cosine":
        return TrainingData(table.remove_columns([LEFT_OUT, ROW_NUMBER]), None, facts)
    passages = collection and collection.passages
    drawn = DrawnNegatives(n_negatives, seed, contract=contract, passages=passages)
    return TrainingData(table.with_transform(drawn), drawn, facts)


def _store_examples(
    recipe: FinetuningRecipe,
    contract: EncodingContract,
    collection: Collection | None,
    identity: list[str],
) -> Dataset:
    """Store all examples, memory-mapped, or open those stored before.

    A passage is stored as its text or, for a collection (of this identity), as its row.
    """
    texts = (contract.title_separator, contract.query_prompt, contract.passage_prompt)
    settings = (recipe.format, recipe.columns, recipe.first_rows, recipe.score_range)
    identity.append(repr((*texts, *settings, recipe.is_distilled, recipe.n_negatives == 0)))
    examples: Any = None
    if recipe.data is not None:
        rows, state = open_rows(recipe)
        identity += state
        convert = _as_hard_negatives if collection else partial(make_text_example, recipe, contract)
        examples = convert_rows(islice(rows, recipe.first_rows), recipe, convert)
    elif recipe.negatives is not None:
        file = Path(recipe.negatives)
        identity += file_states([file])
        examples = read_hard_negatives(file)
    if collection is not None:
        with_scores = recipe.is_distilled
        examples = make_collection_examples(collection, contract, examples, with_scores=with_scores)
    text, passage = Value("string"), Value("string" if collection is None else "int64")
    features = {"query": text, "passages": List(passage), "scores": List(Value("float32"))}
    if recipe.objective == "mse_cosine":
        features = {"sentence1": text, "sentence2": text, LABEL: Value("float64")}
    features |= {LEFT_OUT: text, ROW_NUMBER: Value("int64")}

    def numbered() -> Iterator[Example]:
        for number, example in enumerate(examples):
            yield {**dict.fromkeys(features), **example, ROW_NUMBER: number}

    return store_rows(numbered, features, identity=identity)


def _as_hard_negatives(row: Fields) -> HardNegatives:
    """A triple of ids, as in MS MARCO's qidpidtriples.train.full.2.tsv."""
    positive, negative = str(row["positive_id"]), str(row["negative_id"])
    return HardNegatives(str(row["query_id"]), (positive,), (negative,))


def _n_negatives(recipe: FinetuningRecipe, table: Dataset, what: str) -> int:
    """How many negatives an example is trained with."""
    if recipe.n_negatives is not None or "passages" not in table.column_names:
        return recipe.n_negatives or 0
    lengths = pc.list_value_length(table.data.column("passages")).drop_null()
    numbers = [length - 1 for length in lengths.unique().to_pylist()]
    if max(numbers) and (recipe.format == "dpr" or recipe.objective == "triplet"):
        return 1
    if len(numbers) > 1:
        raise ValueError(
            f"The examples of {what} have from {min(numbers)} to {max(numbers)} negatives: set "
            "n_negatives, how many of them to train with (they are drawn anew each epoch)."
        )
    return numbers[0]
