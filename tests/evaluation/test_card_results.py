"""Results of evaluations in a retriever's repository and on its card."""

import dataclasses
import gzip
import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_collection
from modeling_condenser.evaluation import evaluate as evaluate_module
from modeling_condenser.evaluation.card_results import report_on_card
from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.evaluation.measures import make_evaluation
from modeling_condenser.evaluation.system_results import SystemResult
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.hub.results import read_results
from modeling_condenser.retrieval.dense import SearchSettings

COLLECTION = Collection(
    Dataset.from_dict({"_id": ["d"], "title": [""], "text": ["x"]}),
    {f"q{i}": "x" for i in range(8)},
    {"q1": {"d": 1}, "q0": {"d": 0, "e": 2}},
    name="small",
)


def result_of(system: str, **values: list[float]) -> SystemResult:
    per_query = {
        measure: {f"q{i}": value for i, value in enumerate(by_query)}
        for measure, by_query in values.items()
    }
    return SystemResult(system, "small", "test", make_evaluation(per_query))


def report(folder: Path, result: SystemResult, *baselines: SystemResult, **more: Any) -> None:
    known = {"collection": COLLECTION, "source": "owner/small", "depth": 100}
    command = "condenser evaluate OWNER/NAME owner/small"
    report_on_card(folder, result, baselines, **{**known, "command": command, **more})


@pytest.fixture
def folder(bert_run: Path, tmp_path: Path) -> Path:
    return export_encoder(bert_run, tmp_path / "retriever")


def test_the_p_values_of_a_result_are_corrected_together(folder: Path) -> None:
    # Better on each of n queries by the same amount: of the 2**n sign flips 2 are as extreme.
    own = result_of("own", A=[0.75] * 8, B=[0.5] * 8)
    first = result_of("bm25", A=[0.5] * 8, B=[0.5] * 7 + [0.25])
    report(folder, own, first, result_of("dpr", A=[1.0] * 8, B=[0.5] * 8))
    [result] = read_results(folder)
    assert [(c.baseline, c.measure, c.value, c.difference) for c in result.comparisons] == [
        ("bm25", "A", 0.5, 0.25),
        ("bm25", "B", 0.46875, 0.03125),
        ("dpr", "A", 1.0, -0.25),
        ("dpr", "B", 0.5, 0.0),
    ]
    # Raw: 2/256, 1, 2/256, 1; by Holm the smallest of four is multiplied by 4, the others follow.
    expected = [4 * 2 / 256, 1.0, 4 * 2 / 256, 1.0]
    assert [c.p_value for c in result.comparisons] == pytest.approx(expected)
    assert "| bm25 | 0.5000 | +0.2500 | 0.031 |" in (folder / "README.md").read_text()


def test_a_result_says_what_it_was_made_from(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run-100.trec"
    run.write_text("q1 Q0 d 1 0.5 own\n")
    record = {"identity": {"passages": "cd" * 32}}
    own = dataclasses.replace(result_of("own", A=[0.25] * 8), run_file=run, record=record)
    report(folder, own, source="owner/small@abc123")
    [found] = read_results(folder)
    assert (found.source, found.revision) == ("owner/small", "abc123")
    assert (found.collection, found.split, found.depth) == ("small", "test", 100)
    assert (found.n_queries, found.values, found.intervals) == (8, {"A": 0.25}, {"A": [0.25, 0.25]})
    sorted_lines = b"q0 0 d 0\nq0 0 e 2\nq1 0 d 1\n"
    assert found.qrels_sha256 == hashlib.sha256(sorted_lines).hexdigest()
    assert found.fingerprint_passages == "cd" * 32
    assert gzip.decompress((folder / found.run["file"]).read_bytes()) == run.read_bytes()
    assert found.versions["transformers"] and len(found.date) == 10
    search = SearchSettings(index="HNSW32", search_parameters="efSearch=64")
    report(folder, own, source=tmp_path, search=search)  # a local folder, which is not named
    exact, approximate = read_results(folder)
    assert approximate.search == {"index": "HNSW32", "search_parameters": "efSearch=64"}
    assert exact.search == {} and approximate.source is None
    assert str(tmp_path) not in (folder / "README.md").read_text()


@pytest.mark.slow
def test_an_evaluation_on_a_second_collection_keeps_the_first(
    folder: Path, collection: Path, tmp_path: Path
) -> None:
    other, out = tmp_path / "other", tmp_path / "out"
    shutil.copytree(collection, other)
    for place in (collection, other):
        evaluate(folder, place, baseline="bm25", output_dir=out, progress=False)
    results = [(result.collection, result.n_queries) for result in read_results(folder)]
    assert results == [("small", 20), ("other", 20)]
    written = (folder / "evaluation_results.json").read_text()
    assert str(tmp_path) not in written and str(collection.parent) not in written
    # With another similarity than its contract's, it is another system.
    evaluate(f"{folder},similarity=cosine", other, output_dir=out, progress=False)
    assert (folder / "evaluation_results.json").read_text() == written


def test_the_command_names_a_collection_as_the_hub_does(
    folder: Path, collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_collection(collection)
    monkeypatch.setattr(evaluate_module, "load_collection", lambda name, split: loaded)
    monkeypatch.chdir(tmp_path)
    evaluate(folder, "owner/small", measures=["P@5"], depth=20, progress=False)
    [found] = read_results(folder)
    assert found.source == "owner/small"
    assert found.command == (
        "condenser evaluate OWNER/NAME owner/small --split test --measures '[\"P@5\"]' --depth 20"
    )
