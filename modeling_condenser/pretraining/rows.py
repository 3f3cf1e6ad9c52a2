"""Bring the data that a trainer is given into one of two forms: stored rows, or a stream of rows.

Both have a column `text`, or `input_ids` where they were tokenized before.
"""

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

import torch
from datasets import Column, Dataset, IterableDataset, concatenate_datasets
from datasets.fingerprint import Hasher

from .data import read_text

logger = logging.getLogger(__name__)

_TOKENS = ("input_ids", "attention_mask")
_TOGETHER = 1000  # rows that are converted together


def as_rows(data: Any, *, name: str) -> Dataset | IterableDataset:
    """Bring data, as for `CondenserTrainer`, into rows with the one column `text` or `input_ids`.

    A torch data set is read into memory. Of a `DatasetDict`, the split train is taken. `name` is
    that of the argument, for errors.
    """
    if isinstance(data, Mapping):
        data = _choose_split(data, name)
    is_stream = isinstance(data, torch.utils.data.IterableDataset | IterableDataset)
    if isinstance(data, torch.utils.data.Dataset) and not is_stream:
        data = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
    if isinstance(data, list | tuple | Column):
        data = _store([row if isinstance(row, Mapping) else {"text": row} for row in data])
    if isinstance(data, Dataset | IterableDataset):
        return _choose_columns(data, name)
    raise ValueError(
        f"{name} is a {type(data).__name__}, expected a list of strings, a data set or stream with "
        "a column `text` or `input_ids`, or a list or torch data set of such rows. Make a stream "
        "of other kinds by IterableDataset.from_generator(FUNCTION)."
    )


def fingerprint_stream(rows: IterableDataset) -> str:
    """Identify a stream by its first rows and the number of its shards."""
    return Hasher.hash((rows.num_shards, list(islice(rows, 3))))


def parts_of_stream(part: Any) -> Iterator[Any]:
    """The parts that a stream of `datasets` is made of, the last step first."""
    yield part
    for inner in (getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", [])):
        if inner is not None:
            yield from parts_of_stream(inner)


def _lacks_seed(part: Any) -> bool:
    """Whether a part of a stream is shuffled in an order that no seed determines."""
    bits = getattr(getattr(part, "generator", None), "bit_generator", None)
    seed = bits and bits.seed_seq.entropy
    return isinstance(seed, int) and seed >= 2**64  # the machine's entropy has 128 bits


def _store(rows: list[Mapping[str, Any]]) -> Dataset:
    """The columns of rows that are read; some rows may lack them, and others differ in type."""
    has_text = any("text" in row for row in rows)
    names = ["text"] if has_text else [n for n in _TOKENS if any(n in row for row in rows)]
    if not names:
        return Dataset.from_list(rows[:1])
    parts = []
    for first in range(0, len(rows), _TOGETHER):
        some = rows[first : first + _TOGETHER]
        columns = {name: [row.get(name) for row in some] for name in names}
        if has_text:
            columns["text"] = [read_text(text) for text in columns["text"]]
        parts.append(Dataset.from_dict(columns))
    return concatenate_datasets(parts)


def _read_streamed(row: Mapping[str, Any]) -> dict[str, str]:
    """The text of a row; none if it has another type, which must not end a long training."""
    try:
        return {"text": read_text(row.get("text"))}
    except ValueError:
        warn_of_type(type(row["text"]).__name__)
        return {"text": ""}


@cache
def warn_of_type(name: str) -> None:
    """Warn once of texts of this type, which are left out of a stream."""
    logger.warning("The stream has rows whose text is a %s: such rows are left out.", name)


def _has_text(row: Mapping[str, str]) -> bool:
    return bool(row["text"].strip())


def _choose_split(splits: Mapping[str, Any], name: str) -> Any:
    names = list(splits)
    if "train" in names or len(names) == 1:
        return splits["train" if "train" in names else names[0]]
    raise ValueError(
        f"{name} has the splits {', '.join(names)}: choose one, such as {name}[{names[0]!r}]."
    )


def _choose_columns(rows: Any, name: str) -> Any:
    """The column of text of a data set or stream, or its tokens."""
    is_stream = isinstance(rows, IterableDataset)
    if is_stream and any(map(_lacks_seed, parts_of_stream(rows._ex_iterable))):
        logger.warning(
            "%s is shuffled without a seed: other processes would read it in another order, and "
            "the training cannot be resumed. Give shuffle a seed.",
            name,
        )
    if isinstance(rows, Dataset) and rows.format["type"] == "custom":
        raise ValueError(f"{name} has a transform, which is not applied: use {name}.map instead.")
    rows = rows.with_format(None)
    columns = rows.column_names
    if is_stream:
        first: Mapping[str, Any] = next(iter(rows), {})
        columns = list(first)
        read_text(first.get("text"))  # else all rows would be left out
    if not columns:
        raise ValueError(f"{name} is empty.")
    if "text" in columns and is_stream:
        # Blank rows, such as every second line of a file, go before the stream is dealt to lanes.
        return rows.map(_read_streamed).select_columns(["text"]).filter(_has_text)
    if "text" in columns:
        return rows.select_columns(["text"])
    if "input_ids" in columns:
        return rows.select_columns([column for column in _TOKENS if column in columns])
    raise ValueError(
        f"{name} has no column 'text' or 'input_ids': its columns are {', '.join(columns)}. Rename "
        f'the one that holds the text: {name}.rename_column(COLUMN, "text").'
    )
