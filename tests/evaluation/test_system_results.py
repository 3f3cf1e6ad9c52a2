"""One system on one collection, against NumPy brute force; which run is read again."""

import dataclasses
import json
import shutil
from math import log2
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_collection
from modeling_condenser.evaluation import system_results
from modeling_condenser.evaluation.measures import evaluate_run
from modeling_condenser.evaluation.system_results import (
    SystemResult,
    evaluate_system,
    measure_run,
)
from modeling_condenser.hub.contract import EncodingContract
from modeling_condenser.hub.export import export_encoder
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.runs import read_run
from tests.hub.making import plain_vectors

CONTRACT = EncodingContract(8, 24, title_separator=" : ")


@pytest.fixture(scope="module")
def retriever(bert_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("retrievers") / "retriever"
    return export_encoder(bert_run, folder, contract=CONTRACT)


def test_a_retriever_is_searched_and_measured(
    retriever: Path, collection: Path, tmp_path: Path
) -> None:
    result = evaluate_system(retriever, collection, tmp_path / "out", depth=30, progress=False)
    assert (result.system, result.collection, result.split) == ("retriever", "small", "test")
    loaded = load_collection(collection)
    texts = [
        f"{row['title']} : {row['text']}" if row["title"] else row["text"]
        for row in loaded.passages
    ]
    passages = plain_vectors(retriever, texts, 24).double().numpy()
    queries = plain_vectors(retriever, list(loaded.queries.values()), 8).double().numpy()
    found = read_run(tmp_path / "out" / "run-30.trec")
    assert list(found) == [f"q{i}" for i in range(40, 60)]
    reciprocals, gains = [], []
    for query_id, scores in zip(loaded.queries, queries @ passages.T, strict=True):
        best = np.argsort(-scores)
        assert list(found[query_id]) == loaded.passages.select(best[:30])["_id"][:]
        np.testing.assert_allclose(list(found[query_id].values()), scores[best[:30]], rtol=1e-5)
        # One passage is relevant: the query's own.
        own = loaded.passages.select(best)["_id"][:].index(f"p{query_id[1:]}") + 1
        reciprocals.append(1 / own if own <= 10 else 0.0)
        gains.append(1 / log2(own + 1) if own <= 10 else 0.0)
    assert result.evaluation.means["MRR@10"] == pytest.approx(np.mean(reciprocals), abs=1e-9)
    assert result.evaluation.means["nDCG@10"] == pytest.approx(np.mean(gains), abs=1e-6)
    assert 0 < np.mean(reciprocals) < 1
    written = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert written["evaluation"]["means"] == result.evaluation.means
    assert (written["system"], written["split"], written["depth"]) == ("retriever", "test", 30)


def test_a_second_call_reads_the_run_and_measures_it_again(
    collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "small"
    shutil.copytree(collection, copied)
    first = evaluate_system("bm25", copied, tmp_path / "out", measures=["P@1"], progress=False)
    loaded = load_collection(copied)
    run = Bm25(loaded.passages).search(loaded.queries)
    expected = evaluate_run(loaded.qrels, run, measures=["P@1"])
    assert first == SystemResult("bm25", "small", "test", expected)
    assert not (tmp_path / "out" / "embeddings").exists()
    monkeypatch.delattr(system_results, "open_searcher")  # a second search fails
    qrels = copied / "qrels" / "test.tsv"
    qrels.write_text(qrels.read_text().replace("\t1\n", "\t0\n", 1))
    changed = evaluate_system("bm25", copied, tmp_path / "out", measures=["P@5"], progress=False)
    assert changed.evaluation.unanswerable == ("q40",)
    assert list(changed.evaluation.means) == ["P@5"]


def test_a_run_of_something_else_in_the_same_folder_is_refused(
    bert_run: Path, retriever: Path, collection: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    evaluate_system(retriever, collection, out, progress=False)
    with pytest.raises(ValueError, match="another run, with a different queries: choose"):
        evaluate_system(retriever, collection, out, split="train", progress=False)
    # Of the same name, but with other vectors.
    other = tmp_path / "elsewhere" / "retriever"
    export_encoder(bert_run, other, contract=EncodingContract(8, 12))
    with pytest.raises(ValueError, match="another run, with a different system: choose"):
        evaluate_system(other, collection, out, progress=False)


def test_answers_and_judgements_are_measured_on_the_same_queries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    passages = {"_id": ["a", "b"], "title": ["", ""], "text": ["It is Paris.", "It is Rome."]}
    judged = Collection(
        Dataset.from_dict(passages),
        {"q1": "capital of France", "q2": "capital of Italy"},
        {"q1": {"a": 1}, "q2": {"a": 0, "b": 1}},
        answers={"q1": ("Paris",), "q2": ("Milan",)},
    )
    run = {"q1": {"a": 2.0, "b": 1.0}, "q2": {"b": 2.0, "a": 1.0}}
    found = measure_run(judged, run, measures=["Hit@1", "MRR@10"])
    assert "MRR@10 look no deeper than 2" in caplog.text
    assert list(found.means) == ["Hit@1", "MRR@10"]
    assert found.per_query == {
        "Hit@1": {"q1": 1.0, "q2": 0.0},
        "MRR@10": {"q1": 1.0, "q2": 1.0},
    }
    without = dataclasses.replace(judged, answers={})
    with pytest.raises(ValueError, match="Hit@1 cannot be measured: collection has no answers"):
        measure_run(without, run, measures=["Hit@1", "MRR@2"])
