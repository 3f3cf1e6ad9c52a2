"""MTEB's tasks: the figures are those of our own evaluation, and of plain transformers."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from huggingface_hub import ModelCard
from scipy import stats

from hub_scripts.main import main
from modeling_condenser import mteb_model
from modeling_condenser.collection.load import load_collection
from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.evaluation.mteb_tasks import evaluate_mteb
from modeling_condenser.publishing.provenance import read_results
from modeling_condenser.retrieval.dense import SearchSettings
from tests.publishing.making import declare_tables, plain_vectors, write_collection

mteb = pytest.importorskip("mteb")
abstasks = pytest.importorskip("mteb.abstasks")
pytestmark = pytest.mark.slow

MEASURES = {"nDCG@10": "ndcg_at_10", "MRR@10": "mrr_at_10", "R@100": "recall_at_100"}


@pytest.fixture(scope="module")
def small(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection with titles, equal passages, and a query of words that no passage has."""
    written = [*texts[:40], *texts[:20]]
    titles = ["Title" if i % 3 == 0 else "" for i in range(40)]
    passages = [
        {"_id": f"p{i}", "title": title, "text": text}
        for i, (title, text) in enumerate(zip([*titles, *titles[:20]], written, strict=True))
    ]
    queries = [{"_id": f"q{i}", "text": " ".join(written[i].split()[:6])} for i in range(30)]
    queries.append({"_id": "q30", "text": "xyzzy plugh"})
    judged = [(f"q{i}", f"p{i + 40 * (i % 2 and i < 20)}", 1) for i in range(31)]
    folder = tmp_path_factory.mktemp("collections") / "mteb-small"
    return write_collection(folder, passages, queries, test=judged)


def describe(name: str, kind: str, score: str):
    how = {"eval_splits": ["test"], "eval_langs": ["eng-Latn"], "modalities": ["text"]}
    how |= {"dataset": {"path": "a/b", "revision": "1"}, "category": "t2t"}
    own = {"name": name, "type": kind, "main_score": score, "description": "A task of a test."}
    return mteb.TaskMetadata(**own, **how)


@pytest.fixture
def task(small):
    """The collection as one of MTEB's retrieval tasks, in memory."""
    loaded = load_collection(small)
    queries = {"id": list(loaded.queries), "text": list(loaded.queries.values())}

    class SmallRetrieval(abstasks.AbsTaskRetrieval):
        metadata = describe("SmallRetrieval", "Retrieval", "ndcg_at_10")

        def load_data(self, **_):
            split = {
                "corpus": loaded.passages.rename_column("_id", "id"),
                "queries": Dataset.from_dict(queries),
                "relevant_docs": loaded.qrels,
                "top_ranked": None,
            }
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    return SmallRetrieval()


def test_a_task_gives_the_figures_of_our_own_evaluation(task, retriever, small, tmp_path):
    systems = [str(retriever), "bm25", f"hybrid:{retriever},fusion=rrf"]
    ours = evaluate(systems, small, output_dir=tmp_path, depth=1000)
    results = evaluate_mteb(systems, [task], output_dir=tmp_path, progress=False)
    assert list(results) == list(ours.means)
    for system, means in ours.means.items():
        [scores] = results[system][0].scores["test"]
        for measure, theirs in MEASURES.items():
            assert scores[theirs] == pytest.approx(means[measure], abs=6e-6), (system, measure)
    # Without our search: mteb's own, from the vectors of `encode`.
    model = mteb_model(retriever, output_dir=tmp_path)
    wrapper, options = mteb.models.SearchEncoderWrapper(model), {"hf_split": "", "hf_subset": ""}
    options |= {"task_metadata": task.metadata, "encode_kwargs": {}}
    task.load_data()
    split = task.dataset["default"]["test"]
    wrapper.index(split["corpus"], **options)
    theirs = wrapper.search(split["queries"], top_k=60, **options)
    model.index(split["corpus"])
    own = model.search(split["queries"], top_k=60, **options)
    for query, found in own.items():
        assert theirs[query] == pytest.approx(found, rel=1e-5)
    # Reranking: the given passages alone.
    given = {query: list(found)[5:8] for query, found in own.items()}
    ranked = model.search(split["queries"], top_k=3, top_ranked=given, **options)
    for query, found in own.items():
        expected = {passage: found[passage] for passage in given[query]}
        assert ranked[query] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="reranking"):
        mteb_model("bm25").search(split["queries"], top_k=3, top_ranked=given, **options)


def test_tasks_of_other_types_use_the_encoder_alone(retriever, texts, tmp_path):
    pairs, grades = [texts[:30], texts[30:60]], np.arange(30) % 6

    class SmallSTS(abstasks.AbsTaskSTS):
        metadata = describe("SmallSTS", "STS", "spearman")

        def load_data(self, **_):
            rows = {"sentence1": pairs[0], "sentence2": pairs[1], "score": grades}
            self.dataset, self.data_loaded = {"test": Dataset.from_dict(rows)}, True

    results = evaluate_mteb(retriever, [SmallSTS()], output_dir=tmp_path)
    left, right = (
        plain_vectors(retriever, [f"river {text}" for text in column], 24) for column in pairs
    )
    expected = stats.spearmanr((left * right).sum(-1), grades)[0]
    [scores] = results["retriever"][0].scores["test"]
    assert scores["main_score"] == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match="bm25 cannot do the task SmallSTS"):
        evaluate_mteb("bm25", [SmallSTS()], output_dir=tmp_path)


def test_the_command_reads_a_task_from_the_hub_and_writes_results_and_card(
    retriever, small, loopback_hub, tmp_path, monkeypatch, capsys
):
    registered = sys.modules["mteb.get_tasks"]._TASKS_REGISTRY["NanoSciFactRetrieval"].metadata
    folder = Path(shutil.copytree(small, tmp_path / "data"))
    qrels = pd.read_csv(folder / "qrels" / "test.tsv", sep="\t")
    qrels.to_json(folder / "qrels.jsonl", orient="records", lines=True)
    shutil.rmtree(folder / "qrels")
    names = ("corpus", "queries", "qrels")
    declare_tables(folder, {name: {"train": f"{name}.jsonl"} for name in names})
    sha = loopback_hub.put(folder, registered.dataset["path"], kind="datasets")
    monkeypatch.setitem(registered.dataset, "revision", sha)
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", str(retriever), "bm25", "--card", "--mteb", "NanoSciFactRetrieval"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    ours = evaluate(retriever, small, output_dir=tmp_path / "ours")
    expected = ours.means["retriever"]["nDCG@10"]
    assert re.match(rf" +retriever +bm25\nNanoSciFactRetrieval +{expected:.4f} +0\.\d", printed)
    [file] = tmp_path.glob("runs/evaluation/mteb/results/*retriever/*/NanoSciFactRetrieval.json")
    [scores] = json.loads(file.read_text())["scores"]["train"]
    assert scores["main_score"] == pytest.approx(expected, abs=6e-6)
    [result] = [r for r in read_results(retriever) if r.collection == "NanoSciFactRetrieval"]
    assert (result.benchmark, result.n_queries, result.depth) == ("MTEB", 31, 1000)
    assert result.values["nDCG@10"] == scores["main_score"]
    card = (retriever / "README.md").read_text()
    assert "### MTEB NanoSciFactRetrieval, [mteb/NanoSciFactRetrieval](https" in card
    figures = [f for f in ModelCard(card).data.eval_results if f.dataset_revision == sha]
    [figure] = [f for f in figures if f.metric_type == "nDCG@10"]
    assert figure.dataset_type == "mteb/NanoSciFactRetrieval"
    assert figure.metric_value == pytest.approx(expected, abs=1e-4)
    shutil.rmtree(tmp_path / "runs/evaluation/mteb/embeddings")
    assert main(words) == 0 and capsys.readouterr().out == printed  # the results are read again
    assert not (tmp_path / "runs/evaluation/mteb/embeddings").exists()


def test_what_cannot_be_evaluated_is_refused_before_anything_is_encoded(
    retriever, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name, message in {
        "SciFacts": "MTEB has no task or benchmark 'SciFacts' .*Did you mean: 'SciFact'",
        "VidoreArxivQARetrieval": "image",
    }.items():
        assert main(["evaluate", str(retriever), "--mteb", "NanoSciFactRetrieval", name]) == 2
        assert re.search(message, capsys.readouterr().err)
        assert not list(tmp_path.iterdir())


def test_other_settings_are_other_models(retriever):
    words = ["bm25", "bm25,k1=0.5", retriever, f"{retriever},query_max_length=6"]
    models = [mteb_model(word) for word in words]
    models.append(mteb_model(retriever, search=SearchSettings(index="HNSW32")))
    assert len({model.mteb_model_meta.revision for model in models}) == 5
    same = mteb_model(retriever, search=SearchSettings(shard_size=7))
    assert same.mteb_model_meta.revision == models[2].mteb_model_meta.revision
