"""Files of similarity tasks: a path in, graded pairs or triplets out.

Tables (.csv, .tsv, .jsonl, .json, .parquet, also with .gz) are read as training data is, by the
names of their columns; the STS benchmark's own files, tab-separated without header whatever their
ending, and Ein Dor et al.'s triplets are recognised. Nothing is left out: what does not fit is an
error that names the line.
"""

import difflib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from modeling_condenser.collection.records import read_text
from modeling_condenser.collection.text_files import read_lines
from modeling_condenser.examples.data_files import find_data, read_records

logger = logging.getLogger(__name__)

_STSB_FIELDS = ("genre", "file", "year", "number", "score", "sentence1", "sentence2")
_TABULAR = (".csv", ".tsv", ".txt", "")


class GradedPair(NamedTuple):
    """Two texts, and how similar people find them."""

    sentence1: str
    sentence2: str
    score: float


class Triplet(NamedTuple):
    """A text, one that belongs with it, and one that does not."""

    anchor: str
    positive: str
    negative: str


_EIN_DOR_COLUMNS = dict(zip(Triplet._fields, ("Sentence1", "Sentence2", "Sentence3"), strict=True))


def read_graded_pairs(
    path: str | Path, *, columns: Mapping[str, str] | None = None
) -> list[GradedPair]:
    """Read graded pairs.

    Args:
        path: a table with columns sentence1, sentence2 and score, or a file of the STS benchmark,
            such as sts-test.csv (Cer et al. 2017).
        columns: our name of a column -> the file's, where they differ.

    Returns:
        The pairs in their order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing, a line does not fit, or there is no pair.
    """
    path = _existing(path)
    if not columns and _is_stsb(path):
        rows = _stsb_rows(path)
    else:
        rows = _rows(path, _column_names(GradedPair._fields, columns))
    return _listed(
        path,
        (
            GradedPair(
                read_text(record, "sentence1", place=place),
                read_text(record, "sentence2", place=place),
                _read_score(record["score"], place=place),
            )
            for place, record in rows
        ),
    )


def read_triplets(path: str | Path, *, columns: Mapping[str, str] | None = None) -> list[Triplet]:
    """Read triplets.

    Args:
        path: a table with columns anchor, positive and negative, or with those of Ein Dor et al.
            (2018): Sentence1, Sentence2 and Sentence3.
        columns: our name of a column -> the file's, where they differ.

    Returns:
        The triplets in their order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing, a line does not fit, or there is no triplet.
    """
    path = _existing(path)
    names = _column_names(Triplet._fields, columns)
    return _listed(
        path,
        (
            Triplet(*(read_text(record, name, place=place) for name in Triplet._fields))
            for place, record in _rows(path, names, others=None if columns else _EIN_DOR_COLUMNS)
        ),
    )


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}: mend the path")
    return path


def _listed(path: Path, rows: Iterator[Any]) -> list[Any]:
    listed = list(rows)
    if not listed:
        raise ValueError(f"{path} holds no row, expected at least one: fetch the file again")
    blank = sum(any(isinstance(x, str) and not x.strip() for x in row) for row in listed)
    if blank:
        logger.warning("%s: %d of %d rows have a blank text", path, blank, len(listed))
    return listed


def _column_names(ours: Sequence[str], columns: Mapping[str, str] | None) -> dict[str, str]:
    """Our name -> the file's, of every column."""
    for name in columns or {}:
        if name not in ours:
            nearest = difflib.get_close_matches(name, ours, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"columns maps {name!r}, expected our names {', '.join(ours)} to the file's; did"
                f" you mean {nearest!r}?"
            )
    return {name: (columns or {}).get(name, name) for name in ours}


def _rows(
    path: Path, names: Mapping[str, str], *, others: Mapping[str, str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and fields, by our names, of the rows of a table.

    Args:
        path: the table.
        names: our name -> the file's.
        others: a second choice of names, taken where a row has all of them.
    """
    # Columns are checked row by row below, as not every format has a header.
    for place, record in read_records(find_data(path)):
        chosen = others if others and record.keys() >= set(others.values()) else names
        for ours, theirs in chosen.items():
            if theirs not in record:
                nearest = difflib.get_close_matches(theirs, record, n=1, cutoff=0.0)
                raise ValueError(
                    f"{place} has no column {theirs!r}; its columns are"
                    f" {', '.join(record) or 'none'}: map ours to its, as columns:"
                    f" {{{ours}: {nearest[0] if nearest else '...'}}}"
                )
        yield place, {ours: record[theirs] for ours, theirs in chosen.items()}


def _is_stsb(path: Path) -> bool:
    """Whether a file is laid out as the STS benchmark's own, which have no header."""
    if Path(path.name.removesuffix(".gz")).suffix.lower() not in _TABULAR:
        return False
    _, line = next(read_lines(path), (1, ""))
    fields = line.split("\t")
    return len(fields) >= len(_STSB_FIELDS) and _number(fields[4]) is not None


def _stsb_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of the STS benchmark's own files: quotes are text, and licences may follow."""
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) < len(_STSB_FIELDS):
            raise ValueError(
                f"{path}:{number}: {len(fields)} fields between tabs, expected"
                f" {', '.join(_STSB_FIELDS)}: mend the line"
            )
        yield f"{path}:{number}", dict(zip(_STSB_FIELDS, fields, strict=False))


def _read_score(value: object, *, place: str) -> float:
    score = _number(value)
    if score is None:
        raise ValueError(
            f"{place}: the score is {value!r:.60}, expected a finite number: mend the row"
        )
    return score


def _number(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
