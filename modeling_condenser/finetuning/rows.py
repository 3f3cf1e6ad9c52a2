"""Read rows of labelled data from files or a Hub data set; values stay as they are written."""

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import load_dataset

from modeling_condenser.collection.passages import file_states, iterate_rows
from modeling_condenser.collection.text_files import plain_name, read_json, read_lines, read_table

from .recipe import FinetuningRecipe

Fields = Mapping[str, Any]

_STSB_COLUMNS = ("genre", "file", "year", "number", "score", "sentence1", "sentence2")


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


def read_rows(file: Path, columns: Sequence[str] | None = None) -> Iterable[Fields]:
    """The rows of a file, one by one: .jsonl, .json, .tsv, .csv (all also with .gz) or .parquet.

    A .csv file of the STS benchmark (Cer et al. 2017) has tabs, no header, and quotes without a
    meaning. `columns` names those of another table without a header.
    """
    match Path(plain_name(file)).suffix.lower():
        case ".tsv":
            return read_table(file, columns)
        case ".csv":
            _, first = next(read_lines(file), (1, ""))
            if first.count("\t") < len(_STSB_COLUMNS) - 1:
                return read_table(file, columns, delimiter=",", quoted=True)
            lines = (line.split("\t") for _, line in read_lines(file))
            return (dict(zip(_STSB_COLUMNS, fields, strict=False)) for fields in lines)
        case ".json" | ".jsonl":
            return read_json(file)
        case ".parquet":
            batches = pq.ParquetFile(file).iter_batches()
            return chain.from_iterable(batch.to_pylist() for batch in batches)
    raise ValueError(f"{file}: expected a file of type .jsonl, .json, .tsv, .csv or .parquet.")
