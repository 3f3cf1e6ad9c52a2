"""The script that is published with a model, where nothing else of this project is."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from modeling_condenser.evaluation.measures import DEFAULT_MEASURES
from modeling_condenser.publishing import evaluate_retrieval
from modeling_condenser.publishing.provenance import RESULTS_FILE
from modeling_condenser.retrieval.runs import read_run
from tests.evaluation.making import evaluate_system
from tests.publishing.making import declare_tables, run_isolated, write_collection

RUN = """
import runpy

folder, collection = sys.argv[1:]
sys.argv = ["evaluate_retrieval.py", collection, "--json", "figures.json"]
try:
    runpy.run_path(f"{folder}/evaluate_retrieval.py", run_name="__main__")
except SystemExit as end:
    assert end.code == 0
"""
MEASURES = (
    "MRR@10 MRR nDCG@10 nDCG R@5 MAP MAP@10 R-Prec P@5 Success@3 MRR(rel=2)@10 R(rel=2)@20".split()
)


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Runs the script for a model in this process: its status and figures."""

    def run(model, *words):
        file = tmp_path / "figures.json"
        words = (*words, "--model", model, "--json", file)
        monkeypatch.setattr(sys, "argv", ["x.py", *map(str, words)])
        return evaluate_retrieval.main(), json.loads(file.read_text())

    return run


def tied(texts: list[str], folder: Path, *, ending: str = "") -> Path:
    """Thirty copies of one passage among others; only copies in the middle are relevant."""
    numbers = np.random.default_rng(0).permutation(60)
    passages = [{"_id": f"{n:03d}", "text": texts[0 if n < 30 else n]} for n in numbers.tolist()]
    queries = [{"_id": f"0{i}", "text": texts[0][: 10 + 5 * i]} for i in range(8)]
    qrels = [(f"0{i}", f"{n:03d}", 1 + i % 3) for i in range(8) for n in (2 * i, 29, 30 + i)]
    return write_collection(folder, passages, queries, test=qrels, ending=ending)


@pytest.mark.slow
def test_the_published_script_runs_where_this_project_is_not(retriever, collection, tmp_path):
    expected = evaluate_system(retriever, collection, tmp_path / "run")  # with titles and prompts
    run_isolated(RUN, retriever, collection, scratch=tmp_path / "elsewhere")
    found = json.loads((tmp_path / "elsewhere" / "figures.json").read_text())
    means = expected.evaluation.means
    assert found == pytest.approx({name: means[name] for name in found}, abs=1e-4) and found


def test_run_and_measures_are_those_of_the_package(exported, texts, tmp_path, start):
    folder, copies = tied(texts, tmp_path / "tied", ending=".gz"), {f"{n:03d}" for n in range(30)}
    full = evaluate_system(exported, folder, tmp_path / "full", depth=60)
    [first, *_] = [list(ranking) for ranking in read_run(full.run_file).values()]
    # The last place is among copies, which are ranked by id.
    depth = next(i for i, passage in enumerate(first) if passage in copies) + 12
    result = evaluate_system(exported, folder, tmp_path / "run", depth=depth, measures=MEASURES)
    status, means = start(exported, folder, "--depth", depth, "--measures", *MEASURES)
    assert (status, means) == (0, pytest.approx(result.evaluation.means, abs=1e-12))
    passages, queries, qrels = evaluate_retrieval.read_collection(str(folder), "test")
    encoder = evaluate_retrieval.open_encoder(exported)
    ours = evaluate_retrieval.search(encoder, passages, queries, qrels, depth)
    for query, expected in read_run(result.run_file).items():
        costs, ranking = zip(*ours[query], strict=True)
        assert list(ranking) == list(expected)
        assert [-cost for cost in costs] == pytest.approx([*expected.values()], rel=1e-6)


@pytest.mark.slow
def test_figures_are_compared_with_the_cards(exported, collection, tmp_path, start, capsys):
    folder = Path(shutil.copytree(exported, tmp_path / "encoder"))
    names = ["MRR@10", "R@5"]
    result = evaluate_system(folder, collection, tmp_path / "run", measures=names)
    means = result.evaluation.means
    card = {"collection": collection.name, "source": None, "split": "test", "depth": 100}
    stated = {**card, "values": {**means, "R@5": 0.1, "Hit@20": 0.5}}
    others = [{**card, "split": "train", "values": {"MRR@10": 0.9}}]
    others.append({**card, "search": {"index": "IVF16"}, "values": {"MRR@10": 0.9}})
    (folder / RESULTS_FILE).write_text(json.dumps([*others, stated]))
    assert start(folder, collection)[0] == 1
    found = capsys.readouterr().out
    assert f"{'MRR@10':16}{means['MRR@10']:8.4f}{means['MRR@10']:8.4f}\n" in found
    assert f"{'R@5':16}  0.1000{means['R@5']:8.4f}  differs\n" in found
    assert f"{'Hit@20':16}  0.5000       -\n" in found  # which the script cannot compute
    # Of this depth the card says nothing.
    status, figures = start(folder, collection, "--depth", 50)
    assert (status, tuple(figures)) == (0, DEFAULT_MEASURES)


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
    """As MTEB has them; ids may be numbers, and a split may have the other of its two names."""
    folder = tmp_path / "set"
    folder.mkdir()
    judgements = [
        {"query-id": i, "corpus-id": 100 + i + j, "score": 2 - j}
        for i in range(10)
        for j in range(3)
    ]
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
    status, found = start(exported, folder, "--split", "dev", "--measures", *expected)
    assert (status, found) == (0, expected)


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


def test_a_query_that_is_a_passage_is_left_out_as_by_the_package(exported, texts, tmp_path, start):
    passages = [{"_id": f"p{i}", "text": text} for i, text in enumerate(texts[:20])]
    judged = [(f"p{i}", f"p{i + 5}", 1) for i in range(4)] + [("p4", "p4", 1)]
    folder = write_collection(tmp_path / "own", passages, passages[:5], test=judged)
    settings: Any = {"depth": 3, "measures": ["MRR@3", "R@3"]}
    result = evaluate_system(exported, folder, tmp_path / "run", **settings)
    words = ("--depth", 3, "--measures", *settings["measures"])
    assert start(exported, folder, *words) == (0, result.evaluation.means)
    found = read_run(result.run_file)
    assert "p4" in found["p4"] and not any(f"p{i}" in found[f"p{i}"] for i in range(4))
