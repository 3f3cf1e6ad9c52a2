"""Nested subsets."""

import pytest
from datasets import Dataset

from modeling_condenser.examples.subsets import take_subset

EXAMPLES = Dataset.from_dict({"n": list(range(20_000))})


def chosen(size: int | None, seed: int = 0) -> list[int]:
    return list(take_subset(EXAMPLES, size, seed=seed, what="data")["n"])


def test_the_subsets_of_one_seed_are_nested() -> None:
    small, middle, large = (chosen(size, 5) for size in (500, 1000, 10_000))
    assert [len(small), len(middle), len(large)] == [500, 1000, 10_000]
    assert set(small) < set(middle) < set(large)
    assert middle == sorted(middle)
    assert chosen(None) == list(range(20_000))


def test_a_seed_decides_the_subset() -> None:
    assert chosen(1000, 1) == chosen(1000, 1)
    # Two random subsets of a twentieth share about a twentieth of their rows.
    assert 20 < len(set(chosen(1000, 1)) & set(chosen(1000, 2))) < 90


@pytest.mark.parametrize("size", [20_001, 0, -1])
def test_a_size_that_there_is_not_is_refused(size: int) -> None:
    with pytest.raises(
        ValueError, match=f"train_size is {size}, but data gives 20000 .*1 to 20000"
    ):
        chosen(size)
