"""Collections of every layout, in a folder and on the Hub."""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from huggingface_hub.constants import HF_HUB_CACHE

from modeling_condenser.collection.load import (
    load_collection,
    load_dev,
    load_passages,
    load_reported,
    resolve_collection_name,
)
from tests.publishing.making import declare_tables

Files = Mapping[str, Sequence[str]]


def to_json(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [json.dumps(row) for row in rows]


# Passages as (id, title, text), and all questions.
ANIMALS = [("p1", "Cats", "Cats chase mice."), ("p2", "", "Dogs chase cats."), ("3", "T", "Trains")]
WHO = {"q2": "what do dogs chase?", "q1": "what do cats chase?", "q3": "when do trains leave?"}
CORPUS = [dict(zip(("_id", "title", "text"), passage, strict=True)) for passage in ANIMALS]
QUERIES = [{"_id": query_id, "text": text} for query_id, text in WHO.items()]
QRELS = ["query-id\tcorpus-id\tscore", "q1\tp1\t2", "q1\tp2\t0", "q2\tp2\t1"]
GRADES = {"q2": {"p2": 1}, "q1": {"p1": 2, "p2": 0}}
BEIR = {
    "corpus.jsonl": to_json(CORPUS),
    "queries.jsonl": to_json(QUERIES),
    "qrels/test.tsv": QRELS,
    "qrels/dev.jsonl": ['{"query-id": "q1", "corpus-id": "p1", "score": 2.0}'],
}
QUOTED = [("0", "", 'The "Manhattan" project'), ("1", "", ""), ("10", "", "It said \"yes\" 'no'")]
TITLED = [(name, 'A "title"' if name == "0" else "", text) for name, _, text in QUOTED]
WHAT = {"300": "what was it?", "7": "who said yes?", "8": 'an "unjudged" one'}
TEXT_LINES = [f"{passage_id}\t{text}" for passage_id, _, text in QUOTED]
QUERY_LINES = [f"{query_id}\t{text}" for query_id, text in WHAT.items()]
MARCO = {
    "collection.tsv": TEXT_LINES,
    "queries.dev.small.tsv": QUERY_LINES,
    "qrels.dev.small.tsv": ["7\t0\t10\t1", "300\t0\t0\t1"],
    "msmarco-test2019-queries.tsv": QUERY_LINES,
    "2019qrels-pass.txt": ["8 Q0 0 3", "8 Q0 10 0", "300 Q0 10 2"],
}
ROCKETQA = {
    "para.txt": TEXT_LINES,
    "para.title.txt": ['0\tA "title"', "10\t-"],  # a hyphen is no title, and 1 is left out
    "dev.query.txt": QUERY_LINES,  # also those of dev.small
    "qrels.dev.tsv": ["7\t10", "300\t0", "300\t1"],
    "qrels.dev.small.tsv": ["7 0 10 1"],
}
DOCUMENTS = {
    "msmarco-docs.tsv": [f"{name}\thttps://a.b\t{title}\t{text}" for name, title, text in TITLED],
    "msmarco-docdev-queries.tsv": QUERY_LINES,
    "msmarco-docdev-qrels.tsv": ["7 0 10 1"],
    "msmarco-test2019-queries.tsv": QUERY_LINES,
    "2019qrels-docs.txt": ["300 Q0 0 3"],
}
DPR = {
    "psgs_w100.tsv": [  # the first two lines are DPR's
        "id\ttext\ttitle",
        '1\t"Aaron Aaron ( or ; ""Ahärôn"") is a prophet"\tAaron',
        '2\t"two\nlines, and a\ttab"\t"""Heroes"" (album)"',
    ],
    "nq-test.qa.csv": [
        "who got it first\t['Wilhelm Conrad Röntgen']",
        'what is it called\t"[\'the ""Stone""\', ""it\'s""]"',
        'who got it first\t["a list as JSON\'s"]',
    ],
}


def write(folder: Path, files: Files, ending: str = "") -> Path:
    for name, lines in files.items():
        path = folder / f"{name}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return folder


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("files", "split", "passages", "questions", "qrels"),
    [
        (BEIR, "test", ANIMALS, WHO, GRADES),
        (BEIR, "dev", ANIMALS, WHO, {"q1": {"p1": 2}}),
        (MARCO, "dev.small", QUOTED, WHAT, {"300": {"0": 1}, "7": {"10": 1}}),
        (MARCO, "dl19", QUOTED, WHAT, {"300": {"10": 2}, "8": {"0": 3, "10": 0}}),
        (ROCKETQA, "dev", TITLED, WHAT, {"300": {"0": 1, "1": 1}, "7": {"10": 1}}),
        (ROCKETQA, "dev.small", TITLED, WHAT, {"7": {"10": 1}}),
        (DOCUMENTS, "dev", TITLED, WHAT, {"7": {"10": 1}}),
        (DOCUMENTS, "dl19", TITLED, WHAT, {"300": {"0": 3}}),
    ],
)
def test_a_split_holds_all_passages_and_the_judged_queries(
    tmp_path, files, split, passages, questions, qrels, ending
):
    collection = load_collection(write(tmp_path / "c", files, ending), split=split)
    assert [tuple(row.values()) for row in collection.passages] == passages
    assert list(collection.queries.items()) == [(key, questions[key]) for key in qrels]
    assert list(collection.qrels.items()) == list(qrels.items())
    assert (collection.answers, collection.name) == ({}, "c")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_dprs_questions_are_judged_by_their_answers(tmp_path, ending):
    collection = load_collection(write(tmp_path, DPR, ending), split="nq-test")
    assert collection.passages.to_list() == [
        {"_id": "1", "title": "Aaron", "text": 'Aaron Aaron ( or ; "Ahärôn") is a prophet'},
        {"_id": "2", "title": '"Heroes" (album)', "text": "two\nlines, and a\ttab"},
    ]
    questions = ["who got it first", "what is it called", "who got it first"]
    assert collection.queries == dict(zip("012", questions, strict=True))
    answers = [("Wilhelm Conrad Röntgen",), ('the "Stone"', "it's"), ("a list as JSON's",)]
    assert (collection.answers, collection.qrels) == (dict(zip("012", answers, strict=True)), {})


def test_judged_queries_may_have_answers(tmp_path):
    queries = [{**query, "answers": [f"answer {i}"]} for i, query in enumerate(QUERIES)]
    folder = write(tmp_path, {**BEIR, "queries.jsonl": to_json(queries)})
    assert load_collection(folder).answers == {"q2": ("answer 0",), "q1": ("answer 1",)}


def test_ids_and_texts_are_read_as_they_are(tmp_path):
    corpus: list[dict[str, Any]] = [
        {"_id": "2020-01-01", "text": "a date as an id"},
        {"_id": "007", "title": None, "text": "zeros in front", "url": "dropped"},
        {"_id": 12, "title": "T", "text": 'a "quoted" word\u2028and\x0b\r separators'},
    ]
    passages = load_passages(write(tmp_path, {"corpus.jsonl": to_json(corpus)}))
    assert passages["_id"][:] == ["2020-01-01", "007", "12"]
    assert passages["title"][:] == ["", "", "T"]
    assert passages["text"][:] == [record["text"] for record in corpus]


def test_a_null_text_is_blank_and_counted(tmp_path, caplog):
    passages = [{"_id": "a", "title": "T", "text": None}, {"_id": "b", "text": None}]
    folder = write(tmp_path / "files", {"corpus.jsonl": to_json(passages)})
    rows = [{"title": None, **row} for row in passages]
    for place in (folder, write_tables(tmp_path / "tables", corpus={"corpus": rows})):
        caplog.clear()
        assert load_passages(place)["text"][:] == ["", ""]
        assert "1 passages have neither a title nor a text" in caplog.text


def test_hidden_files_are_no_judgements(tmp_path):
    hidden = {"qrels/._test.tsv": ["\0"], "qrels/.ipynb_checkpoints/test-checkpoint.tsv": ["x"]}
    folder = write(tmp_path, {**BEIR, **hidden})
    with pytest.raises(ValueError, match="it has judgements for dev, test"):
        load_collection(folder, split="train")


CALL = "who?\t__import__('os').abort()"


@pytest.mark.parametrize(
    ("files", "split", "name", "lines", "message"),
    [
        (BEIR, "test", "corpus.jsonl", [], "corpus.jsonl: there are no passages"),
        (BEIR, "test", "corpus.jsonl", ['{"_id": "p1", "te'], "jsonl:1: .* is not JSON"),
        (BEIR, "test", "corpus.jsonl", ['{"_id": 1.5}'], "the id _id or id is 1.5, expected text"),
        (BEIR, "test", "corpus.jsonl", ['{"_id": "1", "txt": "a"}'], "None.*, expected three text"),
        (BEIR, "test", "corpus.jsonl", ['{"_id": "p 1", "text": "a"}'], "passage 1 is 'p 1', exp"),
        (BEIR, "test", "corpus.jsonl", to_json(CORPUS * 2), "3 passages .* the first is passage 4"),
        (BEIR, "test", "qrels/test.tsv", [QRELS[0], "q1\tp9\t1"], "1 of 1 judged .* as 'p9'"),
        (BEIR, "test", "qrels/test.tsv", [*QRELS, "q1\tp1\t0"], "two grades .* 'q1', 2 and 0: ke"),
        (BEIR, "test", "queries.jsonl", to_json(QUERIES * 2), "test: two queries have the id 'q2'"),
        (MARCO, "dev.small", "collection.tsv", ["0\ta", "1"], "row 2 has 1 fields, expected 2"),
        (DPR, "nq-test", "nq-test.qa.csv", [CALL], "row 1 are .__import__.*, expected a list"),
        (DPR, "nq-dev", "a", [], "has no nq-dev.qa.csv or nq-dev.csv .*holds a, nq-test.qa.csv"),
    ],
)
def test_a_broken_collection_is_refused(tmp_path, files, split, name, lines, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_collection(write(tmp_path, {**files, name: lines}), split=split)


def write_tables(folder: Path, **changes: Any) -> Path:
    """Write parquet files, and a README.md that declares them: table -> split -> rows."""
    grades = [
        (query, passage, float(g)) for query in GRADES for passage, g in GRADES[query].items()
    ]
    qrels = [dict(zip(QRELS[0].split("\t"), row, strict=True)) for row in grades]
    tables: dict[str, Any] = {"corpus": {"corpus": CORPUS}, "queries": {"queries": QUERIES}}
    tables["default"] = {"test": qrels, "validation": qrels[:1]}
    declared: dict[str, dict[str, str]] = {}
    for table, splits in {**tables, **changes}.items():
        for split, rows in splits.items():
            file = folder / table / f"{split}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            Dataset.from_list(rows).to_parquet(file)
            declared.setdefault(table, {})[split] = f"{table}/{split}.parquet"
    declare_tables(folder, declared)
    return folder


def test_tables_are_read_as_readme_declares_them(tmp_path):
    folder = write_tables(tmp_path / "set")
    collection = load_collection(folder)
    assert collection.passages.to_list() == CORPUS == load_passages(folder).to_list()
    assert collection.queries == {key: WHO[key] for key in GRADES}
    assert collection.qrels == GRADES
    # `datasets` calls the split "dev" validation.
    assert load_collection(folder, split="dev").qrels == {"q2": {"p2": 1}}
    # Files come before tables, and BEIR's before those of other layouts.
    write(folder, {"corpus.jsonl": to_json(CORPUS[:2]), "collection.tsv": ["0\tother"]})
    assert load_passages(folder).to_list() == CORPUS[:2]


def test_numbers_as_ids_become_text_and_a_split_may_have_a_corpus_of_its_own(tmp_path):
    corpus = [{"id": 7, "text": "seven"}, {"id": 11, "text": "eleven"}]
    folder = write_tables(
        tmp_path / "set",
        corpus={"train": corpus[:1], "test": corpus},
        queries={"train": [{"id": 3, "text": "which?"}]},
        default={"test": [{"query-id": 3, "corpus-id": 11, "score": 1}]},
    )
    collection = load_collection(folder)
    assert collection.passages["_id"][:] == ["7", "11"]
    assert (collection.queries, collection.qrels) == ({"3": "which?"}, {"3": {"11": 1}})


def test_judgements_without_a_grade_are_relevant_as_in_nanobeir(tmp_path):
    folder = write_tables(
        tmp_path / "set", default={"test": [{"query-id": "q1", "corpus-id": "p1"}]}
    )
    assert load_collection(folder).qrels == {"q1": {"p1": 1}}
    row = {"query-id": "q1", "corpus-id": "p1", "relevance": 0}  # grades, by another name
    with pytest.raises(ValueError, match="the grade of passage 'p1' for query 'q1' is None"):
        load_collection(write_tables(tmp_path / "other", default={"test": [row]}))


def test_judgements_may_be_in_a_second_folder(tmp_path, monkeypatch):
    folder = write_tables(tmp_path / "set", default={})
    with pytest.raises(ValueError, match="no query has judgements or answers"):
        load_collection(folder)
    write(tmp_path / "set-qrels", {"test.tsv": QRELS})
    assert load_collection(folder).qrels == GRADES
    monkeypatch.chdir(folder)
    assert load_collection(".").qrels == GRADES


def test_a_repository_of_files_is_downloaded_without_other_files(loopback_hub, tmp_path):
    folder = write(tmp_path / "set", {**BEIR, "large.bin": ["not downloaded"]})
    commit = loopback_hub.put(folder, "owner/set", kind="datasets")
    loopback_hub.put(write(tmp_path / "other", {"a.txt": []}), "owner/set", kind="datasets")
    collection = load_collection(f"owner/set@{commit}")
    assert (collection.name, collection.qrels) == ("set", GRADES)
    assert not list(Path(HF_HUB_CACHE).rglob("large.bin"))


def test_a_repository_of_tables_is_downloaded_with_its_second_repository(loopback_hub, tmp_path):
    loopback_hub.put(write_tables(tmp_path / "1"), "owner/whole", kind="datasets")
    loopback_hub.put(write_tables(tmp_path / "2", default={}), "owner/part", kind="datasets")
    with pytest.raises(ValueError, match="no query has judgements"):
        load_collection("owner/part")
    qrels = write_tables(tmp_path / "3", corpus={}, queries={})
    loopback_hub.put(qrels, "owner/part-qrels", kind="datasets")
    for name in ("whole", "part"):
        collection = load_collection(f"owner/{name}")
        assert (collection.name, collection.qrels) == (name, GRADES)
        assert collection.passages.to_list() == CORPUS


def test_a_folder_comes_before_a_hub_name(tmp_path, monkeypatch):
    write(tmp_path / "owner" / "set", BEIR)
    write(tmp_path / "owner" / "other", {"a.txt": []})
    monkeypatch.chdir(tmp_path)
    assert load_collection("owner/set").name == "set"
    for source, message in (
        ("owner/d", "There is no folder 'owner/d', and it cannot be fetched"),
        ("nowhere", "no collection at nowhere, which does not exist: expected a data set on the"),
        ("owner/other", "other, which holds a.txt: .* folder with corpus.jsonl .*DPR"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            load_collection(source)


def test_row_numbers_of_dpr_do_not_make_its_dev_questions_those_of_the_test(tmp_path):
    folder = write(tmp_path / "c", DPR)
    first, *_ = DPR["nq-test.qa.csv"]
    (folder / "dev.csv").write_text(f"who came second\t['x']\n{first}\n")
    reported = load_reported(folder, split="nq-test")
    dev = load_dev(folder, judged="nq-test", reported=reported)
    assert dev is not None and list(dev.queries.values()) == ["who came second"]


def test_of_many_dev_queries_a_part_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("modeling_condenser.collection.load._MOST_DEV", 1)
    folder = write(tmp_path / "c", BEIR)
    judged = "".join(f"{query}\tp1\t1\n" for query in ("q1", "q2"))
    (folder / "qrels" / "dev.jsonl").unlink()
    (folder / "qrels" / "dev.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    drawn = [load_dev(folder, judged="test") for _ in range(2)]
    assert drawn[0] is not None and drawn[1] is not None
    assert len(drawn[0].qrels) == 1 and drawn[0].queries == drawn[1].queries


def test_malformed_dev_queries_are_warned_of_and_missing_ones_are_not(tmp_path, caplog):
    folder = write(tmp_path / "c", BEIR)
    (folder / "qrels" / "dev.jsonl").unlink()
    assert load_dev(folder, judged="test") is None and "cannot be read" not in caplog.text
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nabsent\tp1\t1\n")
    assert load_dev(folder, judged="test") is None
    assert "are not used, because they cannot be read: " in caplog.text
    assert "1 judged queries are not in the collection, such as 'absent'" in caplog.text


def test_a_folder_named_like_the_bundled_collection_comes_first(tmp_path, monkeypatch):
    write(tmp_path / "health", BEIR)
    monkeypatch.chdir(tmp_path)
    assert load_collection("health").qrels == GRADES


def test_the_collection_that_comes_with_the_package_is_what_its_card_says():
    card = Path(resolve_collection_name("health"), "README.md").read_text()
    diseases = {}
    for split in ("train", "dev", "test"):
        loaded = load_collection("health", split=split)
        assert f"| {split} | {len(loaded.queries):,} |" in card
        assert loaded.name == "health"
        titles = dict(zip(loaded.passages["_id"], loaded.passages["title"], strict=True))
        diseases[split] = {titles[p].casefold() for q in loaded.qrels.values() for p in q}
    assert f"{len(loaded.passages):,} answers" in card and "license: cc-by-4.0" in card
    # Each disease is in one split.
    assert sum(map(len, diseases.values())) == len(set().union(*diseases.values()))
    dev = load_collection("health", split="dev")
    assert load_dev("health", judged="test").queries == dev.queries
