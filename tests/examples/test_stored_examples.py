"""Training examples on disk, and nested subsets of them."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import Dataset

from modeling_condenser.examples.stored_examples import TEXTS, store_examples, take_subset


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)


def rows(n: int) -> list[dict[str, Any]]:
    return [{"query": f"q{i}", "positive": "p", "negatives": ["n"] * (i % 3 + 1)} for i in range(n)]


def test_examples_come_back_numbered_from_disk_with_the_reasons_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = []

    def examples() -> Iterator[dict[str, Any]]:
        read.append(1)
        yield {"left_out": "rows with a blank text"}
        yield from rows(10)

    for identity in (["a", "b"], ["a", "b"], ["ab"]):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            stored = store_examples(examples, TEXTS, identity=identity, what="data.csv")
        assert stored.table.to_list() == [
            {**row, "teacher_scores": None, "row_number": i + 1} for i, row in enumerate(rows(10))
        ]
        assert stored.n_negatives == (1, 3)
        assert stored.left_out == {"rows with a blank text": 1}
        assert "left out 1 rows with a blank text; 10 examples remain" in caplog.text
        files = [Path(file["filename"]) for file in stored.table.cache_files]
        assert files and all(tmp_path in file.parents for file in files)
    assert len(read) == 2  # the second time they are only opened


def test_data_without_an_example_is_an_error_with_the_reasons() -> None:
    nothing = [{"left_out": "rows with a blank text"}] * 7
    with pytest.raises(ValueError, match="x.csv contains no .*'rows with a blank text': 7"):
        store_examples(lambda: nothing, TEXTS, identity=["a"], what="x.csv")


def test_the_error_of_a_row_is_raised_and_nothing_is_stored() -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield from rows(5)
        raise ValueError("line 6 is malformed")

    with pytest.raises(ValueError, match="line 6"):
        store_examples(failing, TEXTS, identity=["a"], what="x")
    assert len(store_examples(lambda: rows(5), TEXTS, identity=["a"], what="x").table) == 5


EXAMPLES = Dataset.from_dict({"n": list(range(20_000))})


def chosen(size: int | None, seed: int = 0) -> list[int]:
    return list(take_subset(EXAMPLES, size, seed=seed, what="data")["n"])


def test_the_subsets_of_one_seed_are_nested() -> None:
    small, middle, large = (chosen(size, 5) for size in (500, 1000, 10_000))
    assert [len(small), len(middle), len(large)] == [500, 1000, 10_000]
    assert set(small) < set(middle) < set(large)
    assert middle == sorted(middle)
    assert chosen(None) == list(range(20_000))
    # Two random subsets of a twentieth share about a twentieth of their rows.
    assert 20 < len(set(chosen(1000, 1)) & set(chosen(1000, 2))) < 90


def test_a_subset_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="train_size is 20001, but data has 20000"):
        chosen(20_001)
