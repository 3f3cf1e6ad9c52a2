"""Load what a recipe trains on, as a data set with the columns that its loss reads."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, List, Value
from transformers import TrainerCallback, TrainerControl, TrainerState

from modeling_condenser.collection.collection import (
    Collection,
    fingerprint_judgements,
    fingerprint_passages,
)
from modeling_condenser.collection.load import load_collection
from modeling_condenser.collection.passages import file_states, store_rows
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.mining.hard_negatives import read_hard_negatives
from modeling_condenser.mining.passage_index import read_rows
from modeling_condenser.pretraining.counter_random import random_keys, uniforms

from .collection_examples import CollectionExamples
from .recipe import FinetuningRecipe
from .rows import LEFT_OUT, Example, example_maker, make_examples, open_rows

logger = logging.getLogger(__name__)

LABEL = "label"
ROW_NUMBER = "row_number"  # of an example in all of its data, before a subset is taken


@dataclass(frozen=True)
class TrainingData:
    """What a recipe trains on; `facts` are for the record.

    The columns of `examples` are `query`, `positive`, `negative_1`, ... and, for distillation,
    `label` (a cross-encoder's scores); or `sentence1`, `sentence2`, `label`, without draws.
    """

    examples: Dataset
    drawn: "DrawnNegatives | None"
    facts: dict[str, Any]


class DrawnNegatives(TrainerCallback):
    """Draws the negatives of an epoch; a transform of a `datasets.Dataset`, and a callback.

    An example may have far more negatives than a batch has room for. Which ones are used depends
    only on the seed, the epoch and the example's number, so that data loader workers, batch sizes
    and restarts do not change it.

    Args:
        n_negatives: how many to draw for each example; one with fewer gives some of them again.
        seed: of the draws.
        read: returns the texts of passages, for examples that name them by row.
    """

    def __init__(
        self, *, n_negatives: int, seed: int, read: Callable[[list[int]], list[str]] | None = None
    ):
        self.n_negatives = n_negatives
        self.seed = seed
        self.read = read
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # with worker processes

    def set_epoch(self, epoch: int) -> None:
        """Draw other negatives from now on."""
        self._epoch.fill_(epoch)

    def on_epoch_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.set_epoch(int(state.epoch or 0))

    def __call__(self, rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Columns `query`, `positive`, `negative_1`, ..., and `label` if there are scores."""
        places = [
            self._draw(len(pool or []), number)
            for pool, number in zip(rows["negatives"], rows[ROW_NUMBER], strict=True)
        ]
        passages = {"positive": rows["positive"]}
        for n in range(self.n_negatives):
            drawn = zip(rows["negatives"], places, strict=True)
            passages[f"negative_{n + 1}"] = [pool[chosen[n]] for pool, chosen in drawn]
        if self.read is not None:
            texts = iter(self.read([row for column in passages.values() for row in column]))
            passages = {name: list(islice(texts, len(column))) for name, column in passages.items()}
        columns = {"query": rows["query"], **passages}
        if any(scores is not None for scores in rows["teacher_scores"]):
            columns[LABEL] = [
                [scores[0], *(scores[1 + i] for i in chosen)]
                for scores, chosen in zip(rows["teacher_scores"], places, strict=True)
            ]
        return columns

    def _draw(self, n: int, number: int) -> list[int]:
        """Places of the negatives to use of an example's n."""
        if self.n_negatives == 0:
            return []
        draws = uniforms(random_keys(self.seed, int(self._epoch), number), n)[0]
        return np.sort(np.resize(np.argsort(draws), self.n_negatives)).tolist()


def load_training_data(
    recipe: FinetuningRecipe, contract: EncodingContract, *, seed: int
) -> TrainingData:
    """Load what a recipe trains on; the seed is that of the drawn negatives.

    Raises:
        FileNotFoundError: a file or collection does not exist.
        ValueError: the data does not fit.
    """
    facts: dict[str, Any] = {}
    collection = read = None
    if recipe.collection is not None:
        collection = load_collection(recipe.collection, split=recipe.split or "train")
        facts["passages_fingerprint"] = fingerprint_passages(collection.passages)
        facts["judgements_fingerprint"] = fingerprint_judgements(collection)
        read = partial(_read_passages, collection.passages, contract)
    examples, identity = _find_examples(recipe, contract, collection)
    what = str(recipe.data or recipe.negatives or recipe.collection)
    features = _features(recipe, Value("int64" if collection is not None else "string"))
    stored = _store(examples, features, identity=[*identity, *facts.values()])
    table, left_out = _drop_left_out(stored, what)
    n_negatives = _n_negatives(recipe, table, what)
    table = take_subset(table, recipe.train_size, seed=recipe.subset_seed, what=what)
    facts |= {"n_examples": len(table), "examples_sha256": fingerprint_rows(table)}
    if left_out:
        facts["left_out"] = left_out
    if recipe.objective == "mse_cosine":
        return TrainingData(table.remove_columns(ROW_NUMBER), None, facts)
    if n_negatives:
        facts["n_negatives"] = n_negatives
    drawn = DrawnNegatives(n_negatives=n_negatives, seed=seed, read=read)
    return TrainingData(table.with_transform(drawn), drawn, facts)


def _read_passages(passages: Dataset, contract: EncodingContract, rows: Sequence[int]) -> list[str]:
    return [contract.passage(title, text) for title, text in read_rows(passages, rows)]


def _find_examples(
    recipe: FinetuningRecipe, contract: EncodingContract, collection: Collection | None
) -> tuple[Callable[[], Iterable[Example]], list[str]]:
    """A function that starts to read the examples, and what they depend on."""
    texts = (contract.title_separator, contract.query_prompt, contract.passage_prompt)
    settings = (recipe.format, recipe.columns, recipe.first_rows, recipe.score_range)
    identity = [repr((*texts, *settings, recipe.is_distilled, recipe.n_negatives == 0))]
    named = None if collection is None else CollectionExamples(collection, contract)
    if recipe.data is not None:
        make = named.triple if named else example_maker(recipe, contract)
        rows, state = open_rows(recipe)
        rows = islice(rows, recipe.first_rows)
        return lambda: make_examples(rows, recipe, make), [*identity, *state]
    assert named is not None
    if recipe.negatives is not None:
        lines = read_hard_negatives(Path(recipe.negatives))
        is_distilled = recipe.is_distilled
        state = file_states(filter(Path.is_file, [Path(recipe.negatives)]))
        return lambda: named.mined(lines, with_scores=is_distilled), [*identity, *state]
    return named.judged, identity


def _features(recipe: FinetuningRecipe, passage: Value) -> dict[str, Any]:
    """The columns of the stored examples, in which a passage is a text or the row of one."""
    text, scores = Value("string"), List(Value("float32"))
    if recipe.objective == "mse_cosine":
        return {"sentence1": text, "sentence2": text, LABEL: Value("float64")}
    columns = {"query": text, "positive": passage, "negatives": List(passage)}
    return {**columns, "teacher_scores": scores}


def _store(
    examples: Callable[[], Iterable[Example]], features: dict[str, Any], *, identity: list[str]
) -> Dataset:
    """Store examples with their numbers, memory-mapped, or open those stored before."""
    features = {**features, LEFT_OUT: Value("string"), ROW_NUMBER: Value("int64")}

    def numbered() -> Iterator[Example]:
        for number, example in enumerate(examples()):
            yield {name: example.get(name) for name in features} | {ROW_NUMBER: number}

    return store_rows(numbered, features, identity=identity)


def fingerprint_rows(table: Dataset) -> str:
    """Fingerprint the rows of a data set, in their order: 64 hexadecimal digits."""
    digest = hashlib.sha256(b"condenser rows 1")
    for batch in table.with_format("arrow").iter(batch_size=8192):
        for part in batch.combine_chunks().to_batches():
            digest.update(part.serialize())
    return digest.hexdigest()


def _drop_left_out(table: Dataset, what: str) -> tuple[Dataset, dict[str, int]]:
    """The rows that are examples, and reason -> number of the others."""
    reasons = table.data.column(LEFT_OUT)
    counted = [(entry["values"], entry["counts"]) for entry in reasons.value_counts().to_pylist()]
    left_out = {reason: count for reason, count in counted if reason is not None}
    if left_out:
        table = table.select(np.flatnonzero(pc.is_null(reasons).to_numpy()))
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
        logger.warning("%s: left out %s; %d examples remain.", what, counts, len(table))
    if not len(table):
        raise ValueError(f"{what} contains no training example (left out: {left_out}).")
    return table.remove_columns(LEFT_OUT), left_out


def _n_negatives(recipe: FinetuningRecipe, table: Dataset, what: str) -> int:
    """How many negatives an example is trained with."""
    if recipe.n_negatives is not None or "negatives" not in table.column_names:
        return recipe.n_negatives or 0
    # Rows that were left out have null, which min_max skips.
    lengths = pc.min_max(pc.list_value_length(table.data.column("negatives"))).as_py()
    least, most = lengths["min"] or 0, lengths["max"] or 0
    if most and (recipe.format == "dpr" or recipe.objective == "triplet"):
        return 1
    if least != most:
        raise ValueError(
            f"The examples of {what} have from {least} to {most} negatives: set n_negatives, how "
            "many of them to train with (they are drawn anew each epoch)."
        )
    return most


def take_subset(examples: Dataset, train_size: int | None, *, seed: int, what: str) -> Dataset:
    """Choose training examples at random.

    The papers compare encoders at 500, 1K and 10K labels (Condenser, Tables 1, 2, 3 and 5). The
    subsets of one seed are nested: those of 10K contain those of 1K, which contain those of 500.
    """
    if train_size is None:
        return examples
    if train_size > len(examples):
        raise ValueError(
            f"train_size is {train_size}, but {what} has {len(examples)} training examples: "
            f"choose a number from 1 to {len(examples)}."
        )
    chosen = np.random.default_rng(seed).permutation(len(examples))[:train_size]
    return examples.select(np.sort(chosen))
