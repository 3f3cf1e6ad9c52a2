"""Loading BEIR folders, sound and broken."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from modeling_condenser.collection.beir import load_beir_collection as load_collection
from modeling_condenser.collection.beir import load_beir_passages

from .conftest import CORPUS, QRELS, QUERIES, write_beir, write_jsonl, write_lines


def test_a_split_holds_all_passages_and_the_judged_queries(tmp_path: Path) -> None:
    collection = load_collection(write_beir(tmp_path / "c"))
    assert collection.passages.to_list() == CORPUS
    assert collection.queries == {"q2": "what do dogs chase?", "q1": "what do cats chase?"}
    assert collection.qrels == {"q1": {"p1": 2, "p2": 0}, "q2": {"p2": 1}}
    assert list(collection.queries) == list(collection.qrels) == ["q2", "q1"]
    assert collection.answers == {}
    assert collection.name == "c"


def test_further_columns_are_dropped(tmp_path: Path) -> None:
    corpus = [{**record, "metadata": {"url": "x"}} for record in CORPUS]
    collection = load_collection(str(write_beir(tmp_path / "c", corpus=corpus)))
    assert collection.passages.column_names == ["_id", "title", "text"]


def test_compressed_files_are_read_as_plain_ones(tmp_path: Path) -> None:
    plain = load_collection(write_beir(tmp_path / "plain"))
    folder = tmp_path / "zipped"
    write_jsonl(folder / "corpus.jsonl.gz", CORPUS)
    write_jsonl(folder / "queries.jsonl.gz", QUERIES)
    write_lines(folder / "qrels" / "test.tsv.gz", ["query-id\tcorpus-id\tscore", *QRELS])
    zipped = load_collection(folder)
    assert zipped.passages.to_list() == plain.passages.to_list()
    assert (zipped.queries, zipped.qrels) == (plain.queries, plain.qrels)


def test_judgements_may_be_json_lines_with_grades_like_mtebs(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "c")
    rows = [("q1", "p1", 2.0), ("q3", "3", 1)]
    write_jsonl(
        folder / "qrels" / "dev.jsonl",
        [{"query-id": q, "corpus-id": p, "score": score} for q, p, score in rows],
    )
    qrels = load_collection(folder, split="dev").qrels
    assert qrels == {"q1": {"p1": 2}, "q3": {"3": 1}}
    assert all(type(grade) is int for grades in qrels.values() for grade in grades.values())


def test_a_title_may_be_missing_and_ids_are_spelt_as_they_stand(tmp_path: Path) -> None:
    corpus = [
        {"_id": "2020-01-01", "text": "a date as an id"},
        {"_id": "007", "title": None, "text": "zeros in front"},
        {"_id": 12, "title": "T", "text": 'a "quoted" word\u2028and\x0b\r separators'},
    ]
    passages = load_beir_passages(write_beir(tmp_path / "c", corpus=corpus))
    assert passages["_id"][:] == ["2020-01-01", "007", "12"]
    assert passages["title"][:] == ["", "", "T"]
    assert passages[2]["text"] == 'a "quoted" word\u2028and\x0b\r separators'


def test_queries_with_answers_need_no_judgements(tmp_path: Path) -> None:
    folder = write_beir(
        tmp_path / "c",
        queries=[
            {"_id": "a", "text": "who?", "answers": ["Ann", "Ann Lee"]},
            {"_id": "b", "text": "where?", "answers": []},
            {"_id": "c", "text": "when?", "answers": ["1999"]},
        ],
    )
    (folder / "qrels" / "test.tsv").unlink()
    collection = load_collection(folder, split="dev")
    assert collection.queries == {"a": "who?", "c": "when?"}
    assert collection.answers == {"a": ("Ann", "Ann Lee"), "c": ("1999",)}
    assert collection.qrels == {}


def test_a_split_without_judgements_is_the_answered_queries_of_no_other_split(
    tmp_path: Path,
) -> None:
    queries = [{**query, "answers": [f"answer {i}"]} for i, query in enumerate(QUERIES)]
    folder = write_beir(tmp_path / "c", queries=queries)
    judged, answered = load_collection(folder), load_collection(folder, split="dev")
    assert judged.answers == {"q2": ("answer 0",), "q1": ("answer 1",)}
    assert list(judged.qrels) == ["q2", "q1"]
    assert answered.answers == {"q3": ("answer 2",)}
    assert answered.qrels == {}


def test_an_unknown_split_is_answered_with_those_there_are(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "c")
    (folder / "qrels" / "dev.tsv").write_text("")
    with pytest.raises(ValueError, match="no split 'train', expected one of dev, test"):
        load_collection(folder, split="train")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("corpus.jsonl", "no corpus.jsonl in"),
        ("queries.jsonl", "no queries.jsonl in"),
        ("qrels/test.tsv", "expected qrels/<split>.tsv, or queries with"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, missing: str, message: str) -> None:
    folder = write_beir(tmp_path / "c")
    (folder / missing).unlink()
    with pytest.raises(FileNotFoundError, match=message):
        load_collection(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no collection at .*absent"):
        load_collection(tmp_path / "absent")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": []}, "corpus.jsonl holds no passage, expected at least one"),
        ({"queries": []}, "queries.jsonl holds no query, expected at least one"),
        (
            {"corpus": [{"id": "p1", "title": "", "text": "x"}]},
            "corpus.jsonl:1: '_id' is missing; there is id, title, text: rename 'id'",
        ),
        (
            {"queries": [*QUERIES, {"_id": "q9", "texts": "x"}]},
            "queries.jsonl:4: 'text' is missing; there is _id, texts: rename 'texts'",
        ),
        (
            {"corpus": [*CORPUS, {"_id": 1.5, "title": "", "text": "x"}]},
            r"corpus.jsonl:4: '_id' is 1.5 \(float\), expected an id",
        ),
        (
            {"corpus": [{"_id": True, "title": "", "text": "x"}]},
            r"corpus.jsonl:1: '_id' is True \(bool\), expected an id",
        ),
        (
            {"corpus": [{"_id": "", "title": "", "text": "x"}]},
            r"corpus.jsonl:1: '_id' is '' \(str\), expected an id",
        ),
        (
            {"corpus": [*CORPUS, {"_id": "p4", "title": "", "text": None}]},
            "corpus.jsonl:4: 'text' is null, expected a string",
        ),
        (
            {"corpus": [*CORPUS, {"_id": "p4", "title": 7, "text": "x"}]},
            r"corpus.jsonl:4: 'title' is 7 \(int\), expected a string",
        ),
        (
            {"corpus": [*CORPUS, CORPUS[1]]},
            "corpus.jsonl:4: id 'p2' stands on line 2 too, and 1 ids stand on several lines",
        ),
        ({"queries": [*QUERIES, QUERIES[0]]}, "queries.jsonl:4: id 'q2' stands on an earlier line"),
        (
            {"queries": [{**QUERIES[0], "answers": "Ann"}]},
            r"queries.jsonl:1: the answers are 'Ann' \(str\), expected a list of strings",
        ),
        (
            {"queries": [{**QUERIES[0], "answers": ["Ann", " "]}]},
            "queries.jsonl:1: an answer is blank",
        ),
        (
            {"qrels": [*QRELS, "q1\tp9\t1", "q1\tp8\t1"]},
            "qrels/test.tsv names 2 ids that .*corpus.jsonl lacks, such as 'p8'",
        ),
        (
            {"qrels": [*QRELS, "q9\tp1\t1"]},
            "qrels/test.tsv names 1 ids that .*queries.jsonl lacks, such as 'q9'",
        ),
        (
            {"qrels": [*QRELS, "q1\tp1\t1"]},
            "test.tsv:5: query 'q1' judges passage 'p1' a second time, 1 after 2",
        ),
        ({"qrels": ["q1 p1 1"]}, "test.tsv:2: .* separated by tabs: mend the line"),
        ({"qrels": ["q1\tp1"]}, "test.tsv:2: .* separated by tabs: mend the line"),
        ({"qrels": ["q1\tp1\thigh"]}, r"test.tsv:2: the grade is 'high' \(str\), .*whole number"),
        ({"qrels": ["q1\tp1\t0.5"]}, "test.tsv:2: the grade is '0.5'"),
        ({"qrels": ["q1\tp1\tnan"]}, "test.tsv:2: the grade is 'nan'"),
        ({"qrels": []}, "test.tsv judges no query"),
        ({"header": "q1\tp1\t1"}, "test.tsv:1: header .* expected .'query-id'"),
    ],
)
def test_a_broken_collection_is_refused(
    tmp_path: Path, changes: dict[str, Sequence[dict[str, object]]], message: str
) -> None:
    folder = write_beir(tmp_path / "c", **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        load_collection(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "corpus.jsonl holds no passage"),
        (b"\n\n", "corpus.jsonl holds no passage"),
        (b'{"_id": "p1", "text": "x"}\n{"_id": "p2", "te', r"corpus.jsonl:2: not JSON \(Unterm"),
        (b'["p1", "x"]\n', "corpus.jsonl:1: a JSON list, expected one object a line"),
        (b'\n{"_id": "p1", "text": "caf\xe9"}\n', "corpus.jsonl:2: byte 0xe9 at 27 is not UTF-8"),
        (b'{"_id": "p1", "text": "\\ud83d"}\n', "corpus.jsonl:1: holds half of a surrogate pair"),
    ],
)
def test_a_file_that_is_no_json_in_utf_8_is_refused_with_its_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    folder = write_beir(tmp_path / "c")
    (folder / "corpus.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_beir_passages(folder)


def test_whole_surrogate_pairs_and_byte_order_marks_are_fine(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "c")
    record = json.dumps({"_id": "p1", "text": "a \U0001f600"})
    assert "\\ud83d" in record
    (folder / "corpus.jsonl").write_bytes(b"\xef\xbb\xbf" + record.encode() + b"\r\n")
    assert load_beir_passages(folder)[0] == {"_id": "p1", "title": "", "text": "a \U0001f600"}


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "c")
    (folder / "corpus.jsonl").unlink()
    path = write_jsonl(folder / "corpus.jsonl.gz", CORPUS)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ValueError, match="corpus.jsonl.gz is damaged behind line"):
        load_beir_passages(folder)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(ValueError, match="corpus.jsonl.gz is damaged behind line 0"):
        load_beir_passages(folder)


def test_a_repeated_judgement_is_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_beir(tmp_path / "c", qrels=[*QRELS, QRELS[0]])
    with caplog.at_level(logging.WARNING):
        assert load_collection(folder).qrels == {"q1": {"p1": 2, "p2": 0}, "q2": {"p2": 1}}
    assert "1 lines repeat a judgement" in caplog.text
