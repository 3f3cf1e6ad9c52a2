"""Store training examples as a memory-mapped table, and choose a subset of them."""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value
from datasets.exceptions import DatasetGenerationError

logger = logging.getLogger(__name__)

Example = dict[str, Any]

ROW_NUMBER = "row_number"  # of an example in all of its data, before a subset is taken
LEFT_OUT = "left_out"  # why a row is not an example; null for an example

_TEXT, _ROW = Value("string"), Value("int64")
_SCORES = {"teacher_scores": List(Value("float32"))}
GRADED_PAIRS = {"sentence1": _TEXT, "sentence2": _TEXT, "label": Value("float64")}
TEXTS = {"query": _TEXT, "positive": _TEXT, "negatives": List(_TEXT), **_SCORES}
PASSAGE_ROWS = {"query": _TEXT, "positive": _ROW, "negatives": List(_ROW), **_SCORES}

# Reasons why a row is left out.
BLANK = "rows with a blank text"
NO_NEGATIVE = "rows without a negative"


@dataclass(frozen=True)
class StoredExamples:
    """Training examples.

    Attributes:
        table: the examples, memory-mapped; N rows, with `ROW_NUMBER`.
        left_out: reason -> number of rows that were left out for it.
        n_negatives: smallest and largest number of negatives of an example; (0, 0) without any.
    """

    table: Dataset
    left_out: dict[str, int]
    n_negatives: tuple[int, int]


def store_examples(
    examples: Callable[[], Iterable[Example]],
    features: dict[str, Any],
    *,
    identity: Sequence[str],
    what: str,
) -> StoredExamples:
    """Store examples in the cache of `datasets`, or open the stored ones of the same data.

    Args:
        examples: starts to read them. A row that is no example has the reason in `LEFT_OUT`.
        features: `GRADED_PAIRS`, `TEXTS` or `PASSAGE_ROWS`; an example may lack some.
        identity: what the examples depend on: states of files, settings.
        what: the data, for error messages.

    Raises:
        ValueError: there is no example, or `examples` raises it.
    """
    digest = hashlib.sha256("\0".join([str(features), *identity]).encode()).hexdigest()
    features = {**features, LEFT_OUT: Value("string"), ROW_NUMBER: Value("int64")}

    def numbered() -> Iterator[Example]:
        for number, example in enumerate(examples()):
            yield {name: example.get(name) for name in features} | {ROW_NUMBER: number}

    try:
        table = Dataset.from_generator(
            numbered, features=Features(features), fingerprint=f"condenser-{digest[:32]}"
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None
        raise
    left_out = Counter(r for r in table.data.column(LEFT_OUT).to_pylist() if r is not None)
    if left_out:
        table = table.select(np.flatnonzero(pc.is_null(table.data.column(LEFT_OUT)).to_numpy()))
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
        logger.warning("%s: left out %s; %d examples remain.", what, counts, len(table))
    if not len(table):
        raise ValueError(f"{what} contains no training example (left out: {dict(left_out)}).")
    return StoredExamples(table.remove_columns(LEFT_OUT), dict(left_out), _n_negatives(table))


def _n_negatives(table: Dataset) -> tuple[int, int]:
    if "negatives" not in table.column_names:
        return (0, 0)
    # Rows that were left out have null, which min_max skips.
    lengths = pc.min_max(pc.list_value_length(table.data.column("negatives"))).as_py()
    return (lengths["min"] or 0, lengths["max"] or 0)


def take_subset(examples: Dataset, train_size: int | None, *, seed: int, what: str) -> Dataset:
    """Choose training examples at random.

    The papers compare encoders at 500, 1K and 10K labels (Condenser, Tables 1, 2, 3 and 5). The
    subsets of one seed are nested: those of 10K contain those of 1K, which contain those of 500.

    Args:
        examples: N rows.
        train_size: how many to choose; None for all.
        seed: decides which.
        what: the data, for error messages.

    Returns:
        The chosen rows in their original order.

    Raises:
        ValueError: there are fewer rows than `train_size`.
    """
    if train_size is None:
        return examples
    if not 0 < train_size <= len(examples):
        raise ValueError(
            f"train_size is {train_size}, but {what} has {len(examples)} training examples: "
            f"choose a number from 1 to {len(examples)}."
        )
    chosen = np.random.default_rng(seed).permutation(len(examples))[:train_size]
    return examples.select(np.sort(chosen))
