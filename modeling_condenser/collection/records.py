"""Fields of one record: what JSON or a table holds in, checked ids, texts, grades and answers out.

An id may be a whole number, as it often is on the Hub; it becomes the string that spells it.
Anything else that is not text is refused and never guessed at: a date or a float would be spelt
otherwise in the judgements.
"""

import difflib
from collections.abc import Mapping
from typing import Any


def read_id(record: Mapping[str, Any], key: str, *, place: str) -> str:
    """The id below a key.

    Args:
        record: what one line or row holds.
        key: name of the field.
        place: file and line, for errors.

    Raises:
        ValueError: it is missing, empty, or neither text nor a whole number.
    """
    value = _value(record, key, place=place)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value:
        return value
    raise ValueError(
        f"{place}: {key!r} is {_describe(value)}, expected an id, a string of at least one"
        " character or a whole number: give each record one"
    )


def read_text(record: Mapping[str, Any], key: str, *, place: str) -> str:
    """The text below a key, which may be empty.

    Raises:
        ValueError: it is missing or not text.
    """
    value = _value(record, key, place=place)
    if not isinstance(value, str):
        raise ValueError(
            f'{place}: {key!r} is {_describe(value)}, expected a string: quote it, or write "" for'
            " none"
        )
    return value


def read_title(record: Mapping[str, Any], *, place: str) -> str:
    """The title, empty where there is none or null.

    Raises:
        ValueError: it is not text.
    """
    return "" if record.get("title") is None else read_text(record, "title", place=place)


def read_grade(value: object, *, place: str) -> int:
    """The grade of a judgement; 1.0 is as good as 1.

    Raises:
        ValueError: it is not a whole number.
    """
    try:
        grade = float(value) if isinstance(value, str | int | float) else float("nan")
    except ValueError:
        grade = float("nan")
    if not grade.is_integer():
        raise ValueError(
            f"{place}: the grade is {_describe(value)}, expected a whole number, above 0 if the"
            " passage is relevant: mend it"
        )
    return int(grade)


def read_answers(value: object, *, place: str) -> tuple[str, ...]:
    """The answer strings of a question.

    Raises:
        ValueError: it is not a list of strings, or one of them is blank, which DPR's matching would
            find in every passage.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise ValueError(
            f"{place}: the answers are {_describe(value)}, expected a list of strings, as"
            " ['Oslo', 'Christiania']: mend them"
        )
    if any(not text.strip() for text in value):
        raise ValueError(
            f"{place}: an answer is blank, expected text: it would be found in every passage; drop"
            " it"
        )
    return tuple(value)


def _value(record: Mapping[str, Any], key: str, *, place: str) -> object:
    if key in record:
        return record[key]
    nearest = difflib.get_close_matches(key, record, n=1, cutoff=0.0)
    hint = f"rename {nearest[0]!r}, or add it" if nearest else "add it"
    raise ValueError(
        f"{place}: {key!r} is missing; there is {', '.join(record) or 'nothing'}: {hint}"
    )


def _describe(value: object) -> str:
    if value is None:
        return "null"
    shown = repr(value)
    return f"{shown[:60]}{'…' if len(shown) > 60 else ''} ({type(value).__name__})"
