"""The script that is published with a model, where nothing else of this project is."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from modeling_condenser.publishing import evaluate_retrieval
from modeling_condenser.publishing.provenance import RESULTS_FILE
from modeling_condenser.retrieval.runs import read_run
from tests.evaluation.making import evaluate_system
from tests.publishing.making import declare_tables, run_isolated, write_collection

RUN = """
import runpy

folder, collection = sys.argv[1:]
sys.argv = ["evaluate_retrieval.py", collection]
try:
    runpy.run_path(f"{folder}/evaluate_retrieval.py", run_name="__main__")
except SystemExit as end:
    assert end.code == 0
"""
MEASURES = [
    *"MRR@10 MRR nDCG@10 nDCG R@5 MAP MAP@10 R-Prec P@5 Success@3 MRR(rel=2)@10".split(),
    *["R(rel=2)@20", *(["ERR@10"] if shutil.which("perl") else [])],
]


def parse(output: str) -> dict[str, tuple[str, ...]]:
    """Measure -> what is printed here, and from the card."""
    rows = [line.split() for line in output.splitlines()[2:]]
    return {name: tuple(figures) for name, *figures in rows}


@pytest.fixture
def start(monkeypatch, capsys):
    """Runs the script for a model in this process: its status and figures."""

    def run(model, *words):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["x.py", *map(str, words)])
        return evaluate_retrieval.main(model), parse(capsys.readouterr().out)

    return run


@pytest.fixture
def state(exported, tmp_path):
    """A copy of a model whose card has these results of a collection."""

    def write(collection: Path, *results: dict[str, Any]) -> Path:
        folder = tmp_path / "encoder"
        shutil.copytree(exported, folder, dirs_exist_ok=True)
        common = {"collection": collection.name, "split": "test", "depth": 100}
        (folder / RESULTS_FILE).write_text(json.dumps([{**common, **each} for each in results]))
        return folder

    return write


def tied(texts: list[str], folder: Path, *, ending: str = "") -> Path:
    """Thirty copies of one passage among others; only copies in the middle are relevant."""
    numbers = np.random.default_rng(0).permutation(60)
    passages = [{"_id": f"{n:03d}", "text": texts[0 if n < 30 else n]} for n in numbers.tolist()]
    queries = [  # titles of queries are not read
        {"_id": f"0{i}", "title": texts[i], "text": texts[0][: 10 + 5 * i]} for i in range(8)
    ]
    qrels = [(f"0{i}", f"{n:03d}", 1 + i % 3) for i in range(8) for n in (2 * i, 29, 30 + i)]
    return write_collection(folder, passages, queries, test=qrels, ending=ending)


@pytest.mark.slow
def test_the_published_script_runs_where_this_project_is_not(retriever, collection, tmp_path):
    expected = evaluate_system(retriever, collection, tmp_path / "run")  # with titles and prompts
    printed = run_isolated(RUN, retriever, collection, scratch=tmp_path / "elsewhere")
    means = expected.evaluation.means
    assert parse(printed) == {name: (f"{value:.4f}", "-") for name, value in means.items()}


def test_rankings_and_measures_are_those_of_the_package(exported, state, texts, tmp_path, start):
    folder, copies = tied(texts, tmp_path / "tied", ending=".gz"), {f"{n:03d}" for n in range(30)}
    full = evaluate_system(exported, folder, tmp_path / "full", depth=60)
    [first, *_] = [list(ranking) for ranking in read_run(full.run_file).values()]
    # The last place is among copies, which are ranked by id.
    depth = next(i for i, passage in enumerate(first) if passage in copies) + 12
    result = evaluate_system(exported, folder, tmp_path / "run", depth=depth, measures=MEASURES)
    model = state(folder, {"depth": depth, "values": dict(result.evaluation.means)})
    expected = {name: (f"{value:.4f}",) * 2 for name, value in result.evaluation.means.items()}
    assert start(model, folder) == (0, expected) and len(expected) == len(MEASURES)
    passages, queries, qrels = evaluate_retrieval.read_collection(str(folder), "test")
    rankings = evaluate_retrieval.search(exported, passages, queries, qrels, depth)
    assert rankings == {query: [*best] for query, best in read_run(result.run_file).items()}


def test_files_may_begin_with_a_mark_and_hold_empty_lines(exported, texts, tmp_path, start):
    folder = tied(texts, tmp_path / "tied")
    expected = start(exported, folder)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / name).write_text((folder / name).read_text() + "\n", encoding="utf-8-sig")
    assert start(exported, folder) == expected


def test_a_figure_that_differs_from_the_cards_is_a_failure(state, collection, tmp_path, start):
    others = [
        {"split": "train", "values": {"MRR@10": 0.9}},
        {"search": {"index": "IVF16"}, "values": {"MRR@10": 0.9}},
    ]
    model = state(collection, *others, {"values": {"R@5": 2.0, "Hit@20": 0.5}})
    status, figures = start(model, collection)
    assert status == 1 and figures["Hit@20"] == ("-", "0.5000")  # which needs answers
    assert figures["R@5"][0] <= "1.0000" and figures["R@5"][1] == "2.0000"


@pytest.mark.slow
def test_a_data_set_of_the_hub_may_have_its_judgements_beside_it(
    loopback_hub, exported, texts, tmp_path, start
):
    folder, beside = tied(texts, tmp_path / "tied"), tmp_path / "beside"
    expected = start(exported, folder)
    (folder / "qrels").rename(beside)
    (folder / "tied.py").write_text("raise RuntimeError('a loading script is never run')")
    loopback_hub.put(folder, "owner/tied", kind="datasets")
    loopback_hub.put(beside, "owner/tied-qrels", kind="datasets")
    assert start(exported, "owner/tied") == expected


@pytest.mark.slow
def test_configurations_of_a_data_set_are_read(exported, texts, tmp_path, start):
    """As NanoBEIR has them, without scores; ids may be numbers, and a split has its other name."""
    folder = tmp_path / "set"
    folder.mkdir()
    judgements = [{"query-id": i, "corpus-id": 100 + i + j} for i in range(10) for j in range(3)]
    tables: dict[str, list[dict[str, Any]]] = {
        "corpus": [{"id": 100 + i, "text": texts[i]} for i in range(40)],
        "queries": [{"id": i, "text": texts[i][:30]} for i in range(10)],
        "default": judgements,
    }
    for name, rows in tables.items():
        pd.DataFrame(rows).to_json(folder / f"{name}-table.jsonl", orient="records", lines=True)
    splits = {"corpus": "corpus", "queries": "queries", "default": "validation"}
    declare_tables(folder, {n: {split: f"{n}-table.jsonl"} for n, split in splits.items()})
    expected = evaluate_system(exported, folder, tmp_path / "run", split="dev").evaluation.means
    status, found = start(exported, folder, "--split", "dev")
    assert status == 0
    assert found == {name: (f"{value:.4f}", "-") for name, value in expected.items()}


def test_ids_stay_as_they_are_and_titles_may_be_missing(texts, tmp_path):
    ids = ["007", "7", "2020-01-01", "1.0", " x", "ü"]
    folder = write_collection(
        tmp_path / "ids",
        [{"_id": name, "text": texts[i]} for i, name in enumerate(ids)],
        [{"_id": "007", "text": "why?"}, {"_id": 7, "text": "a"}, {"_id": "8", "text": "b"}],
        test=[("007", "007", 1), ("7", "2020-01-01", 2), ("7", "7", 0), ("8", "7", 0)],
    )
    passages, queries, qrels = evaluate_retrieval.read_collection(str(folder), "test")
    assert [(row["_id"], row["text"]) for row in passages] == list(zip(ids, texts, strict=False))
    assert queries == {"007": "why?", "7": "a"}
    assert qrels == {"007": {"007": 1}, "7": {"2020-01-01": 2, "7": 0}}


def test_a_query_that_is_a_passage_is_left_out_as_by_the_package(exported, texts, tmp_path):
    passages = [{"_id": f"p{i}", "text": text} for i, text in enumerate(texts[:20])]
    judged = [(f"p{i}", f"p{i + 5}", 1) for i in range(4)] + [("p4", "p4", 1)]
    folder = write_collection(tmp_path / "own", passages, passages[:5], test=judged)
    settings = {"depth": 3, "measures": ["R@3"]}
    expected = read_run(evaluate_system(exported, folder, tmp_path / "run", **settings).run_file)
    assert "p4" in expected["p4"] and not any(f"p{i}" in expected[f"p{i}"] for i in range(4))
    found, queries, qrels = evaluate_retrieval.read_collection(str(folder), "test")
    rankings = evaluate_retrieval.search(exported, found, queries, qrels, 3)
    assert rankings == {query: [*best] for query, best in expected.items()}
