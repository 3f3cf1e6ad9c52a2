"""From a recipe to the columns that a loss reads, for every source of training data."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modeling_condenser.biencoder.recipe import FinetuningRecipe
from modeling_condenser.biencoder.training_data import TrainingData, load_training_data
from modeling_condenser.examples.collection_examples import USELESS_NEGATIVE
from modeling_condenser.repository.contract import EncodingContract

CONTRACT = EncodingContract(8, 8, title_separator=" | ", query_prompt="q: ", passage_prompt="p: ")
Write = Callable[..., Path]


def load(seed: int = 0, **settings: Any) -> TrainingData:
    return load_training_data(FinetuningRecipe("e", **settings), CONTRACT, seed=seed)


@pytest.fixture(scope="module")
def marco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the layout of MS MARCO's passages, 30 of them and 10 training queries."""
    folder = tmp_path_factory.mktemp("data") / "marco"
    folder.mkdir()
    (folder / "para.txt").write_text("".join(f"{i}\ttext {i}\n" for i in range(30)))
    titles = "".join(f"{i}\t{'-' if i % 2 else f'Title {i}'}\n" for i in range(30))
    (folder / "para.title.txt").write_text(titles)
    (folder / "train.query.txt").write_text("".join(f"{i}\tquery {i}\n" for i in range(10)))
    (folder / "qrels.train.tsv").write_text("".join(f"{i}\t0\t{i}\t1\n" for i in range(10)))
    return folder


def counts(data: TrainingData) -> dict[str, Any]:
    return {n: fact for n, fact in data.facts.items() if "sha256" not in n and "finger" not in n}


def test_the_data_is_identified_by_its_content(marco: Path, tmp_path: Path) -> None:
    data = load(collection=str(marco))
    same = load(collection=str(shutil.copytree(marco, tmp_path / "copy")))
    names = ["examples_sha256", "passages_fingerprint", "judgements_fingerprint"]
    assert [data.facts[name] for name in names] == [same.facts[name] for name in names]
    (tmp_path / "copy" / "qrels.train.tsv").write_text("1\t0\t2\t1\n")
    other = load(collection=str(tmp_path / "copy"))
    assert [data.facts[name] == other.facts[name] for name in names] == [False, True, False]
    assert load(collection=str(marco), train_size=5).facts[names[0]] != data.facts[names[0]]


def test_judged_pairs_of_a_collection(marco: Path) -> None:
    data = load(collection=str(marco))
    assert counts(data) == {"n_examples": 10}
    assert data.examples[2] == {"query": "q: query 2", "positive": "p: Title 2 | text 2"}
    assert data.examples[3] == {"query": "q: query 3", "positive": "p: text 3"}


def test_judged_pairs_with_a_file_of_negatives(marco: Path, write_text: Write) -> None:
    file = write_text("".join(f"{i}\t{i},20,21,22\n" for i in range(9)), "train.negatives.tsv")
    settings = {"collection": str(marco), "negatives": str(file)}
    data = load(**settings)
    assert counts(data) == {
        "n_examples": 9,
        "n_negatives": 3,
        "left_out": {
            "queries of the split without a line of negatives": 1,
        },
    }
    assert data.examples[0] == {
        "query": "q: query 0",
        "positive": "p: Title 0 | text 0",
        "negative_1": "p: Title 20 | text 20",
        "negative_2": "p: text 21",
        "negative_3": "p: Title 22 | text 22",
    }
    drawn = load(**settings, n_negatives=1)
    assert drawn.drawn is not None
    epochs = []
    for epoch in range(8):
        drawn.drawn.set_epoch(epoch)
        epochs.append(drawn.examples[4]["negative_1"])
    assert set(epochs) == {"p: Title 20 | text 20", "p: text 21", "p: Title 22 | text 22"}


def test_a_cross_encoders_scores_of_mined_negatives(marco: Path, write_jsonl: Write) -> None:
    lines = [
        {
            "query_id": str(i),
            "positive_ids": [str(i)],
            "negative_ids": ["20", "21"],
            "negative_scores": [1.0, 0.5],
            "positive_teacher_scores": [5.0 + i],
            "negative_teacher_scores": [1.0, -1.0],
        }
        for i in range(10)
    ]
    data = load(collection=str(marco), negatives=str(write_jsonl(lines)), objective="kl")
    row = data.examples[7]
    assert list(row) == ["query", "positive", "negative_1", "negative_2", "label"]
    assert row["label"] == [12.0, 1.0, -1.0]


def test_triples_of_ids_take_their_texts_from_the_collection(
    marco: Path, write_text: Write
) -> None:
    file = write_text("3\t3\t20\n4\t4\t4\n5\t5\t21\n", "qidpidtriples.train.full.2.tsv")
    data = load(
        collection=str(marco),
        data=str(file),
        format="id_triples",
        columns=["query_id", "positive_id", "negative_id"],
        objective="triplet",
    )
    assert data.facts["left_out"] == {USELESS_NEGATIVE: 1}
    assert data.examples[:]["negative_1"] == ["p: Title 20 | text 20", "p: text 21"]
    assert data.examples[0]["query"] == "q: query 3"


def test_rows_of_different_numbers_of_negatives_need_a_number(write_jsonl: Write) -> None:
    rows = [{"query": "q", "positive": "p", "negatives": ["a", "b"][: i + 1]} for i in range(2)]
    settings = {"data": str(write_jsonl(rows)), "format": "negatives"}
    with pytest.raises(ValueError, match="have from 1 to 2 negatives: set n_negatives"):
        load(**settings)
    assert load(**settings, n_negatives=2).examples[0]["negative_2"] == "p: a"


GRADED = "".join(f"river {i},museum {i},{i % 6}\n" for i in range(60))


def test_subsets_are_nested_in_every_kind_of_data(marco: Path, write_text: Write) -> None:
    pairs = {"collection": str(marco)}
    file = write_text(f"sentence1,sentence2,score\n{GRADED}", "train.csv")
    graded = {
        "data": str(file),
        "format": "graded_pairs",
        "objective": "mse_cosine",
        "score_range": [0, 5],
    }
    for settings, column, sizes in (
        (pairs, "query", (3, 6, 10)),
        (graded, "sentence1", (10, 30, 60)),
    ):
        chosen = [set(load(**settings, train_size=n).examples[:][column]) for n in sizes]
        assert [len(texts) for texts in chosen] == list(sizes)
        assert chosen[0] < chosen[1] < chosen[2]
        other = set(load(**settings, train_size=sizes[0], subset_seed=1).examples[:][column])
        assert other != chosen[0]


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


def test_only_the_first_rows_are_read(write_text: Write) -> None:
    broken = "not three fields\n"
    content = "".join(f"q{i}\tp{i}\tn{i}\n" for i in range(5)) + broken
    file = write_text(content, "triples.tsv")
    settings: dict[str, Any] = {
        "data": str(file),
        "format": "triples",
        "columns": ["query", "positive", "negative"],
        "objective": "triplet",
    }
    assert len(load(**settings, first_rows=5).examples) == 5
    with pytest.raises(ValueError, match="triples.tsv:6: 1 fields"):
        load(**settings)


def test_a_changed_file_is_read_anew(write_jsonl: Write) -> None:
    file = write_jsonl([{"query": "before", "positive": "p"}])
    settings = {"data": str(file), "format": "pairs"}
    assert load(**settings).examples[0]["query"] == "q: before"
    write_jsonl([{"query": "behind", "positive": "p"}])
    assert load(**settings).examples[0]["query"] == "q: behind"
