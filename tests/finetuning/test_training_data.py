"""From a recipe to the columns that a loss reads, for every source of training data."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import TrainerState

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
def marco(tmp_path_factory):
    """A folder in MS MARCO's layout: 30 passages, of which 28 is a copy of 4; 10 queries."""
    folder = tmp_path_factory.mktemp("marco")
    files = {
        "para.txt": [f"{i}\ttext {4 if i == 28 else i}" for i in range(30)],
        "para.title.txt": [f"{i}\t{'-' if i % 2 else f'Title {i}'}" for i in range(30)],
        "train.query.txt": [f"{i}\tquery {i}" for i in range(10)],
        "qrels.train.tsv": [*(f"{i}\t0\t{i}\t1" for i in range(10)), "3\t0\t13\t1"],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def numbers(data: TrainingData) -> list[str]:
    """The numbers in the query, the positive and the negatives of each example."""
    return [" ".join(text.split()[-1] for text in row.values()) for row in data.examples]


def test_each_judged_pair_of_a_collection_is_an_example_identified_by_its_content(marco, tmp_path):
    data = load(collection=str(marco))
    assert len(data.examples) == data.facts["n_examples"] == 11
    assert data.examples[2] == {"query": "q: query 2", "positive": "p: Title 2 | text 2"}
    assert data.examples[4] == {"query": "q: query 3", "positive": "p: text 13"}
    copy = shutil.copytree(marco, tmp_path / "copy")
    assert load(collection=str(copy)).facts == data.facts
    (copy / "qrels.train.tsv").write_text("1\t0\t2\t1\n")
    other = load(collection=str(copy)).facts
    assert other["passages_fingerprint"] == data.facts["passages_fingerprint"]
    assert other["judgements_fingerprint"] != data.facts["judgements_fingerprint"]


def test_relevant_passages_and_copies_of_the_positive_are_no_negatives(marco, write_text):
    file = write_text("3\t13,3,20,21\n4\t28,22,23\n5\t5\n99\t1\n", "train.negatives.tsv")
    data = load(collection=str(marco), negatives=str(file))
    assert numbers(data) == ["3 3 20 21", "3 13 20 21", "4 4 22 23"]
    assert data.examples[0]["negative_1"] == "p: Title 20 | text 20"
    assert data.facts["n_negatives"] == 2
    assert data.facts["left_out"] == {
        "lines of queries that are not in the split": 1,
        "queries of the split without a line of negatives": 7,
        "rows without a negative": 1,
    }
    triples = write_text("3\t3\t20\n4\t4\t28\n3\t3\t13\n5\t5\t21\n", "qidpidtriples.tsv")
    columns = ["query_id", "positive_id", "negative_id"]
    settings = {"format": "id_triples", "columns": columns, "objective": "triplet"}
    data = load(collection=str(marco), data=str(triples), **settings)
    assert numbers(data) == ["3 3 20", "5 5 21"]
    assert data.facts["left_out"]["rows without a negative"] == 2


def test_positives_and_scores_of_a_mined_line_replace_the_judgements(marco, write_jsonl):
    """A cross-encoder may have relabelled passages as positives."""
    scores = {"positive_teacher_scores": [9, 8.5], "negative_teacher_scores": [-1, -2.0, -3.5]}
    line = {"query_id": "4", "positive_ids": ["4", "6"], "negative_ids": ["20", "28", "6"]}
    alone = {"query_id": "5", "positive_ids": ["5"], "positive_teacher_scores": [1]}
    lines = [{**line, **scores}, {**alone, "negative_teacher_scores": []}]
    file = write_jsonl(lines, "mined.jsonl.gz")
    data = load(collection=str(marco), negatives=str(file), objective="kl", n_negatives=2)
    rows = [data.examples[i] for i in range(2)]
    assert list(rows[0]) == ["query", "positive", "negative_1", "negative_2", "label"]
    assert [row["positive"].split()[-1] for row in rows] == ["4", "6"]
    assert [row["label"] for row in rows] == [[9.0, -1.0, -1.0], [8.5, -1.0, -2.0]]


@pytest.mark.parametrize(
    ("negatives", "objective", "message"),
    [
        (["5", "p99"], "contrastive", "no passage 'p99'"),
        (["5"], "kl", "query '4' has no cross-encoder scores"),
    ],
)
def test_mined_lines_that_do_not_fit_are_refused(marco, write_jsonl, negatives, objective, message):
    file = write_jsonl([{"query_id": "4", "negative_ids": negatives}])
    with pytest.raises(ValueError, match=message):
        load(collection=str(marco), negatives=str(file), objective=objective)


def test_only_the_first_rows_are_read_and_a_changed_file_anew(write_text):
    settings = {"format": "pairs", "columns": ["query", "positive"]}
    file = write_text("".join(f"q{i}\tp{i}\n" for i in range(5)), "pairs.tsv")
    assert len(load(data=str(file), first_rows=3, **settings).examples) == 3
    assert len(load(data=str(file), **settings).examples) == 5
    write_text("other\tp\n", "pairs.tsv")
    assert load(data=str(file), **settings).examples[0]["query"] == "q: other"
    with pytest.raises(ValueError, match="no training example .*'rows with a blank text': 1"):
        load(data=str(write_text(" \tp\n", "blank.tsv")), **settings)


def test_the_subsets_of_one_seed_are_nested():
    examples = Dataset.from_dict({"n": list(range(2000))})
    subsets = [take_subset(examples, n, seed=5, what="data")["n"][:] for n in (50, 100, 1000)]
    assert [len(subset) for subset in subsets] == [50, 100, 1000]
    assert set(subsets[0]) < set(subsets[1]) < set(subsets[2])
    assert subsets[1] == sorted(subsets[1])


POOL = [f"n{i:02}" for i in range(20)]
ROWS = [{"query": f"q{i}", "positive": "p", "negatives": POOL} for i in range(100)]
FEW = {"query": "few", "positive": "p", "negatives": ["a", "b"]}


def test_a_draw_depends_on_seed_epoch_and_row_alone(write_jsonl):
    file = str(write_jsonl([*ROWS, FEW]))
    with pytest.raises(ValueError, match="have from 2 to 20 negatives: set n_negatives"):
        load(data=file, format="negatives")
    settings = {"data": file, "format": "negatives", "n_negatives": 4}
    data = load(**settings)
    drawn = data.callbacks[0]
    first = data.examples[:]
    rows = list(zip(*(first[f"negative_{i}"] for i in (1, 2, 3, 4)), strict=True))
    assert all(len(set(row)) == 4 for row in rows[:100])
    assert sorted(rows[100]) == ["p: a", "p: a", "p: b", "p: b"]  # all before any twice
    part = load(**settings, train_size=9).examples[:]
    places = [first["query"].index(query) for query in part["query"]]
    assert part["negative_3"] == [first["negative_3"][place] for place in places]
    drawn.on_epoch_begin(None, TrainerState(epoch=1.0), None)
    assert drawn._epoch.is_shared()  # with persistent workers, which started before the epoch
    for other in (data, load(seed=1, **settings)):
        pairs = zip(first["negative_1"], other.examples[:]["negative_1"], strict=True)
        assert sum(a != b for a, b in pairs) > 70


def test_scores_follow_the_drawn_negatives():
    scores = [[7.0, *map(float, range(20))]]
    row = {"query": ["q"], "passages": [["p", *POOL]], "row_number": [7]}
    drawn = DrawnNegatives(n_negatives=3, seed=0)({**row, "scores": scores})
    assert list(drawn) == ["query", "positive", "negative_1", "negative_2", "negative_3", "label"]
    chosen = [float(drawn[f"negative_{i}"][0][1:]) for i in (1, 2, 3)]
    assert drawn["label"] == [[7.0, *chosen]]
