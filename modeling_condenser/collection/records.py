"""Reads checked fields from one record (a line of JSON or a row of a table).

Whole numbers become ids as text, since many Hub data sets have them. Dates and floats are refused:
their text form could differ between passages and judgements.
"""

from collections.abc import Mapping
from typing import Any


def read_id(record: Mapping[str, Any], key: str, *, place: str) -> str:
    """Read an id.

    Args:
        record: one line or row.
        key: name of the field.
        place: where the record stands, for errors.

    Raises:
        ValueError: the field is missing, empty, or neither text nor a whole number.
    """
    value = record.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value:
        return value
    raise _error(record, key, place=place, expected="an id (text or a whole number)")


def read_text(record: Mapping[str, Any], key: str, *, place: str) -> str:
    """Read a text, which may be empty.

    Raises:
        ValueError: the field is missing or not text.
    """
    value = record.get(key)
    if not isinstance(value, str):
        raise _error(record, key, place=place, expected="text")
    return value


def read_title(record: Mapping[str, Any], *, place: str) -> str:
    """Read the field `title`; a missing or null title is empty."""
    return "" if record.get("title") is None else read_text(record, "title", place=place)


def read_grade(value: object, *, place: str) -> int:
    """Read the grade of a judgement, a whole number; 1.0 and "1" count as 1."""
    try:
        grade = float(value)  # type: ignore[arg-type]
        if grade.is_integer():
            return int(grade)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{place}: the grade is {value!r}, expected a whole number.")


def read_answers(value: object, *, place: str) -> tuple[str, ...]:
    """Read the answers to a question, a list of texts that are not blank."""
    if isinstance(value, list) and all(isinstance(a, str) and a.strip() for a in value):
        return tuple(value)
    raise ValueError(
        f"{place}: the answers are {value!r:.80}, expected a list such as ['Oslo', 'Christiania']"
        " without blank texts, which DPR's matching would find in every passage."
    )


def _error(record: Mapping[str, Any], key: str, *, place: str, expected: str) -> ValueError:
    value = record.get(key)
    return ValueError(
        f"{place}: {key!r} is {value!r:.80} ({type(value).__name__}), expected {expected}; the"
        f" record has the fields {', '.join(record) or '(none)'}."
    )
