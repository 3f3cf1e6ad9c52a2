"""Rows of labelled data as training examples: every kind of file, every format."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from modeling_condenser.finetuning import rows as module
from modeling_condenser.finetuning.recipe import FinetuningRecipe
from modeling_condenser.finetuning.rows import example_maker, make_examples, open_rows
from modeling_condenser.hub.contract import EncodingContract

CONTRACT = EncodingContract(8, 8, query_prompt="q: ", passage_prompt="p: ", title_separator=" | ")
OBJECTIVES = {"graded_pairs": "mse_cosine", "stsb": "mse_cosine", "scored": "kl"}
# Texts that libraries which guess types read as missing, as numbers or as dates.
TEXTS = ["None", "1984", "nan", 'a "quoted" word', "no tab, comma", "1e5", " spaced ", "東京 😀"]
TEXTS += ["2020-01-01", "0012"]
ROWS = [{"query": text, "positive": f"p {text}"} for text in TEXTS]
Write = Callable[..., Path]


def recipe(format: Any = "pairs", data: Any = "f", **settings: Any) -> FinetuningRecipe:
    objective: Any = OBJECTIVES.get(format, "contrastive")
    return FinetuningRecipe("e", objective, data=data, format=format, **settings)


def read(data: Any, **settings: Any) -> list[Any]:
    data = [str(file) for file in data] if isinstance(data, list) else str(data)
    return list(open_rows(recipe(data=data, **settings))[0])


def make(format: str, *rows: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    made = recipe(format, **settings)
    return list(make_examples(rows, made, example_maker(made, CONTRACT)))


def test_every_kind_of_file_gives_the_same_text(
    tmp_path: Path, write_jsonl: Write, write_text: Write
) -> None:
    cells = [['"' + text.replace('"', '""') + '"' for text in row.values()] for row in ROWS]
    quoted = "\r\n".join(["query,positive", *map(",".join, cells)])
    tabs = "\n".join(["query\tpositive", *("\t".join(row.values()) for row in ROWS)])
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet", row_group_size=3)
    write_jsonl(ROWS, "a.jsonl")
    write_jsonl(ROWS, "gzipped.jsonl.gz")
    write_jsonl(ROWS, "lines.json")
    write_text(json.dumps(ROWS), "array.json")
    write_text(quoted, "a.csv")
    write_text(f"\ufeff{tabs}", "a.tsv")
    (tmp_path / "z.tsv.gz").write_bytes(gzip.compress(tabs.encode()))
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(quoted.encode()))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 9
    for file in files:
        assert read(file) == ROWS, file


def test_a_file_without_header_is_read_by_the_names_of_its_columns(
    write_text: Write, write_jsonl: Write
) -> None:
    rows = read(write_text("q1\tp1\nq2\tp2\n", "a.tsv"), columns=["query", "positive"])
    assert rows == [{"query": f"q{i}", "positive": f"p{i}"} for i in (1, 2)]
    with pytest.raises(ValueError, match="a list of columns is for"):
        read(write_jsonl(ROWS), columns=["query", "positive"])


def test_a_row_with_surplus_fields_is_refused(write_text: Write) -> None:
    with pytest.raises(ValueError, match=r"a.csv: a row has 3 fields, expected query, positive"):
        read(write_text("query,positive\nq,p,x\n", "a.csv"))


def test_lists_and_patterns_are_read_in_order(tmp_path: Path, write_jsonl: Write) -> None:
    for i in (2, 0, 1):
        write_jsonl([{"query": f"q{i}"}], f"part-{i}.jsonl")
    both = [tmp_path / "part-2.jsonl", tmp_path / "part-[01].jsonl"]
    assert [row["query"] for row in read(both)] == ["q2", "q0", "q1"]


@pytest.mark.parametrize(("chunk", "indent"), [(1, None), (64, 2)])
def test_an_array_is_read_item_by_item_wherever_its_chunks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    texts = ['aé"\\\n\t', "東😀", "[]{},:", "", "0"]
    values = [{t: [i, i / 7, None, t, {}], "x": {"y": [t] * i}} for i, t in enumerate(texts * 4)]
    file = tmp_path / "array.json"
    file.write_text(json.dumps(values, indent=indent, ensure_ascii=bool(chunk % 2)), "utf-8")
    monkeypatch.setattr(module, "_JSON_CHUNK", chunk)
    assert read(file) == values
    file.write_text('[{"a": 1}, {"a": 2')
    with pytest.raises(ValueError, match=r"array.json: "):
        read(file)


def test_missing_data_is_an_error(write_jsonl: Write, write_text: Write) -> None:
    with pytest.raises(FileNotFoundError, match=r"no local file 'x.jsonl', and the Hub data set"):
        read("x.jsonl")  # the tests are offline
    with pytest.raises(ValueError, match=r"a.xml: expected a file of type .jsonl"):
        read(write_text("<x/>", "a.xml"))


def test_a_hub_data_set_is_read_by_configuration_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*words: Any, **settings: Any) -> Dataset:
        asked.append((words, settings))
        return Dataset.from_list(ROWS)

    monkeypatch.setattr(module, "load_dataset", load_dataset)
    assert read("owner/name", data_name="triplet", split="dev", data_revision="abc") == ROWS
    assert asked == [(("owner/name", "triplet"), {"split": "dev", "revision": "abc"})]


def test_texts_are_read_with_prompts_by_mapped_columns() -> None:
    row = {"question": "who?", "context": "cats", "hard": "dogs", "other": 1}
    columns = {"query": "question", "positive": "context", "negative": "hard"}
    pair = {"query": "q: who?", "positive": "p: cats"}
    assert make("pairs", row, columns=columns) == [pair]
    assert make("triples", row, columns=columns) == [{**pair, "negatives": ["p: dogs"]}]


@pytest.mark.parametrize(
    "fields",
    [
        {"negatives": ["a", "b"], "scores": [3, 1, 2.5]},
        {"negatives": '["a", "b"]', "scores": "[3, 1, 2.5]"},  # lists in a table of texts
        {"negatives": ["a", "b"], "positive_score": "3", "negative_scores": [1, 2.5]},
        {
            **{"negative_1": "a", "negative_2": "b", "negative_3": None, "negative_5": "unread"},
            **{"positive_score": 3, "negative_score_1": 1, "negative_score_2": "2.5"},
            "negative_score_3": "",
        },
    ],
)
def test_negatives_and_scores_are_lists_or_numbered_columns(fields: dict[str, Any]) -> None:
    (example,) = make("scored", {"query": "q", "positive": "c", **fields})
    assert example["negatives"] == ["p: a", "p: b"]
    assert example["teacher_scores"] == [3.0, 1.0, 2.5]


def test_a_margin_is_read_as_two_scores_and_a_score_is_dropped_with_its_negative() -> None:
    pair = {"query": "q", "positive": "c"}
    (margin,) = make("scored", {**pair, "negative": "a", "margin": -1.5})
    assert margin["teacher_scores"] == [-1.5, 0.0]
    (example,) = make("scored", {**pair, "negatives": ["c", "a"], "scores": [3, 2, 1]})
    assert (example["negatives"], example["teacher_scores"]) == (["p: a"], [3.0, 1.0])


def test_graded_scores_become_0_to_1() -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": s} for s in ("1", 2, 5)]
    examples = make("graded_pairs", *rows, score_range=[1, 5])
    assert [example["label"] for example in examples] == [0.0, 0.25, 1.0]
    # Both are encoded as passages, as in the evaluation of graded pairs.
    assert examples[0] == {"sentence1": "p: a", "sentence2": "p: b", "label": 0.0}
    with pytest.raises(ValueError, match=r"row 3: score 5 is outside \[0, 1\]"):
        make("graded_pairs", {**rows[0], "score": 1}, {**rows[0], "score": 0}, rows[2])


def test_rows_that_cannot_teach_are_left_out_with_the_reason() -> None:
    pair = {"query": "q", "positive": "c"}
    examples = make(
        "negatives",
        {"query": " ", "positive": "c", "negatives": ["a"]},
        {**pair, "negatives": [" ", "c"]},
        {**pair, "negatives": ["c", "a"]},
    )
    assert examples == [
        {"left_out": "rows with a blank text"},
        {"left_out": "rows without a negative"},
        {"query": "q: q", "positive": "p: c", "negatives": ["p: a"]},
    ]


@pytest.mark.parametrize(
    ("format", "row", "message"),
    [
        ("pairs", {"query": "q", "positve": "p"}, "f, row 1: .*'positive'; .* query, positve"),
        ("pairs", {"query": None, "positive": "p"}, "row 1: query is None, expected text"),
        ("scored", {"query": "q", "positive": "p", "negative": "n", "scores": [1]}, "1 scores for"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(format: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(format, row)


def entry(**changes: Any) -> dict[str, Any]:
    """An entry as in biencoder-nq-train.json."""
    return {
        "question": "who barks",
        "answers": ["dogs"],
        "positive_ctxs": [
            {"title": "Dog", "text": "Dogs bark.", "score": 1000, "passage_id": "1"},
            {"title": "Wolf", "text": "Wolves, too.", "score": 999},
        ],
        "negative_ctxs": [{"title": "Sun", "text": "It shines."}],
        "hard_negative_ctxs": [
            {"title": "Cat", "text": "Cats do not."},
            {"title": "", "text": "Trees have bark."},
            {"title": "Dog", "text": "Dogs bark."},
        ],
        **changes,
    }


def test_dprs_first_positive_and_hard_negatives_are_read_with_their_titles() -> None:
    dog = {"query": "q: who barks", "positive": "p: Dog | Dogs bark."}
    none = entry(negative_ctxs=[], hard_negative_ctxs=[])
    assert make("dpr", entry(), entry(hard_negative_ctxs=[]), none) == [
        {**dog, "negatives": ["p: Cat | Cats do not.", "p: Trees have bark."]},
        {**dog, "negatives": ["p: Sun | It shines."]},
        {"left_out": "rows without a negative"},
    ]
    assert make("dpr", none, n_negatives=0) == [{**dog, "negatives": []}]
    (left_out,) = make("dpr", entry(positive_ctxs=[]))
    assert left_out == {"left_out": "questions without a positive passage"}


def test_the_sts_benchmarks_own_files_are_read(write_text: Write) -> None:
    lines = (
        "main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane takes off.\tA plane starts.\n"
        'main-news\theadlines\t2013\t0024\t0.8\t"So," she said.\tNone\tCC\thttp://x\n'
    )
    rows = read(write_text(lines, "sts-train.csv"), format="stsb")
    assert make("stsb", *rows) == [
        {"sentence1": "p: A plane takes off.", "sentence2": "p: A plane starts.", "label": 1.0},
        {"sentence1": 'p: "So," she said.', "sentence2": "p: None", "label": 0.16},
    ]
