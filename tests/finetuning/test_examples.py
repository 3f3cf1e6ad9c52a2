"""Rows of every kind of file and of every format, as training examples."""

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from modeling_condenser.collection import text_files
from modeling_condenser.finetuning import rows as module
from modeling_condenser.finetuning.examples import convert_rows, make_text_example
from modeling_condenser.finetuning.recipe import FinetuningRecipe
from modeling_condenser.finetuning.rows import open_rows
from modeling_condenser.hub.contract import EncodingContract

# Texts that libraries which guess types read as missing, as numbers or as dates.
TEXTS = ["None", "1984", "nan", 'a "quoted" word', "no tab, comma", "1e5", " spaced ", "東京 😀"]
TEXTS += ["2020-01-01", "0012"]
ROWS = [{"query": text, "positive": f"p {text}"} for text in TEXTS]
Write = Callable[..., Path]


def read(data: Any, **settings: Any) -> list[Any]:
    data = [str(file) for file in data] if isinstance(data, list) else str(data)
    return list(open_rows(FinetuningRecipe("e", data=data, format="pairs", **settings))[0])


def test_every_kind_of_file_gives_the_same_text(tmp_path, write_jsonl, write_text):
    cells = [['"' + text.replace('"', '""') + '"' for text in row.values()] for row in ROWS]
    quoted = "\r\n".join(["query,positive", *map(",".join, cells)])
    tabs = "\n".join(["query\tpositive", *("\t".join(row.values()) for row in ROWS)])
    Dataset.from_list(ROWS).to_parquet(tmp_path / "a.parquet")
    write_jsonl(ROWS, "a.jsonl")
    write_jsonl(ROWS, "lines.json")
    write_text(json.dumps(ROWS), "array.json")
    write_text(f"\ufeff{tabs}", "a.tsv")
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(quoted.encode()))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6
    for file in files:
        assert read(file) == ROWS, file


def test_lists_and_patterns_are_read_in_order(tmp_path, write_jsonl):
    for i in (2, 0, 1):
        write_jsonl([{"query": f"q{i}"}], f"part-{i}.jsonl")
    both = [tmp_path / "part-2.jsonl", tmp_path / "part-[01].jsonl"]
    assert [row["query"] for row in read(both)] == ["q2", "q0", "q1"]


@pytest.mark.parametrize("chunk", [1, 64])
def test_an_array_is_read_item_by_item_wherever_its_chunks_end(tmp_path, monkeypatch, chunk):
    texts = ['aé"\\\n\t', "東😀", "[]{},:", "", "0"]
    values = [{t: [i, i / 7, None, t, {}], "x": {"y": [t] * i}} for i, t in enumerate(texts * 4)]
    file = tmp_path / "array.json"
    file.write_text(json.dumps(values, indent=2, ensure_ascii=bool(chunk % 2)), "utf-8")
    monkeypatch.setattr(text_files, "_JSON_CHUNK", chunk)
    assert read(file) == values
    file.write_text('[{"a": 1}, {"a": 2')
    with pytest.raises(ValueError, match=r"array.json is not a JSON array"):
        read(file)


def test_a_hub_data_set_is_read_by_configuration_and_split(monkeypatch):
    asked = []

    def load_dataset(*words: Any, **settings: Any) -> Dataset:
        asked.append((words, settings))
        return Dataset.from_list(ROWS)

    monkeypatch.setattr(module, "load_dataset", load_dataset)
    assert read("owner/name", data_name="triplet", split="dev", data_revision="abc") == ROWS
    assert asked == [(("owner/name", "triplet"), {"split": "dev", "revision": "abc"})]


def test_data_that_cannot_be_read_is_refused(write_text):
    with pytest.raises(FileNotFoundError, match=r"no local file 'x.jsonl', and the Hub data set"):
        read("x.jsonl")  # the tests are offline
    with pytest.raises(ValueError, match=r"a.xml: expected a file of type .jsonl"):
        read(write_text("<x/>", "a.xml"))


CONTRACT = EncodingContract(8, 8, query_prompt="q: ", passage_prompt="p: ", title_separator=" | ")
OBJECTIVES: dict[str, Any] = {"graded_pairs": "mse_cosine", "stsb": "mse_cosine", "scored": "kl"}


def make(format: Any, *rows: dict[str, Any], data: str = "f", **settings: Any) -> list[Any]:
    objective = OBJECTIVES.get(format, "contrastive")
    recipe = FinetuningRecipe("e", objective, data=data, format=format, **settings)
    found = rows or open_rows(recipe)[0]
    return list(convert_rows(found, recipe, partial(make_text_example, recipe, CONTRACT)))


NUMBERED = {"negative_1": "a", "negative_2": "b", "negative_3": None, "negative_5": "unread"}
NUMBERED_SCORES = {"positive_score": 3, "negative_score_1": 1, "negative_score_2": "2.5"}
SCORED = {"passages": ["p: c", "p: a", "p: b"], "scores": [3.0, 1.0, 2.5]}


@pytest.mark.parametrize(
    ("format", "fields", "expected"),
    [
        ("pairs", {}, {"passages": ["p: c"]}),
        ("triples", {"negative": "a"}, {"passages": ["p: c", "p: a"], "scores": None}),
        # Lists in a table of texts.
        ("scored", {"negatives": '["a", "b"]', "scores": "[3, 1, 2.5]"}, SCORED),
        ("scored", {"negatives": ["c", "a", " ", "b"], "scores": [3, 9, 1, 9, 2.5]}, SCORED),
        ("scored", {**NUMBERED, **NUMBERED_SCORES, "negative_score_3": ""}, SCORED),
        (
            "scored",
            {"negative": "a", "margin": -1.5},
            {"passages": ["p: c", "p: a"], "scores": [-1.5, 0.0]},
        ),
    ],
)
def test_a_row_becomes_an_example(format, fields, expected):
    row = {"question": "who?", "positive": "c", "other": 1, **fields}
    (example,) = make(format, row, columns={"query": "question"})
    assert example == {"query": "q: who?", **expected}


def test_graded_scores_become_0_to_1(write_text):
    rows = [{"sentence1": "a", "sentence2": "b", "score": s} for s in ("1", 2, 5)]
    examples = make("graded_pairs", *rows, score_range=[1, 5])
    assert [example["label"] for example in examples] == [0.0, 0.25, 1.0]
    # Both are encoded as passages, as in the evaluation of graded pairs.
    assert examples[0] == {"sentence1": "p: a", "sentence2": "p: b", "label": 0.0}
    own = 'main-news\theadlines\t2013\t0024\t0.8\t"So," she said.\tNone\tCC\thttp://x\n'
    (example,) = make("stsb", data=str(write_text(own, "sts-train.csv")))
    assert example == {"sentence1": 'p: "So," she said.', "sentence2": "p: None", "label": 0.16}


def test_dprs_first_positive_and_hard_negatives_are_read_with_their_titles():
    dog, cat = {"title": "Dog", "text": "Dogs bark."}, {"title": "Cat", "text": "Cats do not."}
    entry = {  # as in biencoder-nq-train.json
        "question": "who barks",
        "answers": ["dogs"],
        "positive_ctxs": [{**dog, "score": 1000, "passage_id": "1"}, cat],
        "negative_ctxs": [{"title": "Sun", "text": "It shines."}],
        "hard_negative_ctxs": [cat, {"title": "", "text": "Trees have bark."}, dog],
    }
    positive = "p: Dog | Dogs bark."
    first, second = make("dpr", entry, {**entry, "hard_negative_ctxs": []})
    assert first["query"] == "q: who barks"
    assert first["passages"] == [positive, "p: Cat | Cats do not.", "p: Trees have bark."]
    assert second["passages"] == [positive, "p: Sun | It shines."]
    assert make("dpr", entry, n_negatives=0)[0]["passages"] == [positive]


def test_rows_that_cannot_teach_are_left_out_with_the_reason():
    blank = {"query": " ", "positive": "c", "negatives": ["a"]}
    alone = {"query": "q", "positive": "c", "negatives": [" ", "c"]}
    entry = {"question": "q", "positive_ctxs": []}
    left_out = [example["left_out"] for example in make("negatives", blank, alone)]
    assert left_out == ["rows with a blank text", "rows without a negative"]
    assert make("dpr", entry) == [{"left_out": "questions without a positive passage"}]


@pytest.mark.parametrize(
    ("format", "row", "message"),
    [
        ("pairs", {"query": "q", "positve": "p"}, "f, row 1: .*'positive'; .* query, positve"),
        ("pairs", {"query": None, "positive": "p"}, "row 1: None is no text"),
        ("scored", {"query": "q", "positive": "p", "negative": "n", "scores": [1]}, "1 scores for"),
        ("graded_pairs", {"sentence1": "a", "sentence2": "b", "score": 5}, r"5 is outside \[0, 1"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(format, row, message):
    with pytest.raises(ValueError, match=message):
        make(format, row)
