"""Training examples on disk."""

import errno
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest

from modeling_condenser.examples import stored_examples
from modeling_condenser.examples.formats import SCHEMAS
from modeling_condenser.examples.stored_examples import store_examples

SCHEMA = SCHEMAS["negatives"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    return tmp_path / "condenser-training"


def rows(n: int) -> list[dict[str, Any]]:
    return [{"query": f"q{i}", "positive": "p", "negatives": ["n"] * (i % 3 + 1)} for i in range(n)]


def test_what_is_stored_comes_back_numbered_and_on_disk(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_examples, "_BATCH_ROWS", 4)
    stored = store_examples(lambda left_out: iter(rows(10)), SCHEMA, identity=["a"], what="data")
    assert stored.table.to_list() == [{**row, "row_number": i} for i, row in enumerate(rows(10))]
    assert stored.n_negatives == (1, 3)
    assert [Path(file["filename"]).parent for file in stored.table.cache_files] == [cache]
    assert len(list(cache.glob("*.arrow"))) == 1


def test_the_same_data_is_read_once_and_other_data_anew(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = []

    def examples(left_out: Counter[str]) -> Iterator[dict[str, Any]]:
        read.append(1)
        left_out["rows with a blank text"] += 2
        left_out["nothing of this"] += 0
        return iter(rows(3))

    for identity in (["a", "b"], ["a", "b"], ["ab"], ["a", "c"]):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            stored = store_examples(examples, SCHEMA, identity=identity, what="data.csv")
        assert len(stored.table) == 3
        assert stored.left_out == {"rows with a blank text": 2}
        assert "data.csv: left out 2 rows with a blank text; 3 examples remain." in caplog.text
    assert len(read) == 3


def test_nothing_to_train_on_is_an_error_that_says_what_was_left_out(cache: Path) -> None:
    def none(left_out: Counter[str]) -> list[dict[str, Any]]:
        left_out["rows with a blank text"] += 7
        return []

    with pytest.raises(
        ValueError, match=r"x.csv gives no training example \(left out: 7 rows with"
    ):
        store_examples(none, SCHEMA, identity=["a"], what="x.csv")
    assert not list(cache.glob("*.arrow*")) or not [
        f for f in cache.iterdir() if f.suffix == ".arrow"
    ]


def test_a_reader_that_fails_midway_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_examples, "_BATCH_ROWS", 2)

    def failing(left_out: Counter[str]) -> Iterator[dict[str, Any]]:
        yield from rows(5)
        raise ValueError("line 6 is malformed")

    with pytest.raises(ValueError, match="line 6"):
        store_examples(failing, SCHEMA, identity=["a"], what="x")
    assert [file.name for file in cache.iterdir() if not file.name.endswith(".lock")] == []
    assert len(store_examples(lambda _: rows(5), SCHEMA, identity=["a"], what="x").table) == 5


def test_half_of_a_character_is_said() -> None:
    broken = [*rows(3), {"query": "so \ud83d", "positive": "p", "negatives": ["n"]}]
    with pytest.raises(ValueError, match=r"x: the text 'so \\ud83d' holds half of a surrogate"):
        store_examples(lambda _: broken, SCHEMA, identity=["a"], what="x")


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pa, "OSFile", full)
    with pytest.raises(
        OSError, match="no space left in .* for the training examples of x.*HF_DATA"
    ):
        store_examples(lambda _: rows(5), SCHEMA, identity=["a"], what="x")
