"""From a recipe to the columns that a loss reads, for every source of training data."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from modeling_condenser.finetuning.recipe import FinetuningRecipe
from modeling_condenser.finetuning.training_data import (
    DrawnNegatives,
    TrainingData,
    load_training_data,
    take_subset,
)
from modeling_condenser.hub.contract import EncodingContract

CONTRACT = EncodingContract(8, 8, title_separator=" | ", query_prompt="q: ", passage_prompt="p: ")
Write = Callable[..., Path]


def load(seed: int = 0, **settings: Any) -> TrainingData:
    return load_training_data(FinetuningRecipe("e", **settings), CONTRACT, seed=seed)


@pytest.fixture(scope="module")
def marco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in MS MARCO's layout: 30 passages, of which 28 is a copy of 4; 10 queries."""
    folder = tmp_path_factory.mktemp("data") / "marco"
    folder.mkdir()
    (folder / "para.txt").write_text(
        "".join(f"{i}\ttext {4 if i == 28 else i}\n" for i in range(30))
    )
    titles = "".join(f"{i}\t{'-' if i % 2 else f'Title {i}'}\n" for i in range(30))
    (folder / "para.title.txt").write_text(titles)
    (folder / "train.query.txt").write_text("".join(f"{i}\tquery {i}\n" for i in range(10)))
    qrels = "".join(f"{i}\t0\t{i}\t1\n" for i in range(10))
    (folder / "qrels.train.tsv").write_text(qrels + "3\t0\t13\t1\n")
    return folder


def counts(data: TrainingData) -> dict[str, Any]:
    return {n: fact for n, fact in data.facts.items() if "sha256" not in n and "finger" not in n}


def pairs(data: TrainingData) -> list[tuple[str, ...]]:
    """The numbers in the query, the positive and the negatives of each example."""
    return [tuple(text.split()[-1] for text in row.values()) for row in data.examples]


def test_the_data_is_identified_by_its_content(marco: Path, tmp_path: Path) -> None:
    data = load(collection=str(marco))
    same = load(collection=str(shutil.copytree(marco, tmp_path / "copy")))
    names = ["examples_sha256", "passages_fingerprint", "judgements_fingerprint"]
    assert [data.facts[name] for name in names] == [same.facts[name] for name in names]
    (tmp_path / "copy" / "qrels.train.tsv").write_text("1\t0\t2\t1\n")
    other = load(collection=str(tmp_path / "copy"))
    assert [data.facts[name] == other.facts[name] for name in names] == [False, True, False]


def test_each_judged_pair_of_a_collection_is_an_example(marco: Path) -> None:
    data = load(collection=str(marco))
    assert counts(data) == {"n_examples": 11}
    assert data.examples[2] == {"query": "q: query 2", "positive": "p: Title 2 | text 2"}
    assert data.examples[4] == {"query": "q: query 3", "positive": "p: text 13"}


def test_judged_pairs_get_the_negatives_of_a_file(marco: Path, write_text: Write) -> None:
    """Relevant passages and copies of the positive are no negatives."""
    lines = "3\t13,3,20,21\n4\t28,22,23\n5\t5\n99\t1\n"
    file = write_text(lines, "train.negatives.tsv")
    data = load(collection=str(marco), negatives=str(file))
    assert pairs(data) == [
        ("3", "3", "20", "21"),
        ("3", "13", "20", "21"),
        ("4", "4", "22", "23"),
    ]
    assert data.examples[0]["negative_1"] == "p: Title 20 | text 20"
    left_out = {
        "lines of queries that are not in the split": 1,
        "queries of the split without a line of negatives": 7,
        "rows without a negative": 1,
    }
    assert counts(data) == {"n_examples": 3, "n_negatives": 2, "left_out": left_out}
    file.with_suffix(".tsv.gz").write_bytes(gzip.compress(lines.encode()))
    again = load(collection=str(marco), negatives=f"{file}.gz")
    assert again.facts["examples_sha256"] == data.facts["examples_sha256"]


def mined(query_id: str, *negatives: str, **further: Any) -> dict[str, Any]:
    return {"query_id": query_id, "negative_ids": list(negatives), "ignored": 1, **further}


def test_positives_and_scores_of_a_mined_line_replace_the_judgements(
    marco: Path, write_jsonl: Write
) -> None:
    """A cross-encoder may have relabelled passages as positives."""
    line = mined(
        *("4", "20", "28", "6"),
        positive_ids=["4", "6"],
        positive_teacher_scores=[9, 8.5],
        negative_teacher_scores=[-1, -2.0, -3.5],
    )
    none = mined("5", positive_ids=["5"], positive_teacher_scores=[1], negative_teacher_scores=[])
    settings = {"collection": str(marco), "negatives": str(write_jsonl([line, none]))}
    data = load(**settings, objective="kl", n_negatives=2)
    rows = [data.examples[i] for i in range(2)]
    assert list(rows[0]) == ["query", "positive", "negative_1", "negative_2", "label"]
    assert [row["positive"].split()[-1] for row in rows] == ["4", "6"]
    assert [row["label"] for row in rows] == [[9.0, -1.0, -1.0], [8.5, -1.0, -2.0]]


@pytest.mark.parametrize(
    ("lines", "objective", "message"),
    [
        ([mined("4", "5", "p99")], "contrastive", "no passage 'p99'"),
        ([mined("4", "5")], "kl", "Query '4' has no cross-encoder scores"),
        (
            [{"query_id": "4", "negative_ids": 5}],
            "contrastive",
            "data.jsonl:1: .*no hard negatives",
        ),
    ],
)
def test_mined_lines_that_do_not_fit_are_refused(
    marco: Path, write_jsonl: Write, lines: list[Any], objective: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(collection=str(marco), negatives=str(write_jsonl(lines)), objective=objective)


def test_triples_of_ids_take_their_texts_from_the_collection(
    marco: Path, write_text: Write
) -> None:
    settings = {
        "collection": str(marco),
        "format": "id_triples",
        "columns": ["query_id", "positive_id", "negative_id"],
        "objective": "triplet",
    }
    file = write_text("3\t3\t20\n4\t4\t28\n3\t3\t13\n5\t5\t21\n", "qidpidtriples.tsv")
    data = load(**settings, data=str(file))
    assert pairs(data) == [("3", "3", "20"), ("5", "5", "21")]
    useless = "triples whose negative is relevant or has the text of the positive"
    assert data.facts["left_out"] == {useless: 2}
    for row, unknown in (("11\t3\t20", "query '11'"), ("3\t3\t99", "passage '99'")):
        with pytest.raises(ValueError, match=f"row 1: .*{unknown}"):
            load(**settings, data=str(write_text(f"{row}\n", "unknown.tsv")))


def test_only_the_first_rows_are_read_and_a_changed_file_anew(write_text: Write) -> None:
    settings: dict[str, Any] = {"format": "pairs", "columns": ["query", "positive"]}
    file = write_text("".join(f"q{i}\tp{i}\n" for i in range(5)), "pairs.tsv")
    assert len(load(data=str(file), first_rows=3, **settings).examples) == 3
    assert len(load(data=str(file), **settings).examples) == 5
    write_text("other\tp\n", "pairs.tsv")
    assert load(data=str(file), **settings).examples[0]["query"] == "q: other"
    with pytest.raises(ValueError, match="no training example .*'rows with a blank text': 1"):
        load(data=str(write_text(" \tp\n", "blank.tsv")), **settings)


def test_rows_of_different_numbers_of_negatives_need_a_number(write_jsonl: Write) -> None:
    rows = [{"query": "q", "positive": "p", "negatives": ["a", "b"][: i + 1]} for i in range(2)]
    settings = {"data": str(write_jsonl(rows)), "format": "negatives"}
    with pytest.raises(ValueError, match="have from 1 to 2 negatives: set n_negatives"):
        load(**settings)
    assert load(**settings, n_negatives=2).examples[0]["negative_2"] == "p: a"


def test_the_subsets_of_one_seed_are_nested() -> None:
    examples = Dataset.from_dict({"n": list(range(20_000))})

    def chosen(size: int | None, seed: int = 5) -> list[int]:
        return list(take_subset(examples, size, seed=seed, what="data")["n"])

    small, middle, large = (chosen(size) for size in (500, 1000, 10_000))
    assert [len(small), len(middle), len(large)] == [500, 1000, 10_000]
    assert set(small) < set(middle) < set(large)
    assert middle == sorted(middle)
    assert chosen(None) == list(range(20_000))
    with pytest.raises(ValueError, match="train_size is 20001, but data has 20000"):
        chosen(20_001)


def test_a_rows_negatives_are_the_same_in_every_subset(write_jsonl: Write) -> None:
    rows = [
        {"query": f"{i}", "positive": "p", "negatives": [f"n{n}" for n in range(9)]}
        for i in range(40)
    ]
    settings = {"data": str(write_jsonl(rows)), "format": "negatives", "n_negatives": 1}
    whole = {row["query"]: row["negative_1"] for row in load(**settings).examples}
    part = {row["query"]: row["negative_1"] for row in load(**settings, train_size=9).examples}
    assert len(part) == 9 and part.items() < whole.items()
    assert len(set(whole.values())) > 3


POOL = [f"n{i:02}" for i in range(20)]
STORED = Dataset.from_dict(
    {
        "query": [f"q{i}" for i in range(200)],
        "positive": [f"p{i}" for i in range(200)],
        "negatives": [POOL] * 199 + [["a", "b", "c"]],
        "row_number": list(range(200)),
        "teacher_scores": [[float(i), *(float(n) for n in range(20))] for i in range(200)],
    }
)


def drawn(n: int, epoch: int = 0, seed: int = 0, rows: Any = None) -> list[list[str]]:
    draw = DrawnNegatives(n_negatives=n, seed=seed)
    draw.set_epoch(epoch)
    found = STORED.select(rows or range(199)).with_transform(draw)[:]
    return [list(r) for r in zip(*(found[f"negative_{i + 1}"] for i in range(n)), strict=True)]


def test_scores_follow_the_drawn_negatives() -> None:
    row = STORED.with_transform(DrawnNegatives(n_negatives=3, seed=0))[7]
    assert list(row) == ["query", "positive", "negative_1", "negative_2", "negative_3", "label"]
    assert row["label"] == [7.0, *(float(row[f"negative_{i}"][1:]) for i in (1, 2, 3))]


def test_a_draw_depends_on_seed_epoch_and_row_alone() -> None:
    first = drawn(4)
    assert all(len(set(row)) == 4 for row in first)
    assert drawn(4, rows=[150, 5]) == [first[150], first[5]]
    assert drawn(4, seed=1) != first
    assert sum(a != b for a, b in zip(first, drawn(4, epoch=1), strict=True)) > 190
    # A row with fewer gives all of them before any twice.
    (few,) = drawn(7, rows=[199])
    assert sorted(map(few.count, "abc")) == [2, 2, 3]


def test_the_epoch_is_in_memory_that_worker_processes_share() -> None:
    """Persistent workers of a data loader were started before the epoch began."""
    assert DrawnNegatives(n_negatives=1, seed=0)._epoch.is_shared()
