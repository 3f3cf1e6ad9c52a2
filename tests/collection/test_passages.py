"""Storing passages, and finding them by id."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from modeling_condenser.collection import passages
from modeling_condenser.collection.passages import (
    Row,
    find_rows,
    find_texts,
    store_passages,
)


def rows(first: int, last: int) -> Iterator[Row]:
    return ((f"p{i}", f"title {i}" if i % 2 else "", f"text {i}") for i in range(first, last))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("one")
    return path


def test_rows_come_back_in_order_and_memory_mapped(file: Path, passage_cache: Path) -> None:
    stored = store_passages(rows(0, 2500), files=[file], name="corpus")
    assert len(stored) == 2500
    for i in (0, 999, 1000, 2499):
        title = f"title {i}" if i % 2 else ""
        assert stored[i] == {"_id": f"p{i}", "title": title, "text": f"text {i}"}
    assert {str(feature.dtype) for feature in stored.features.values()} == {"string"}
    assert Path(stored.cache_files[0]["filename"]).is_relative_to(passage_cache)


def test_the_same_files_are_read_once_and_changed_ones_again(file: Path) -> None:
    def store(n: int) -> int:
        return len(store_passages(rows(0, n), files=[file], name="corpus"))

    assert store(1) == store(2) == 1
    file.write_text("more")
    assert store(2) == 2


def test_repeated_ids_are_refused(file: Path) -> None:
    twice = [*rows(0, 1500), *rows(3, 5)]
    with pytest.raises(ValueError, match="d: 2 ids occur more than once, the first .* passage 4;"):
        store_passages(iter(twice), files=[file], name="d")


def test_ids_are_found_in_any_batch(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passages, "_BATCH_ROWS", 700)
    stored = store_passages(rows(0, 3000), files=[file], name="corpus")
    numbers = random.Random(0).sample(range(3000), 500)
    found = find_rows(stored, [f"p{i}" for i in numbers * 2])
    assert list(found.items()) == [(f"p{i}", i) for i in sorted(numbers)]
    assert find_texts(stored, ["p13", "p2"]) == {"p13": "text 13", "p2": "text 2"}
    assert find_texts(stored, ["p13"], column="title") == {"p13": "title 13"}
    assert find_rows(stored, []) == find_texts(stored, []) == {}
    with pytest.raises(ValueError, match="1 of 2 passage ids .* such as 'p3000'"):
        find_rows(stored, ["p3000", "p1"])
