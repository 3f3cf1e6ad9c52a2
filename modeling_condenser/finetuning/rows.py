"""Read rows of labelled data from files or a Hub data set.

Values stay as they are written: libraries that guess types would turn a text such as "None" or
"1984" into something else.
"""

import csv
import glob
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import load_dataset

from modeling_condenser.collection.passages import file_states
from modeling_condenser.collection.text_files import open_text, plain_name, read_lines

from .recipe import FinetuningRecipe

Fields = Mapping[str, Any]

_STSB_COLUMNS = ("genre", "file", "year", "number", "score", "sentence1", "sentence2")
_JSON_CHUNK = 1 << 22  # characters


def open_rows(recipe: FinetuningRecipe) -> tuple[Iterable[Fields], list[str]]:
    """The rows of the files or the Hub data set that a recipe names; and what identifies them."""
    patterns = [recipe.data] if isinstance(recipe.data, str) else recipe.data
    found = {pattern: _local_files(pattern) for pattern in map(str, patterns)}
    if all(found.values()):
        files = list(chain.from_iterable(found.values()))
        return chain.from_iterable(_read_file(file, recipe) for file in files), file_states(files)
    name = next(pattern for pattern, files in found.items() if not files)
    split = "train" if recipe.format == "id_triples" else recipe.split or "train"
    try:
        table = load_dataset(name, recipe.data_name, split=split, revision=recipe.data_revision)
    except (OSError, ValueError) as error:  # OSError by the Hub; ValueError for a wrong split
        raise FileNotFoundError(
            f"There is no local file {name!r}, and the Hub data set of that name could not be "
            f"loaded ({str(error).splitlines()[0]}): correct data, data_name or split."
        ) from error
    return table, [f"{name}: {table._fingerprint}"]


def _local_files(pattern: str) -> list[Path]:
    names = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))
    return [Path(name) for name in names if Path(name).is_file()]


def _read_file(file: Path, recipe: FinetuningRecipe) -> Iterator[Fields]:
    """The rows of a file, which is neither copied nor read as a whole."""
    suffix = Path(plain_name(file)).suffix.lower()
    try:
        if recipe.format == "stsb":  # lines of seven fields, and in some lines licences
            for _, line in read_lines(file):
                yield dict(zip(_STSB_COLUMNS, line.split("\t"), strict=False))
        elif suffix in (".tsv", ".csv"):
            yield from _read_table(file, recipe.columns, has_tabs=suffix == ".tsv")
        elif suffix in (".json", ".jsonl"):
            yield from _read_json(file)
        elif suffix == ".parquet":
            yield from load_dataset("parquet", data_files=str(file), split="train", streaming=True)
        else:
            raise ValueError("expected a file of type .jsonl, .json, .tsv, .csv or .parquet.")
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _read_table(file: Path, columns: Any, *, has_tabs: bool) -> Iterator[Fields]:
    """The rows of a table, in which only commas have quotes around them."""
    csv.field_size_limit(2**31 - 1)
    with open_text(file, newline="\n" if has_tabs else "") as stream:
        lines = (line.rstrip("\r\n").split("\t") for line in stream)
        rows = filter(any, lines if has_tabs else csv.reader(stream))
        names = list(columns) if isinstance(columns, list | tuple) else next(rows, [])
        for fields in rows:
            if len(fields) != len(names):
                raise ValueError(f"a row has {len(fields)} fields, expected {', '.join(names)}.")
            yield dict(zip(names, fields, strict=True))


def _read_json(file: Path) -> Iterator[Fields]:
    """The objects of a file of lines, or of one array."""
    with open_text(file) as stream:
        text, place = stream.read(_JSON_CHUNK).lstrip(), 1
        if not text.startswith("["):
            yield from (json.loads(line) for _, line in read_lines(file))
            return
        # Read one by one, because DPR's file for Natural Questions has 8 GB.
        decoder, separators = json.JSONDecoder(), re.compile(r"[,\s]*")
        while True:
            place = separators.match(text, place).end()  # type: ignore[union-attr]
            try:
                row, place = decoder.raw_decode(text, place)
                yield row
            except json.JSONDecodeError:
                if text.startswith("]", place):
                    return
                more = stream.read(_JSON_CHUNK)
                if not more:
                    raise
                text, place = text[place:] + more, 0
