"""Results of evaluations in a retriever's repository and on its card."""

import gzip
import hashlib
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_collection
from modeling_condenser.evaluation import evaluate as evaluate_module
from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.evaluation.measures import make_evaluation
from modeling_condenser.evaluation.system_results import SystemResult, report_on_card
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.hub.results import read_results

COLLECTION = Collection(
    Dataset.from_dict({"_id": ["d"], "title": [""], "text": ["x"]}),
    {f"q{i}": "x" for i in range(8)},
    {"q1": {"d": 1}, "q0": {"d": 0, "e": 2}},
    name="small",
)
EXACT = {"index": "Flat", "search_parameters": None, "rescore": 0, "index_seed": 0}
IDENTITY = {"passages": "cd" * 32, "depth": 100, **EXACT}


def result_of(system: str, a: list[float], b: list[float], **more: Any) -> SystemResult:
    per_query = {
        measure: {f"q{i}": value for i, value in enumerate(values)}
        for measure, values in (("A", a), ("B", b))
    }
    return SystemResult(system, "small", "test", make_evaluation(per_query), **more)


@pytest.fixture
def folder(bert_run: Path, tmp_path: Path) -> Path:
    return export_encoder(bert_run, tmp_path / "retriever")


def test_results_have_corrected_p_values_and_say_what_they_were_made_from(folder, tmp_path):
    run = tmp_path / "run-100.trec"
    run.write_text("q1 Q0 d 1 0.5 own\n")
    command = {"command": "condenser evaluate OWNER/NAME owner/small", "collection": COLLECTION}
    own = result_of("own", [0.75] * 8, [0.5] * 8, run_file=run, record={"identity": IDENTITY})
    first = result_of("bm25", [0.5] * 8, [0.5] * 7 + [0.25])
    second = result_of("dpr", [1.0] * 8, [0.5] * 8)
    report_on_card(folder, own, [first, second], source="owner/small@abc123", **command)
    [result] = read_results(folder)
    # Better on each of 8 queries by the same amount: of the 2**8 sign flips 2 are as extreme. By
    # Holm the smallest of four is multiplied by 4, the others follow.
    assert [(c.baseline, c.measure, c.value, c.difference) for c in result.comparisons] == [
        ("bm25", "A", 0.5, 0.25),
        ("bm25", "B", 0.46875, 0.03125),
        ("dpr", "A", 1.0, -0.25),
        ("dpr", "B", 0.5, 0.0),
    ]
    expected = [4 * 2 / 256, 1.0, 4 * 2 / 256, 1.0]
    assert [c.p_value for c in result.comparisons] == pytest.approx(expected)
    assert "| bm25 | 0.5000 | +0.2500 | 0.031 |" in (folder / "README.md").read_text()
    assert (result.source, result.revision) == ("owner/small", "abc123")
    assert (result.n_queries, result.values["A"], result.intervals["A"]) == (8, 0.75, [0.75, 0.75])
    sorted_lines = b"q0 0 d 0\nq0 0 e 2\nq1 0 d 1\n"
    assert result.qrels_sha256 == hashlib.sha256(sorted_lines).hexdigest()
    assert gzip.decompress((folder / result.run["file"]).read_bytes()) == run.read_bytes()
    assert result.versions["transformers"] and len(result.date) == 10

    indexed = {**IDENTITY, "index": "HNSW32", "search_parameters": "efSearch=64"}
    other = result_of("own", [0.75] * 8, [0.5] * 8, record={"identity": indexed})
    report_on_card(folder, other, [], source=tmp_path, **command)  # a local folder, not named
    exact, approximate = read_results(folder)
    assert approximate.search == {"index": "HNSW32", "search_parameters": "efSearch=64"}
    assert exact.search == {} and approximate.source is None
    assert str(tmp_path) not in (folder / "README.md").read_text()


def test_the_command_names_a_collection_as_the_hub_does(folder, collection, tmp_path, monkeypatch):
    loaded = load_collection(collection)
    monkeypatch.setattr(evaluate_module, "load_collection", lambda name, split: loaded)
    monkeypatch.chdir(tmp_path)
    settings = {"measures": ["P@5"], "depth": 20, "progress": False}
    report = evaluate(folder, "owner/small", **settings)
    options = "owner/small --split test --measures '[\"P@5\"]' --depth 20"
    [found] = read_results(folder)
    assert (found.source, found.n_queries) == ("owner/small", 20)
    assert found.command == f"condenser evaluate OWNER/NAME {options}"
    assert report.content["command"] == f"condenser evaluate retriever {options}"
    # With another similarity than its contract's, it is another system.
    evaluate(f"{folder},similarity=cosine", "owner/small", **settings)
    assert read_results(folder) == [found]
