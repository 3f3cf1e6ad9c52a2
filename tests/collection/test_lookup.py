"""Passages by id."""

import pytest
from datasets import Dataset, concatenate_datasets

from modeling_condenser.collection.lookup import find_rows, find_texts


def passages(first: int, last: int) -> Dataset:
    numbers = range(first, last)
    return Dataset.from_dict(
        {
            "_id": [f"p{i}" for i in numbers],
            "title": [f"T{i}" for i in numbers],
            "text": [f"text {i}" for i in numbers],
        }
    )


def test_rows_are_found_across_the_pieces_of_a_table() -> None:
    together = concatenate_datasets([passages(0, 7), passages(7, 20)])
    assert find_rows(together, ["p13", "p0", "p6", "p7", "p13"]) == {
        "p0": 0,
        "p13": 13,
        "p6": 6,
        "p7": 7,
    }
    assert find_texts(together, ["p13", "p2"]) == {"p13": "text 13", "p2": "text 2"}
    assert find_texts(together, ["p13"], column="title") == {"p13": "T13"}


def test_rows_of_a_selection_are_its_own() -> None:
    chosen = passages(0, 10).select([8, 3, 5])
    assert find_rows(chosen, ["p3", "p8"]) == {"p3": 1, "p8": 0}
    assert find_texts(chosen, ["p5"]) == {"p5": "text 5"}


def test_no_ids_find_nothing_and_an_unknown_one_is_named() -> None:
    assert find_rows(passages(0, 3), []) == {}
    with pytest.raises(ValueError, match="1 of 2 passage ids.*'p9'"):
        find_rows(passages(0, 3), ["p9", "p1"])
