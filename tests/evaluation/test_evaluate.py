"""The evaluation stage, against NumPy brute force: what it writes, reads again and refuses."""

import gzip
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from huggingface_hub import ModelCard
from scipy import stats
from torch.nn.functional import cosine_similarity

from modeling_condenser.collection.collection import Collection
from modeling_condenser.collection.load import load_collection, load_dev, load_reported
from modeling_condenser.evaluation import evaluate as evaluate_module
from modeling_condenser.evaluation import system_results
from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.evaluation.measures import evaluate_run, make_evaluation
from modeling_condenser.evaluation.system_results import SystemResult, report_on_card
from modeling_condenser.publishing import push as push_module
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.publishing.provenance import read_results
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.dense import recall_against_exact
from modeling_condenser.retrieval.runs import read_run, write_run
from tests.evaluation.making import evaluate_system
from tests.publishing.loopback_hub import contents
from tests.publishing.making import plain_vectors, write_collection


def test_systems_of_every_kind_stand_in_one_report(retriever, bert_folder, collection, tmp_path):
    theirs = write_run({"q40": {"p40": 2.0, "p41": 1.0}}, tmp_path / "theirs.trec", tag="x")
    prompt = 'find, as "a=b",\nthis: '
    plain = {"model": str(bert_folder), "pooling": "mean", "query_prompt": prompt, "name": "plain"}
    settings = {"measures": ["MRR@10", "R@20"], "output_dir": tmp_path / "out", "depth": 30}
    systems = [retriever, plain, theirs]
    report = evaluate(systems, collection, baseline="bm25", card=True, progress=False, **settings)
    folder = tmp_path / "out" / "small" / "test"
    stated = json.loads((folder / "report.json").read_text())["systems"]["plain"]["settings"]
    assert stated == {"pooling": "mean", "query_prompt": prompt}
    assert report.file == folder / "report.md"
    assert list(report.means) == ["bm25", "retriever", "plain", "theirs"]
    # Of 20 queries the given run answers one, at rank 1.
    assert report.means["theirs"] == {"MRR@10": 1 / 20, "R@20": 1 / 20}
    difference = report.means["plain"]["MRR@10"] - report.means["bm25"]["MRR@10"]
    assert report.comparisons["plain", "MRR@10"].difference == pytest.approx(difference)
    assert re.search(r"\ntheirs +MRR@10 +0\.0500 +-0\.\d+ [▼○] +p ", str(report))
    assert (folder.parent / "embeddings" / "retriever" / "embeddings" / "manifest.json").is_file()
    command = report.content["command"]
    assert command.startswith("condenser evaluate ") and f" {collection} --baseline bm25" in command
    without = (folder / "report.json").read_text() + report.file.read_text()
    for stated in (json.dumps(command)[1:-1], command):
        without = without.replace(stated, "")
    assert str(tmp_path) not in without  # paths are in the command only
    card = (retriever / "README.md").read_text()
    assert "condenser evaluate OWNER/NAME small --baseline bm25 --split test" in card
    assert "### small, test" in card and "| MRR@10 |" in card

    loaded = load_collection(collection)
    ids = np.array(loaded.passages["_id"])
    titles = [f"{title} : " if title else "" for title in loaded.passages["title"]]
    pairs = zip(titles, loaded.passages["text"], strict=True)
    texts = [f"river {title}{text}" for title, text in pairs]
    asked = [f"why {query}" for query in loaded.queries.values()]
    passages = plain_vectors(retriever, texts, 24).double().numpy()
    queries = plain_vectors(retriever, asked, 8).double().numpy()
    found = read_run(folder / "retriever" / "run-30.trec")
    reciprocals = []
    for query_id, scores in zip(loaded.queries, queries @ passages.T, strict=True):
        best = np.argsort(-scores)
        assert list(found[query_id]) == ids[best[:30]].tolist()
        np.testing.assert_allclose(list(found[query_id].values()), scores[best[:30]], rtol=1e-5)
        rank = 1 + ids[best].tolist().index(f"p{query_id[1:]}")  # of the one relevant passage
        reciprocals.append(1 / rank if rank <= 10 else 0.0)
    assert report.means["retriever"]["MRR@10"] == pytest.approx(np.mean(reciprocals), abs=1e-9)
    written = json.loads((folder / "retriever" / "metrics.json").read_text())
    assert written["evaluation"]["means"] == report.means["retriever"]
    assert (written["system"], written["split"], written["depth"]) == ("retriever", "test", 30)


def test_a_second_call_reads_the_run_of_the_same_search_and_measures_it_again(
    collection, tmp_path, monkeypatch
):
    copied = shutil.copytree(collection, tmp_path / "small")
    settings = {"out": tmp_path / "out"}
    first = evaluate_system("bm25", copied, measures=["P@1"], **settings)
    loaded = load_collection(copied)
    run = Bm25(loaded.passages).search(loaded.queries)
    assert first.evaluation == evaluate_run(loaded.qrels, run, measures=["P@1"])
    monkeypatch.delattr(system_results, "open_searcher")  # a second search fails
    qrels = copied / "qrels" / "test.tsv"
    qrels.write_text(qrels.read_text().replace("\t1\n", "\t0\n", 1))
    changed = evaluate_system("bm25", copied, measures=["P@5"], **settings)
    assert changed.evaluation.unanswerable == ("q40",)
    assert list(changed.evaluation.means) == ["P@5"]
    for system, split, what in (("bm25", "train", "queries"), ("bm25,k1=2", "test", "system")):
        with pytest.raises(ValueError, match=f"another search, which differs in {what}: choose"):
            evaluate_system(system, copied, split=split, **settings)


def test_a_run_file_of_another_split_is_refused(collection, tmp_path):
    theirs = write_run({"other": {"p40": 2.0}}, tmp_path / "theirs.trec", tag="x")
    with pytest.raises(ValueError, match=r"theirs.trec has none of the 20 queries: use a run of"):
        evaluate(theirs, collection, output_dir=tmp_path / "out")


def test_an_approximate_index_reports_its_recall(retriever, collection, tmp_path):
    search = {"index": "IVF4,Flat", "search_parameters": "nprobe=1", "depth": 10}
    report = evaluate(retriever, collection, output_dir=tmp_path / "out", **search)
    exact = evaluate_system(retriever, collection, tmp_path / "exact", depth=10)
    runs = [read_run(result.run_file) for result in (*report.results, exact)]
    recall = report.results[0].record["recall_against_exact"]
    assert 0 < recall == recall_against_exact(*runs, depth=10) < 1
    assert f"recall against exact {recall}" in report.file.read_text()


def test_graded_pairs_and_triplets_are_measured_by_the_systems_vectors(
    bert_folder, texts, tmp_path
):
    settings = {"output_dir": tmp_path / "out"}
    scores = [(i * 7) % 12 / 2 for i in range(12)]
    sides = {"sentence1": texts[:12], "sentence2": texts[20:32]}
    pd.DataFrame({**sides, "score": scores}).to_csv(tmp_path / "pairs.csv", index=False)
    mean, best = (f"{bert_folder},pooling={p},similarity=cosine,name={p}" for p in ("mean", "max"))
    report = evaluate(mean, tmp_path / "pairs.csv", baseline=best, task="graded_pairs", **settings)
    for system, means in report.means.items():
        vectors = (plain_vectors(bert_folder, s, pooling=system) for s in sides.values())
        expected = stats.spearmanr(cosine_similarity(*vectors), scores).statistic
        assert means["Spearman"] == pytest.approx(expected, abs=1e-9)
    assert ("mean", "Spearman") in report.comparisons
    assert report.file == tmp_path / "out" / "pairs" / "report.md"

    sides = {"anchor": texts[:15], "positive": texts[15:30], "negative": texts[30:45]}
    pd.DataFrame(sides).to_csv(tmp_path / "t.csv", index=False)
    system = f"{bert_folder},pooling=cls,similarity=euclidean,name=plain"
    report = evaluate(system, tmp_path / "t.csv", task="triplets", **settings)
    anchor, positive, negative = (plain_vectors(bert_folder, s).numpy() for s in sides.values())
    right = np.linalg.norm(anchor - positive, axis=1) < np.linalg.norm(anchor - negative, axis=1)
    assert report.means == {"plain": {"triplet accuracy": pytest.approx(right.mean())}}
    assert "15 items" in report.content["title"]


COLLECTION = Collection(
    Dataset.from_dict({"_id": ["d"], "title": [""], "text": ["x"]}),
    {f"q{i}": "x" for i in range(8)},
    {"q1": {"d": 1}, "q0": {"d": 0, "e": 2}},
    name="small",
)
EXACT = {"index": "Flat", "search_parameters": None, "rescore": 0, "index_seed": 0}
IDENTITY = {"passages": "cd" * 32, "depth": 100, **EXACT}


def result_of(system: str, a: list[float], b: list[float], **more: Any) -> SystemResult:
    numbered = {m: {f"q{i}": v for i, v in enumerate(own)} for m, own in (("A", a), ("B", b))}
    return SystemResult(system, "small", "test", make_evaluation(numbered), **more)


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
    assert [list(compared.values()) for compared in result.comparisons] == [
        ["bm25", "A", 0.5, 0.25, 4 * 2 / 256],
        ["bm25", "B", 0.46875, 0.03125, 1.0],
        ["dpr", "A", 1.0, -0.25, 4 * 2 / 256],
        ["dpr", "B", 0.5, 0.0, 1.0],
    ]
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
    monkeypatch.setattr(evaluate_module, "load_reported", lambda name, split: loaded)
    monkeypatch.chdir(tmp_path)
    settings = {"measures": ["P@5"], "depth": 20, "card": True}
    report = evaluate(folder, "owner/small", **settings)
    options = "owner/small --split test --measures '[\"P@5\"]' --depth 20"
    [found] = read_results(folder)
    assert (found.source, found.n_queries) == ("owner/small", 20)
    assert found.command == f"condenser evaluate OWNER/NAME {options}"
    assert report.content["command"] == f"condenser evaluate {folder} {options}"
    evaluate(folder, "owner/small", dtype="bfloat16", **settings)
    [_, found] = read_results(folder)
    assert found.command == f"condenser evaluate OWNER/NAME,dtype=bfloat16 {options}"
    assert found.search == {"dtype": "bfloat16"} and "dtype=bfloat16" in found.key
    assert "exact search, dtype bfloat16, " in (folder / "README.md").read_text()
    # A baseline that searches with the model itself is named as the model is.
    evaluate(folder, "owner/small", baseline=f"hybrid:{folder},fusion=rrf", **settings)
    found, _ = read_results(folder)
    baseline = "--baseline hybrid:OWNER/NAME,fusion=rrf --split test"
    assert f" OWNER/NAME owner/small {baseline} " in found.command
    # The card shows its hybrid, whatever its name in the report.
    evaluate([f"{folder},name=mine", f"hybrid:{folder},fusion=rrf"], "owner/small", **settings)
    found, _ = read_results(folder)
    assert "OWNER/NAME,name=mine hybrid:OWNER/NAME,fusion=rrf owner/small" in found.command
    # With another similarity than its contract's, it is another system.
    with pytest.raises(ValueError, match="card is true, but .* name the export's folder, without"):
        evaluate(f"{folder},similarity=cosine", "owner/small", **settings)


def test_a_model_is_changed_only_if_its_card_is_asked_for_and_a_push_publishes_the_figures(
    folder, collection, tmp_path, monkeypatch, caplog
):
    before, settings = contents(folder), {"output_dir": tmp_path / "out"}
    with caplog.at_level("INFO"):
        report = evaluate(folder, collection, **settings)
    assert contents(folder) == before
    assert f"The card of {folder} is unchanged: --card adds the results." in caplog.messages
    monkeypatch.setattr(push_module, "find_opening_error", lambda _: None)
    how = {"license": "mit", "dry_run": True}
    assert "model-index" not in push_module.push(folder=folder, name="owner/name", **how).card
    evaluate(folder, collection, card=True, **settings)
    pushed = push_module.push(folder=folder, name="owner/name", **how)
    figures = {f.metric_type: f.metric_value for f in ModelCard(pushed.card).data.eval_results}
    assert figures == {m: round(value, 4) for m, value in report.means["retriever"].items()}
    assert "evaluation/small-test-100.trec.gz" in pushed.sizes


def test_queries_that_are_passages_are_searched_one_passage_deeper(tmp_path):
    claims = ["uniforms save money", "uniforms do not save money", "uniforms waste money"]
    passages = [{"_id": f"a{i}", "text": text} for i, text in enumerate(claims)]
    judged = [("a0", "a1", 1), ("a1", "a0", 1), ("a2", "a2", 1)]
    folder = write_collection(tmp_path / "claims", passages, passages, test=judged)
    result = evaluate_system("bm25", folder, tmp_path / "out", depth=2, measures=["R@2"])
    found = read_run(result.run_file)
    # a2 is judged relevant to the query of its id, so it is another text.
    assert [len(found[query]) for query in ("a0", "a1", "a2")] == [2, 2, 2]
    assert "a0" not in found["a0"] and "a1" not in found["a1"] and next(iter(found["a2"])) == "a2"
    assert result.evaluation.means["R@2"] == 1.0


def test_judged_passages_that_the_corpus_lacks_are_never_found(tmp_path, caplog):
    passages = [{"_id": "p1", "text": "penguins eat krill"}, {"_id": "p2", "text": "bees fly"}]
    queries = [{"_id": "q1", "text": "penguins"}, {"_id": "q2", "text": "bees"}]
    judged = [("q1", "p1", 1), ("q2", "p2", 1), ("q2", "p9", 1)]
    folder = write_collection(tmp_path / "small", passages, queries, test=judged)
    result = evaluate_system("bm25", folder, tmp_path / "out", measures=["R@100"])
    assert result.evaluation.per_query == {"R@100": {"q1": 1.0, "q2": 0.5}}
    assert "1 of 3 judged passages are not in the corpus, such as 'p9'" in caplog.text


def test_queries_of_another_split_are_reported_and_choose_no_fusion(retriever, tmp_path, caplog):
    """q1 has its id in train and in dev, and q2 its text in dev."""
    passages = [{"_id": f"p{i}", "text": f"the river {word}"} for i, word in enumerate("abcde")]
    texts = ["river a", "river b", "river  B", "river c", "river d"]
    queries = [{"_id": f"q{i}", "text": text} for i, text in enumerate(texts, start=1)]
    test, train = [("q1", "p0", 1), ("q2", "p1", 1)], [("q1", "p0", 1)]
    dev = [("q1", "p0", 1), ("q3", "p1", 1), ("q4", "p2", 1)]
    splits = {"test": test, "train": train, "dev": dev}
    folder = write_collection(tmp_path / "small", passages, queries, **splits)
    systems = [str(retriever), f"hybrid:{retriever}"]
    caplog.set_level("INFO")
    report = evaluate(systems, folder, output_dir=tmp_path / "out", card=True)
    assert report.content["shared_queries"] == {"dev": 2, "train": 1}
    assert "2 of the 2 queries of test are also in dev" in caplog.text
    for text in (report.file.read_text(), (retriever / "README.md").read_text()):
        assert "2 queries are also in the split dev" in text
        assert "1 query is also in the split train" in text
    dev = load_dev(folder, judged="test", reported=load_reported(folder, split="test"))
    assert dev is not None and list(dev.queries) == ["q4"]
    assert "1 dev queries are too few to choose by" in caplog.text
