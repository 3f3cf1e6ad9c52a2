"""Training data: a recipe in; a data set whose columns are what its objective's loss reads out."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.fingerprint import (
    fingerprint_judgements,
    fingerprint_passages,
    fingerprint_rows,
)
from modeling_condenser.collection.load import load_collection
from modeling_condenser.examples.data_files import DataSource, find_data, read_records
from modeling_condenser.examples.formats import SCHEMAS, ExampleReader
from modeling_condenser.examples.mined import SCORED_SCHEMA, mined_examples, read_negatives
from modeling_condenser.examples.pairs import ROWS_SCHEMA, judged_pairs, triple_examples
from modeling_condenser.examples.passage_rows import PassageTexts
from modeling_condenser.examples.published_formats import read_dpr, read_stsb
from modeling_condenser.examples.stored_examples import Example, StoredExamples, store_examples
from modeling_condenser.examples.subsets import take_subset
from modeling_condenser.repository.contract import EncodingContract

from .drawing import DrawnExamples
from .recipe import FinetuningRecipe

_DEFAULT_SPLIT = "train"
_STSB_RANGE = (0.0, 5.0)


@dataclass(frozen=True)
class TrainingData:
    """What a run trains on.

    Attributes:
        examples: a row an example; columns `query`, `positive`, `negative_1`, ... and, for
            distillation, `label` (the teacher's scores); or `sentence1`, `sentence2`, `label`.
        drawn: draws the negatives; to be told the epoch. None where nothing is drawn.
        facts: for the run's record.
    """

    examples: Dataset
    drawn: DrawnExamples | None
    facts: dict[str, Any]


def load_training_data(
    recipe: FinetuningRecipe, contract: EncodingContract, *, seed: int
) -> TrainingData:
    """Load what a recipe trains on.

    Args:
        recipe: checked.
        contract: how texts are encoded: prompts, and how title and text become one.
        seed: of the draws of negatives.

    Raises:
        FileNotFoundError: a file or collection does not exist.
        ValueError: data that does not fit; the message names file and line.
    """
    collection = None
    if recipe.collection is not None:
        split = recipe.split or _DEFAULT_SPLIT
        collection = load_collection(recipe.collection, split=split)
    texts = PassageTexts(collection.passages, contract) if collection else None
    if recipe.data is not None:
        stored = _stored_data(recipe, contract, collection)
    elif recipe.negatives is not None:
        assert collection is not None
        stored = _stored_mined(recipe, contract, collection)
    else:
        assert collection is not None
        stored = StoredExamples(judged_pairs(collection, contract), {}, (0, 0))
    what = str(recipe.data or recipe.collection)
    n_negatives = _n_negatives(recipe, stored.n_negatives, what)
    table = take_subset(stored.table, recipe.train_size, seed=recipe.subset_seed, what=what)
    facts: dict[str, Any] = {"n_examples": len(table), "examples_sha256": fingerprint_rows(table)}
    if collection is not None:
        facts["passages_fingerprint"] = fingerprint_passages(collection.passages)
        facts["judgements_fingerprint"] = fingerprint_judgements(collection)
    if stored.left_out:
        facts["left_out"] = stored.left_out
    if texts is None and stored.n_negatives == (0, 0):
        return TrainingData(table, None, facts)
    if n_negatives:
        facts["n_negatives"] = n_negatives
    drawn = DrawnExamples(n_negatives=n_negatives, seed=seed, texts=texts)
    return TrainingData(table.with_transform(drawn), drawn, facts)


def _n_negatives(recipe: FinetuningRecipe, held: tuple[int, int], what: str) -> int:
    """How many negatives a row is trained with."""
    least, most = held
    if recipe.n_negatives is not None:
        return recipe.n_negatives
    if most == 0:
        return 0
    if recipe.format == "dpr" or recipe.objective == "triplet":
        return 1
    if least != most:
        raise ValueError(
            f"The rows of {what} have from {least} to {most} negatives: set n_negatives, how many "
            "of them to train with (they are drawn anew each epoch)."
        )
    return most


def _stored_data(
    recipe: FinetuningRecipe, contract: EncodingContract, collection: Collection | None
) -> StoredExamples:
    """Files or a Hub data set as examples."""
    source = find_data(
        recipe.data,
        name=recipe.data_name,
        revision=recipe.data_revision,
        split=recipe.split if collection is None else None,
    )
    is_list = isinstance(recipe.columns, list | tuple)
    low, high = recipe.score_range or (_STSB_RANGE if recipe.format == "stsb" else (0.0, 1.0))
    names = {} if is_list else dict(recipe.columns or {})

    def examples(left_out: Counter[str]) -> Iterable[Example]:
        reader = ExampleReader(
            str(recipe.format), contract, names, (float(low), float(high)), left_out
        )
        return _read(recipe, source, reader, collection)

    settings = (
        recipe.format,
        recipe.columns,
        recipe.first_rows,
        low,
        high,
        recipe.n_negatives == 0,
    )
    identity = [*source.state, repr(settings), repr(_texts_settings(contract))]
    if collection is not None:
        identity += _collection_state(collection)
    schema = ROWS_SCHEMA if recipe.format == "id_triples" else SCHEMAS[str(recipe.format)]
    return store_examples(examples, schema, identity=identity, what=source.name)


def _read(
    recipe: FinetuningRecipe,
    source: DataSource,
    reader: ExampleReader,
    collection: Collection | None,
) -> Iterator[Example]:
    if recipe.format == "stsb":
        return islice(read_stsb(source, reader), recipe.first_rows)
    is_dpr = recipe.format == "dpr"
    columns = recipe.columns if isinstance(recipe.columns, list | tuple) else None
    needed = (lambda file, header: None) if is_dpr else reader.check_header
    records = islice(read_records(source, columns=columns, needed=needed), recipe.first_rows)
    if is_dpr:
        return read_dpr(records, reader, least=0 if recipe.n_negatives == 0 else 1)
    if collection is not None:
        return triple_examples(
            collection, records, reader.columns, reader.contract, reader.left_out
        )
    return reader.read(records)


def _stored_mined(
    recipe: FinetuningRecipe, contract: EncodingContract, collection: Collection
) -> StoredExamples:
    """A collection's judged pairs with their hard negatives."""
    file = Path(str(recipe.negatives))
    scored = recipe.is_distilled

    def examples(left_out: Counter[str]) -> Iterable[Example]:
        return mined_examples(collection, read_negatives(file), contract, left_out, scored=scored)

    state = DataSource((file,), None, str(file)).state if file.is_file() else []
    identity = [*state, *_collection_state(collection), repr(_texts_settings(contract))]
    schema = SCORED_SCHEMA if scored else ROWS_SCHEMA
    return store_examples(examples, schema, identity=identity, what=str(file))


def _texts_settings(contract: EncodingContract) -> tuple[str, ...]:
    """What of a contract is in the texts of the examples."""
    settings = asdict(contract)
    return tuple(settings[n] for n in ("title_separator", "query_prompt", "passage_prompt"))


def _collection_state(collection: Collection) -> list[str]:
    """What identifies a split, and which rows its passages have."""
    files = [Path(file["filename"]) for file in collection.passages.cache_files]
    return [
        fingerprint_judgements(collection),
        str(collection.passages._fingerprint),
        *DataSource(tuple(files), None, "").state,
    ]
