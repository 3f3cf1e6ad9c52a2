"""Negatives are drawn anew each epoch, by seed and row alone."""

import multiprocessing

import numpy as np
from datasets import Dataset

from modeling_condenser.biencoder.training_data import DrawnNegatives

POOL = [f"n{i}" for i in range(20)]
STORED = Dataset.from_dict(
    {
        "query": [f"q{i}" for i in range(200)],
        "positive": [f"p{i}" for i in range(200)],
        "negatives": [POOL] * 200,
        "row_number": list(range(200)),
        "teacher_scores": [[float(i), *(float(n) for n in range(20))] for i in range(200)],
    }
)


def drawn(n: int, seed: int = 0) -> tuple[Dataset, DrawnNegatives]:
    draw = DrawnNegatives(n_negatives=n, seed=seed)
    return STORED.with_transform(draw), draw


def negatives(examples: Dataset, n: int) -> list[list[str]]:
    rows = examples[:]
    return [list(row) for row in zip(*(rows[f"negative_{i + 1}"] for i in range(n)), strict=True)]


def test_rows_become_columns_of_texts_with_their_scores() -> None:
    examples, _ = drawn(3)
    row = examples[7]
    assert list(row) == ["query", "positive", "negative_1", "negative_2", "negative_3", "label"]
    assert (row["query"], row["positive"]) == ("q7", "p7")
    assert row["label"] == [7.0, *(float(row[f"negative_{i}"][1:]) for i in (1, 2, 3))]


def test_a_row_draws_different_negatives_in_the_datas_order() -> None:
    for row in negatives(drawn(5)[0], 5):
        assert len(set(row)) == 5
        assert row == sorted(row, key=POOL.index)


def test_a_draw_depends_on_seed_epoch_and_row_alone() -> None:
    examples, draw = drawn(4)
    first = negatives(examples, 4)
    assert [examples[i]["negative_2"] for i in (5, 150)] == [first[5][1], first[150][1]]
    assert negatives(examples.select([150, 5]), 4) == [first[150], first[5]]
    draw.set_epoch(1)
    second = negatives(examples, 4)
    assert sum(a != b for a, b in zip(first, second, strict=True)) > 190
    draw.set_epoch(0)
    assert negatives(examples, 4) == first
    assert negatives(drawn(4, seed=1)[0], 4) != first


def test_every_negative_is_drawn_about_equally_often() -> None:
    examples, draw = drawn(5)
    counts = np.zeros(20)
    for epoch in range(40):
        draw.set_epoch(epoch)
        for row in negatives(examples, 5):
            counts[[POOL.index(text) for text in row]] += 1
    expected = 40 * 200 * 5 / 20
    # Five standard deviations of a binomial.
    assert np.abs(counts - expected).max() < 5 * np.sqrt(40 * 200 * 0.25 * 0.75)


def test_a_row_with_fewer_gives_all_of_them_before_any_twice() -> None:
    few = Dataset.from_dict(
        {
            "query": ["q"],
            "positive": ["p"],
            "negatives": [["a", "b", "c"]],
            "row_number": [0],
            "teacher_scores": [None],
        }
    )
    row = few.with_transform(DrawnNegatives(n_negatives=7, seed=0))[0]
    given = [row[f"negative_{i}"] for i in range(1, 8)]
    assert set(given[:3]) == set(given[3:6]) == {"a", "b", "c"}


def test_worker_processes_see_the_epoch() -> None:
    """Those of a data loader that persist were started before the epoch began."""
    draw = DrawnNegatives(n_negatives=1, seed=0)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def work() -> None:
        for _ in range(2):
            theirs.recv()
            theirs.send(int(draw._epoch))

    process = context.Process(target=work, daemon=True)
    process.start()
    seen = []
    for epoch in (3, 4):
        draw.set_epoch(epoch)
        ours.send(0)
        seen.append(ours.recv())
    process.join()
    assert seen == [3, 4]
