"""Folders whose README.md declares tables, laid out as the data sets of MTEB and BEIR."""

import shutil
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset

from modeling_condenser.collection.configured import read_configs
from modeling_condenser.collection.load import load_collection, load_passages

from .conftest import CORPUS, QRELS, QUERIES, write_lines

Rows = Sequence[dict[str, Any]]
MTEB_QRELS = [
    {"query-id": query_id, "corpus-id": passage_id, "score": float(grade)}
    for query_id, passage_id, grade in (line.split("\t") for line in QRELS)
]
EXPECTED_QRELS = {"q1": {"p1": 2, "p2": 0}, "q2": {"p2": 1}}


def write_repository(folder: Path, configs: dict[str, dict[str, Rows]]) -> Path:
    """Parquet files, and a README.md that says which are which: config -> split -> rows."""
    declared = []
    for config, splits in configs.items():
        files = []
        for split, rows in splits.items():
            path = f"{config}/{split}-00000-of-00001.parquet"
            (folder / config).mkdir(parents=True, exist_ok=True)
            Dataset.from_list(list(rows)).to_parquet(folder / path)
            files.append({"split": split, "path": path})
        declared.append({"config_name": config, "data_files": files})
    header = yaml.safe_dump({"configs": declared})
    (folder / "README.md").write_text(f"---\n{header}---\n# A data set\n")
    return folder


def write_mteb(folder: Path, **changes: dict[str, Rows]) -> Path:
    configs = {
        "corpus": {"corpus": CORPUS},
        "queries": {"queries": QUERIES},
        "default": {"test": MTEB_QRELS, "validation": MTEB_QRELS[:1]},
    }
    return write_repository(folder, {**configs, **changes})


def test_mtebs_configurations_are_read_from_a_folder(tmp_path: Path) -> None:
    collection = load_collection(write_mteb(tmp_path / "set"))
    assert collection.passages.to_list() == CORPUS
    assert collection.queries == {"q2": "what do dogs chase?", "q1": "what do cats chase?"}
    assert collection.qrels == EXPECTED_QRELS
    assert collection.name == "set"
    assert load_passages(tmp_path / "set").to_list() == CORPUS


def test_dev_is_what_the_library_calls_validation(tmp_path: Path) -> None:
    assert load_collection(write_mteb(tmp_path / "set"), split="dev").qrels == {"q1": {"p1": 2}}


def test_numbers_as_ids_become_strings_and_a_title_may_be_missing(tmp_path: Path) -> None:
    folder = write_mteb(
        tmp_path / "set",
        corpus={"train": [{"id": 7, "text": "seven"}, {"id": 11, "text": "eleven"}]},
        queries={"train": [{"id": 3, "text": "which?"}]},
        default={"test": [{"query-id": 3, "corpus-id": 11, "score": 1}]},
    )
    collection = load_collection(folder)
    assert collection.passages.to_list() == [
        {"_id": "7", "title": "", "text": "seven"},
        {"_id": "11", "title": "", "text": "eleven"},
    ]
    assert (collection.queries, collection.qrels) == ({"3": "which?"}, {"3": {"11": 1}})


def test_where_each_split_has_a_corpus_of_its_own_it_is_taken(tmp_path: Path) -> None:
    splits = {"train": CORPUS[:1], "test": CORPUS, "dev": CORPUS[:2]}
    folder = write_mteb(tmp_path / "set", corpus=splits)
    assert len(load_collection(folder).passages) == 3
    folder = write_mteb(tmp_path / "other", corpus={"a": CORPUS, "b": CORPUS})
    with pytest.raises(ValueError, match=r"\(corpus\) has no split 'test', expected one of a, b"):
        load_collection(folder)


def test_judgements_may_lie_in_a_data_set_beside(tmp_path: Path) -> None:
    configs: dict[str, dict[str, Rows]] = {
        "corpus": {"corpus": CORPUS},
        "queries": {"queries": QUERIES},
    }
    folder = write_repository(tmp_path / "set", configs)
    with pytest.raises(ValueError, match="no judgements in .*/set or .*/set-qrels: expected"):
        load_collection(folder)
    write_lines(tmp_path / "set-qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *QRELS])
    assert load_collection(folder).qrels == EXPECTED_QRELS
    with pytest.raises(ValueError, match="set-qrels has no split 'train', expected one of test"):
        load_collection(folder, split="train")
    shutil.rmtree(tmp_path / "set-qrels")
    write_repository(tmp_path / "set-qrels", {"default": {"test": MTEB_QRELS}})
    assert load_collection(folder).qrels == EXPECTED_QRELS


def test_queries_with_answers_need_no_judgements(tmp_path: Path) -> None:
    queries = [{**query, "answers": ["a", "b"][:i]} for i, query in enumerate(QUERIES)]
    folder = write_repository(
        tmp_path / "set", {"corpus": {"train": CORPUS}, "queries": {"train": queries}}
    )
    collection = load_collection(folder)
    assert collection.answers == {"q1": ("a",), "q3": ("a", "b")}
    assert collection.qrels == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": {"corpus": [*CORPUS, CORPUS[0]]}}, r"\(corpus\):4: id 'p1' stands on line 1"),
        (
            {"corpus": {"corpus": [{"_id": date(2020, 1, 1), "text": "x"}]}},
            r"\(corpus\):1: '_id' is datetime.date",
        ),
        (
            {"corpus": {"corpus": [{"_id": "a", "body": "x"}]}},
            r"\(corpus\) has the columns _id, body, expected _id, text: text is missing",
        ),
        ({"queries": {"queries": [*QUERIES, QUERIES[0]]}}, r"\(queries\):4: id 'q2' stands on an"),
        (
            {"default": {"test": [*MTEB_QRELS, {**MTEB_QRELS[0], "score": 0.5}]}},
            r"\(judgements\):4: the grade is 0.5",
        ),
        (
            {"default": {"test": [{**MTEB_QRELS[0], "corpus-id": "p9"}]}},
            r"\(judgements of test\) names 1 ids that .*\(corpus\) lacks, such as 'p9'",
        ),
        ({"default": {"train": MTEB_QRELS}}, "has no split 'test', expected one of train"),
        (
            {"default": {"test": [{"qid": "q1", "corpus-id": "p1", "score": 1}]}},
            r"\(judgements\) has the columns qid, corpus-id, score, expected query-id, corpus-id",
        ),
    ],
)
def test_broken_tables_are_refused_with_the_row(
    tmp_path: Path, changes: dict[str, dict[str, Rows]], message: str
) -> None:
    folder = write_mteb(tmp_path / "set", **changes)
    with pytest.raises(ValueError, match=message):
        load_collection(folder)


def test_configurations_of_another_layout_are_named(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "set", {"corpus": {"train": CORPUS}})
    with pytest.raises(ValueError, match="has the configurations corpus, expected queries or quer"):
        load_collection(folder)


def test_the_files_of_each_configuration_are_read_in_all_their_spellings(tmp_path: Path) -> None:
    configs = [
        {"config_name": "corpus", "data_files": "corpus/*.parquet"},
        {"config_name": "queries", "data_files": ["a.jsonl", "b.jsonl"]},
        {
            "config_name": "qrels",
            "data_files": [
                {"split": "test", "path": "qrels/test.tsv"},
                {"split": "dev", "path": ["qrels/dev1.tsv", "qrels/dev2.tsv"]},
            ],
        },
        {"config_name": "other", "data_dir": "some/"},
    ]
    (tmp_path / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
    assert read_configs(tmp_path) == {
        "corpus": ["corpus/*.parquet"],
        "queries": ["a.jsonl", "b.jsonl"],
        "qrels": ["qrels/test.tsv", "qrels/dev1.tsv", "qrels/dev2.tsv"],
        "other": ["some/*"],
    }
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    assert read_configs(tmp_path) == {}
    assert read_configs(tmp_path / "absent") == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("corpus.jsonl", ""),
        ("corpus.jsonl", "\n"),
        ("corpus.jsonl", '{"_id": "a", "te'),
        ("corpus.csv", ""),
        ("corpus.csv", "_id,title,text\n"),
        ("corpus.parquet", ""),
        ("absent.parquet", None),
    ],
)
def test_empty_damaged_and_missing_files_are_said_to_be_so(
    tmp_path: Path, name: str, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / name).write_text(content)
    header = {"configs": [{"config_name": "corpus", "data_files": f"data/{name}"}]}
    (tmp_path / "README.md").write_text(f"---\n{yaml.safe_dump(header)}---\n")
    message = r"\(corpus\) cannot be read .*, expected files that are there, whole, and hold"
    with pytest.raises(ValueError, match=message):
        load_passages(tmp_path)


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    folder = write_mteb(tmp_path / "set")
    file = folder / "corpus" / "corpus-00000-of-00001.parquet"
    Dataset.from_list(CORPUS).select([]).to_parquet(file)
    with pytest.raises(ValueError, match=r"\(corpus\) (holds no passage|cannot be read)"):
        load_passages(folder)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("configs: [oops", "not YAML .*oops"),
        ("configs: text", "configs is 'text', expected a list"),
    ],
)
def test_a_broken_header_is_refused(tmp_path: Path, header: str, message: str) -> None:
    (tmp_path / "README.md").write_text(f"---\n{header}\n---\n")
    with pytest.raises(ValueError, match=f"README.md: .*{message}"):
        load_passages(tmp_path)
