"""Load what a recipe trains on, as a data set with the columns that its loss reads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.fingerprint import (
    fingerprint_judgements,
    fingerprint_passages,
    fingerprint_rows,
)
from modeling_condenser.collection.load import load_collection
from modeling_condenser.examples.collection_examples import (
    PassageTexts,
    judged_examples,
    mined_examples,
    read_mined,
    relevant_ids,
    triple_examples,
)
from modeling_condenser.examples.data_files import DataSource, find_data, read_records
from modeling_condenser.examples.formats import RowReader, read_stsb
from modeling_condenser.examples.stored_examples import (
    GRADED_PAIRS,
    PASSAGE_ROWS,
    ROW_NUMBER,
    TEXTS,
    Example,
    StoredExamples,
    store_examples,
    take_subset,
)
from modeling_condenser.pretraining.counter_random import random_keys, uniforms
from modeling_condenser.repository.contract import EncodingContract

from .recipe import FinetuningRecipe

LABEL = "label"
_STSB_RANGE = (0.0, 5.0)


@dataclass(frozen=True)
class TrainingData:
    """What a recipe trains on.

    Attributes:
        examples: one row an example; columns `query`, `positive`, `negative_1`, ... and, for
            distillation, `label` (a cross-encoder's scores); or `sentence1`, `sentence2`, `label`.
        drawn: draws the negatives for an epoch; None for graded pairs.
        facts: for the record of the training.
    """

    examples: Dataset
    drawn: "DrawnNegatives | None"
    facts: dict[str, Any]


class DrawnNegatives:
    """Draws the negatives of an epoch; a transform of a `datasets.Dataset`.

    An example may have far more negatives than a batch has room for. Which ones are used depends
    only on the seed, the epoch and the example's number, so that data loader workers, batch sizes
    and restarts do not change it.

    Args:
        n_negatives: how many to draw for each example; one with fewer gives some of them again.
        seed: of the draws.
        texts: looks up passages, for examples that name them by row.
    """

    def __init__(self, *, n_negatives: int, seed: int, texts: PassageTexts | None = None):
        self.n_negatives = n_negatives
        self.seed = seed
        self.texts = texts
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # with worker processes

    def set_epoch(self, epoch: int) -> None:
        """Draw other negatives from now on."""
        self._epoch.fill_(epoch)

    def __call__(self, rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Return columns `query`, `positive`, `negative_1`, ..., and `label` if there are scores.

        Args:
            rows: B stored examples.
        """
        pools = [pool or [] for pool in rows["negatives"]]
        places = [
            self._draw(len(pool), number)
            for pool, number in zip(pools, rows[ROW_NUMBER], strict=True)
        ]
        drawn = [[pool[i] for i in chosen] for pool, chosen in zip(pools, places, strict=True)]
        passages = [rows["positive"], *([row[n] for row in drawn] for n in range(self.n_negatives))]
        if self.texts is not None:
            texts = self.texts([row for column in passages for row in column])
            size = len(rows["query"])
            passages = [texts[i : i + size] for i in range(0, len(texts), size)]
        names = ["positive", *(f"negative_{n + 1}" for n in range(self.n_negatives))]
        columns = {"query": rows["query"], **dict(zip(names, passages, strict=True))}
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
        order = np.argsort(draws, kind="stable").tolist()
        if n >= self.n_negatives:
            return sorted(order[: self.n_negatives])
        return [order[i % n] for i in range(self.n_negatives)]


def load_training_data(
    recipe: FinetuningRecipe, contract: EncodingContract, *, seed: int
) -> TrainingData:
    """Load what a recipe trains on.

    Args:
        recipe: checked.
        contract: gives the prompts and the title separator.
        seed: of the draws of negatives.

    Raises:
        FileNotFoundError: a file or collection does not exist.
        ValueError: the data does not fit; the message names file and line.
    """
    collection = None
    if recipe.collection is not None:
        collection = load_collection(recipe.collection, split=recipe.split or "train")
    if recipe.data is not None:
        stored = _store_data(recipe, contract, collection)
    else:
        assert collection is not None
        stored = _store_judged(recipe, contract, collection)
    what = str(recipe.data or recipe.collection)
    table = take_subset(stored.table, recipe.train_size, seed=recipe.subset_seed, what=what)
    facts: dict[str, Any] = {"n_examples": len(table), "examples_sha256": fingerprint_rows(table)}
    texts = None
    if collection is not None:
        texts = PassageTexts(collection.passages, contract)
        facts["passages_fingerprint"] = fingerprint_passages(collection.passages)
        facts["judgements_fingerprint"] = fingerprint_judgements(collection)
    if stored.left_out:
        facts["left_out"] = stored.left_out
    if recipe.objective == "mse_cosine":
        return TrainingData(table.remove_columns(ROW_NUMBER), None, facts)
    n_negatives = _n_negatives(recipe, stored.n_negatives, what)
    if n_negatives:
        facts["n_negatives"] = n_negatives
    drawn = DrawnNegatives(n_negatives=n_negatives, seed=seed, texts=texts)
    return TrainingData(table.with_transform(drawn), drawn, facts)


def _n_negatives(recipe: FinetuningRecipe, held: tuple[int, int], what: str) -> int:
    """How many negatives an example is trained with."""
    least, most = held
    if recipe.n_negatives is not None:
        return recipe.n_negatives
    if most == 0:
        return 0
    if recipe.format == "dpr" or recipe.objective == "triplet":
        return 1
    if least != most:
        raise ValueError(
            f"The examples of {what} have from {least} to {most} negatives: set n_negatives, how "
            "many of them to train with (they are drawn anew each epoch)."
        )
    return most


def _store_data(
    recipe: FinetuningRecipe, contract: EncodingContract, collection: Collection | None
) -> StoredExamples:
    """Examples of the recipe's own data; a collection has the texts of triples of ids."""
    source = find_data(
        recipe.data,
        name=recipe.data_name,
        revision=recipe.data_revision,
        split=None if collection is not None else recipe.split,
    )
    is_list = isinstance(recipe.columns, list | tuple)
    names = {} if is_list else dict(recipe.columns or {})
    low, high = recipe.score_range or (_STSB_RANGE if recipe.format == "stsb" else (0.0, 1.0))
    reader = RowReader(
        str(recipe.format),
        contract,
        names,
        (float(low), float(high)),
        keep_without_negatives=recipe.n_negatives == 0,
    )

    def examples() -> Iterator[Example]:
        columns = recipe.columns if is_list else None
        is_stsb = recipe.format == "stsb"
        records = read_stsb(source) if is_stsb else read_records(source, columns=columns)
        records = islice(records, recipe.first_rows)
        if collection is not None:
            return triple_examples(collection, records, names, contract)
        return reader.read(records)

    features = TEXTS if collection is None else PASSAGE_ROWS
    features = GRADED_PAIRS if recipe.objective == "mse_cosine" else features
    settings = (recipe.format, recipe.columns, recipe.first_rows, low, high)
    identity = [*source.state, repr(settings), *_text_settings(contract)]
    identity.append(repr(reader.keep_without_negatives))
    if collection is not None:
        identity += _collection_state(collection)
    return store_examples(examples, features, identity=identity, what=source.name)


def _store_judged(
    recipe: FinetuningRecipe, contract: EncodingContract, collection: Collection
) -> StoredExamples:
    """Examples of a collection's judgements, with hard negatives if the recipe names a file."""
    file = Path(recipe.negatives) if recipe.negatives is not None else None
    if file is None and not any(relevant_ids(collection, query) for query in collection.queries):
        hint = ", which has answers: train on data of format dpr" if collection.answers else ""
        raise ValueError(
            f"The split of {collection.name} judges no passage relevant{hint}. Expected at least "
            "one pair of a query and a relevant passage."
        )

    def examples() -> Iterable[Example]:
        if file is None:
            return judged_examples(collection, contract)
        lines = read_mined(file)
        return mined_examples(collection, lines, contract, with_scores=recipe.is_distilled)

    identity = [*_collection_state(collection), *_text_settings(contract)]
    identity.append(repr(recipe.is_distilled))
    if file is not None and file.is_file():
        identity += DataSource((file,), None, "").state
    what = recipe.negatives or collection.name
    return store_examples(examples, PASSAGE_ROWS, identity=identity, what=what)


def _text_settings(contract: EncodingContract) -> Sequence[str]:
    """The parts of a contract that the texts of examples depend on."""
    return (contract.title_separator, contract.query_prompt, contract.passage_prompt)


def _collection_state(collection: Collection) -> Sequence[str]:
    """What identifies a split, and the rows of its passages."""
    files = [Path(file["filename"]) for file in collection.passages.cache_files]
    return [
        fingerprint_judgements(collection),
        str(collection.passages._fingerprint),
        *DataSource(tuple(files), None, "").state,
    ]
