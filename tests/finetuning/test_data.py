"""From rows of every kind of file and format, and from collections, to what a loss reads."""

import gzip
import json
import shutil
from itertools import chain
from typing import Any

import pytest
from datasets import Dataset

from modeling_condenser.collection import rows as rows_module
from modeling_condenser.files.models import EncodingContract
from modeling_condenser.finetuning.data import (
    DrawnPassages,
    TrainingData,
    load_training_data,
    make_example,
    make_graded_pair,
    open_rows,
    read_dpr,
)
from modeling_condenser.finetuning.recipe import FinetuningRecipe

CONTRACT = EncodingContract(8, 8, title_separator=" | ", query_prompt="q: ", passage_prompt="p: ")
# Texts that libraries which guess types read as missing, as numbers or as dates.
TEXTS = ["None", "1984", "nan", 'a "quoted" word', "no tab, comma", "1e5", " spaced ", "東京 😀"]
TEXTS += ["2020-01-01", "0012"]
TEXT_ROWS = [{"query": text, "positive": f"p {text}"} for text in TEXTS]


def read(data: Any, **settings: Any) -> list[Any]:
    data = [str(file) for file in data] if isinstance(data, list) else str(data)
    rows = chain(*open_rows(FinetuningRecipe("e", data=data, **settings)))
    return [json.loads(row["json"]) if row.keys() == {"json"} else row for row in rows]


def test_every_kind_of_file_gives_the_same_text(tmp_path, write_jsonl, write_text):
    cells = [['"' + text.replace('"', '""') + '"' for text in row.values()] for row in TEXT_ROWS]
    quoted = "\r\n".join(["query,positive", *map(",".join, cells)])
    tabs = "\n".join(["query\tpositive", *("\t".join(row.values()) for row in TEXT_ROWS)])
    Dataset.from_list(TEXT_ROWS).to_parquet(tmp_path / "a.parquet")
    write_jsonl(TEXT_ROWS, "a.jsonl")
    write_jsonl(TEXT_ROWS, "lines.jsonl.gz")
    write_text(json.dumps(TEXT_ROWS), "array.json")
    write_text(f"\ufeff{tabs}", "a.tsv")
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(quoted.encode()))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6
    for file in files:
        assert read(file) == TEXT_ROWS, file


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"query,positive\na,b, c\nd,e\n", "row 2 has 3 fields, expected 2"),
        ("a.jsonl", b'{"query": "a"}\n{"que', r"a.jsonl:2: .* is not JSON"),
        ("a.csv", b"query,positive\n", "a.csv has no rows"),
        ("a.jsonl", b"", "a.jsonl has no rows"),
        ("a.txt", b"a", "has no column 'query'"),
        ("none.csv", None, "There is no file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    recipe = FinetuningRecipe("e", data=str(tmp_path / name))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_training_data(recipe, CONTRACT, seed=0)


def test_a_table_may_have_semicolons_and_another_encoding(tmp_path):
    rows = [{"query": "wo, und für wen?", "positive": f"Die Größe der Käse {i}"} for i in range(9)]
    lines = ["query;positive", *(";".join(row.values()) for row in rows)]
    (tmp_path / "a.csv").write_bytes("\n".join(lines).encode("cp1252"))
    assert read(tmp_path / "a.csv") == rows


def test_files_lists_and_patterns_are_read_in_order(tmp_path, write_jsonl):
    for name in ("part-2", "part-0", "part-1"):
        write_jsonl([{"query": name}], f"{name}.jsonl")
    names = [tmp_path / "part-2.jsonl", tmp_path / "part-[01].jsonl"]
    assert [row["query"] for row in read(names)] == ["part-2", "part-0", "part-1"]


def test_one_hub_data_set_is_read_by_configuration_split_and_revision(monkeypatch):
    asked = []

    def load_dataset(*words: Any, **settings: Any) -> Dataset:
        asked.append((words, settings))
        return Dataset.from_list(TEXT_ROWS)

    monkeypatch.setattr(rows_module, "load_dataset", load_dataset)
    assert read("owner/name@abc", data_name="triplet", split="dev") == TEXT_ROWS
    assert asked == [(("owner/name", "triplet"), {"split": "dev", "revision": "abc"})]
    with pytest.raises(FileNotFoundError, match="There is no file 'owner/name'"):
        read(["owner/name", "owner/other"])
    with pytest.raises(ValueError, match="columns is a list, which is for files"):
        read("owner/name", columns=["query", "positive"])


def test_settings_of_a_hub_data_set_are_refused_for_files(write_jsonl):
    file = write_jsonl(TEXT_ROWS)
    for setting in ({"split": "dev"}, {"data_name": "triplet"}):
        with pytest.raises(ValueError, match="is of files: leave out split and data_name"):
            read(file, **setting)


def make(row: dict[str, Any], **settings: Any) -> Any:
    return make_example(row, FinetuningRecipe("e", data="f", **settings), CONTRACT)


NUMBERED = {"negative_1": "a", "negative_2": "b", "negative_3": None, "negative_5": "unread"}
SCORED = {"negatives": ["p: a", "p: b"], "scores": [3.0, 1.0, 2.5]}
KL = {"objective": "kl"}


@pytest.mark.parametrize(
    ("settings", "fields", "expected"),
    [
        ({}, {}, {"negatives": []}),
        ({}, {"negative": "a", "scores": [1]}, {"negatives": ["p: a"]}),
        ({"n_negatives": 0}, {"negative": "a"}, {"negatives": []}),
        (KL, {"negatives": ["c", "a", " ", "b"], "scores": [3, 9, 1, 9, 2.5]}, SCORED),
        ({}, {"negatives": "one"}, {"negatives": ["p: one"]}),
        (KL, {**NUMBERED, "scores": [3, 1, 2.5]}, SCORED),
    ],
)
def test_a_row_becomes_an_example(settings, fields, expected):
    example = make({"query": "who?", "positive": "c", "other": 1, **fields}, **settings)
    assert example == {"query": "q: who?", "positives": ["p: c"], "scores": None, **expected}


def test_graded_scores_become_0_to_1():
    recipe = FinetuningRecipe("e", data="f", objective="mse_cosine", score_range=[1, 5])
    rows = [{"sentence1": "a", "sentence2": "b", "score": score} for score in ("1", 2, 5)]
    examples = [make_graded_pair(row, recipe, CONTRACT) for row in rows]
    assert [example["label"] for example in examples] == [0.0, 0.25, 1.0]
    # Both are encoded as passages, as in the evaluation of graded pairs.
    assert examples[0] == {"sentence1": "p: a", "sentence2": "p: b", "label": 0.0}
    with pytest.raises(ValueError, match="score is None, expected a number"):
        make_graded_pair({**rows[0], "score": None}, recipe, CONTRACT)
    with pytest.raises(ValueError, match=r"score 9 is outside \[1, 5\]"):
        make_graded_pair({**rows[0], "score": 9}, recipe, CONTRACT)


def test_dprs_first_positive_and_hard_negatives_are_read_with_their_titles(write_text):
    dog, cat = {"title": "Dog", "text": "Dogs bark."}, {"title": "Cat", "text": "Cats do not."}
    entry = {  # as in biencoder-nq-train.json
        "question": "who barks",
        "answers": ["dogs"],
        "positive_ctxs": [{**dog, "score": 1000, "passage_id": "1"}, cat],
        "negative_ctxs": [{"title": "Sun", "text": "It shines."}],
        "hard_negative_ctxs": [cat, {"title": "", "text": "Trees have bark."}, dog],
    }
    entries = [entry, {**entry, "hard_negative_ctxs": []}]
    first, second = (make(read_dpr(each, CONTRACT.title_separator)) for each in entries)
    assert first["query"] == "q: who barks"
    assert first["positives"] == second["positives"] == ["p: Dog | Dogs bark."]
    assert first["negatives"] == ["p: Cat | Cats do not.", "p: Trees have bark."]
    assert second["negatives"] == ["p: Sun | It shines."]
    # The file is an array, whose first 1,000 entries, here without negatives, do not decide types.
    alone = {**entry, "negative_ctxs": [], "hard_negative_ctxs": []}
    rows = read(write_text(json.dumps([alone] * 1000 + [entry]), "dpr.json"))
    assert rows[0]["negatives"] == [] and rows[1000] == read_dpr(entry, " ")


def test_rows_that_cannot_teach_are_left_out_with_the_reason():
    blank = {"query": None, "positive": "c", "negatives": ["a"]}
    alone = {"query": "q", "positive": "c", "negatives": [" ", "c"]}
    entry = read_dpr({"question": "q", "positive_ctxs": []}, " ")
    reasons = [make(row)["left_out"] for row in (blank, entry, alone)]
    assert reasons == ["rows with a blank text"] * 2 + ["rows without a negative"]
    assert make({"query": "q", "positive": "c"}, objective="triplet") == make(alone)
    for wrong in ({"query": 42}, {"positive": ["a", "b"]}, {"negatives": [{"text": "a"}]}):
        with pytest.raises(ValueError, match="is .*, expected text"):
            make({"query": "q", "positive": "c", **wrong})
    for scores in (None, 3.2, [1.0, None]):
        with pytest.raises(ValueError, match="scores are .*, expected a list of numbers"):
            make({"query": "q", "positive": "c", "negatives": ["a"], "scores": scores}, **KL)
    with pytest.raises(ValueError, match="negatives are 5, expected a list of texts"):
        make({"query": "q", "positive": "c", "negatives": 5})
    with pytest.raises(ValueError, match="negatives are of a collection's queries"):
        make({}, negatives="a.jsonl")
    with pytest.raises(ValueError, match="1 scores for 2 passages"):
        make({"query": "q", "positive": "p", "negative": "n", "scores": [1]}, **KL)


def load(seed: int = 0, **settings: Any) -> TrainingData:
    return load_training_data(FinetuningRecipe("e", **settings), CONTRACT, seed=seed)


@pytest.fixture(scope="module")
def marco(tmp_path_factory):
    """A folder in MS MARCO's layout: 30 passages, of which 28 is a copy of 4; 10 judged queries."""
    folder = tmp_path_factory.mktemp("marco")
    files = {
        "para.txt": [f"{i}\ttext {4 if i == 28 else i}" for i in range(30)],
        "para.title.txt": [f"{i}\t{'-' if i % 2 else f'Title {i}'}" for i in range(30)],
        "train.query.txt": [f"{i}\tquery {i}" for i in range(11)],
        "qrels.train.tsv": [*(f"{i}\t0\t{i}\t1" for i in range(10)), "3\t0\t13\t1", "10\t0\t9\t0"],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def test_each_judged_query_is_an_example_whose_positive_is_drawn_in_each_epoch(marco, tmp_path):
    data = load(collection=str(marco))
    assert len(data.examples) == data.facts["n_examples"] == 10
    label = {"label": [2, 2, 2]}  # the rows of the drawn positive and of all
    assert data.examples[2] == {"query": "q: query 2", "positive": "p: Title 2 | text 2", **label}
    drawn = set()
    for epoch in range(8):
        data.drawn.set_epoch(epoch)
        [row], number = data.examples[3:4]["label"], data.examples[3]["positive"].split()[-1]
        assert row[1:] == [3, 13] and number == str(row[0])
        drawn.add(number)
    assert drawn == {"3", "13"}
    assert len(load(collection=str(marco), train_size=4).examples) == 4
    copy = shutil.copytree(marco, tmp_path / "copy")
    assert load(collection=str(copy)).facts == data.facts
    (copy / "qrels.train.tsv").write_text("1\t0\t2\t1\n")
    other = load(collection=str(copy)).facts
    assert other["passages_fingerprint"] == data.facts["passages_fingerprint"]
    assert other["rows_sha256"] != data.facts["rows_sha256"]


def test_relevant_passages_and_copies_of_the_positive_are_no_negatives(marco, write_text):
    lines = "3\t13,3,20,21\n4\t28,22,23\n5\t5\n10\t1\n99\t1\n\n"
    file = write_text(lines, "train.negatives.tsv")
    data = load(collection=str(marco), negatives=str(file))
    assert [row["label"][1:3] for row in data.examples] == [[20, 21], [22, 23]]
    assert data.examples[0]["negative_1"] == "p: Title 20 | text 20"
    assert data.facts["n_negatives"] == 2
    assert data.facts["left_out"] == {
        "lines of queries that are not in the split": 1,
        "lines of queries without a positive": 1,
        "rows without a negative": 1,
        "judged queries without a line in negatives": 7,
    }


def test_blank_queries_of_a_collection_are_left_out(marco, tmp_path):
    copy = shutil.copytree(marco, tmp_path / "copy")
    queries = [f"{i}\t{' ' if i == 3 else f'query {i}'}" for i in range(11)]
    (copy / "train.query.txt").write_text("\n".join(queries))
    data = load(collection=str(copy))
    assert data.facts["left_out"] == {"rows with a blank text": 1}
    assert len(data.examples) == len(load(collection=str(marco)).examples) - 1


def test_labels_that_are_newer_than_mined_lines_are_taken(marco, write_jsonl):
    file = write_jsonl([{"query_id": "4", "positive_ids": ["6"], "negative_ids": ["20"]}])
    [row] = load(collection=str(marco), negatives=str(file)).examples
    assert row["positive"] == "p: Title 4 | text 4"


def test_scores_of_a_mined_line_come_with_its_positives(marco, write_jsonl):
    """The positives of a collection with answers are found by mining."""
    scores = {"positive_teacher_scores": [9, 8.5], "negative_teacher_scores": [-1, -2.0, -3.5]}
    line = {"query_id": "4", "positive_ids": [4, "6"], "negative_ids": [20, "28", "6"]}
    alone = {"query_id": "5", "positive_ids": ["5"], "positive_teacher_scores": [1]}
    lines = [{**line, **scores}, {**alone, "negative_ids": [], "negative_teacher_scores": []}]
    file = write_jsonl(lines, "mined.txt.jsonl.gz")
    data = load(collection=str(marco), negatives=str(file), objective="kl", n_negatives=2)
    rows = []
    for epoch in range(8):
        data.drawn.set_epoch(epoch)
        rows += list(data.examples)
    assert list(rows[0]) == ["query", "positive", "negative_1", "negative_2", "label"]
    # 28 has the text of 4, so that it is no negative of either positive.
    drawn = {(row["positive"].split()[-1], *row["label"]) for row in rows}
    assert drawn == {("4", 9.0, -1.0, -1.0), ("6", 8.5, -1.0, -1.0)}
    missing = {"judged queries without a line in negatives": 8}
    assert data.facts["left_out"] == {"rows without a negative": 1, **missing}
    for lines, message in (
        (
            [{"query_id": "4", "negative_ids": ["5"]}],
            "scores, but the file has none",
        ),
        ([{"query_id": "4", "negative_ids": ["p99"]}], "no passage 'p99'"),
        ([{"query_id": "4", "negative_ids": "20"}], "line 1, has query_id, negative_ids; expected"),
        ([{"query": "a", "negatives": ["b"]}], "has query, negatives; .* texts are data, not"),
        ([{**line, "negative_teacher_scores": 0.5}], "teacher_scores is 0.5, expected a list"),
        ([{**line, "negative_teacher_scores": [1]}], "3 negative_ids have 1 negative_teacher_sco"),
        ([{**line, "negative_teacher_scores": [1, 2, 3]}], "scores, but the file has none"),
    ):
        objective = "kl" if "the file has none" in message else "contrastive"
        file = write_jsonl(lines)
        with pytest.raises(ValueError, match=message):
            load(collection=str(marco), negatives=str(file), objective=objective)


def test_columns_are_named_and_a_changed_file_is_read_anew(write_text):
    settings = {"columns": ["query", "positive"]}
    file = write_text("".join(f"q{i}\tp{i}\n" for i in range(5)), "pairs.tsv")
    assert len(load(data=str(file), **settings).examples) == 5
    write_text("other\tp\n", "pairs.tsv")
    assert load(data=str(file), **settings).examples[0]["query"] == "q: other"
    # The labels of `condenser collect` need no names.
    file = write_text("question,passage,file\nwhy,because,\nwhere,,a.md\n", "labels.csv")
    data = load(data=str(file))
    assert data.examples[:] == {"query": ["q: why"], "positive": ["p: because"]}
    assert data.facts["left_out"] == {"rows with a blank text": 1}
    file = write_text("who,text\nq,p\n", "named.csv")
    assert load(data=str(file), columns={"query": "who", "positive": "text"}).facts["n_examples"]
    with pytest.raises(ValueError, match="has no column 'query'; its columns are who, text"):
        load(data=str(file))
    with pytest.raises(ValueError, match="no training example .*'rows with a blank text': 1"):
        load(data=str(write_text(" \tp\n", "blank.tsv")), **settings)


def test_the_subsets_of_one_seed_are_nested_and_in_the_order_of_the_data(write_jsonl):
    file = str(write_jsonl([{"query": f"q{i}", "positive": "p"} for i in range(200)]))
    subsets = [
        load(data=file, train_size=n, subset_seed=5).examples["query"][:] for n in (20, 40, 100)
    ]
    assert [len(subset) for subset in subsets] == [20, 40, 100]
    assert set(subsets[0]) < set(subsets[1]) < set(subsets[2])
    places = [int(query.removeprefix("q: q")) for query in subsets[1]]
    assert places == sorted(places)


POOL = [f"n{i:02}" for i in range(20)]
ROWS = [{"query": f"q{i}", "positive": "p", "negatives": POOL} for i in range(100)]
FEW = {"query": "few", "positive": "p", "negatives": ["a", "b"]}


def test_a_draw_depends_on_seed_epoch_and_row_alone(write_jsonl):
    file = str(write_jsonl([*ROWS, FEW]))
    with pytest.raises(ValueError, match="have from 2 to 20 negatives: set n_negatives"):
        load(data=file)
    settings = {"data": file, "n_negatives": 4}
    data = load(**settings)
    first = data.examples[:]
    rows = list(zip(*(first[f"negative_{i}"] for i in (1, 2, 3, 4)), strict=True))
    assert all(len(set(row)) == 4 for row in rows[:100])
    assert sorted(rows[100]) == ["p: a", "p: a", "p: b", "p: b"]  # all before any twice
    part = load(**settings, train_size=9).examples[:]
    places = [first["query"].index(query) for query in part["query"]]
    assert part["negative_3"] == [first["negative_3"][place] for place in places]
    data.drawn.set_epoch(1)
    assert data.drawn._epoch.is_shared()  # with persistent workers, which started before the epoch
    for other in (data, load(seed=1, **settings)):
        pairs = zip(first["negative_1"], other.examples[:]["negative_1"], strict=True)
        assert sum(a != b for a, b in pairs) > 70


def test_scores_follow_the_drawn_negatives():
    scores = [[7.0, *map(float, range(20))]]
    row = {"query": ["q"], "positives": [["p"]], "negatives": [POOL], "row_number": [7]}
    drawn = DrawnPassages(3, seed=0, contract=CONTRACT)({**row, "scores": scores})
    assert list(drawn) == ["query", "positive", "negative_1", "negative_2", "negative_3", "label"]
    chosen = [float(drawn[f"negative_{i}"][0][1:]) for i in (1, 2, 3)]
    assert drawn["label"] == [[7.0, *chosen]]
