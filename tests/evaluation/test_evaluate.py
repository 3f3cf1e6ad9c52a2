"""The evaluation stage, against NumPy brute force: what it writes, reads again and refuses."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from huggingface_hub import ModelCard
from scipy import stats
from torch.nn.functional import cosine_similarity

from modeling_condenser.collection.load import (
    load_collection,
    load_dev,
    load_passages,
    load_reported,
)
from modeling_condenser.evaluation import evaluate as evaluate_module
from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.evaluation.measures import evaluate_run, holm
from modeling_condenser.files.models import EncodingContract
from modeling_condenser.publishing import push as push_module
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.publishing.provenance import read_results
from modeling_condenser.retrieval import systems
from modeling_condenser.retrieval.bm25 import Bm25
from modeling_condenser.retrieval.faiss_index import recall_against_exact
from modeling_condenser.retrieval.runs import read_run, write_run
from modeling_condenser.retrieval.systems import open_searcher, parse_system
from tests.encoding.making import note_encoded
from tests.evaluation.making import evaluate_system
from tests.publishing.loopback_hub import contents
from tests.publishing.making import plain_vectors, write_collection


def test_systems_of_every_kind_stand_in_one_report(retriever, bert_folder, collection, tmp_path):
    run_file = write_run({"q40": {"p40": 2.0, "p41": 1.0}}, tmp_path / "theirs.trec", tag="x")
    prompt = 'find, as "a=b",\nthis: '
    plain = {"model": str(bert_folder), "pooling": "mean", "query_prompt": prompt, "name": "plain"}
    settings = {"measures": ["MRR@10", "R@20"], "output_dir": tmp_path / "out", "depth": 30}
    systems = [retriever, plain, run_file]
    named = {"systems": systems, "collection": collection, "baseline": "bm25"}
    report = evaluate(**named, **settings)
    folder = tmp_path / "out" / "small" / "test"
    settings = json.loads((folder / "results.json").read_text())["systems"]["plain"]["settings"]
    assert settings == {"pooling": "mean", "query_prompt": prompt}
    assert report.file == folder / "report.md"
    assert list(report.means) == ["bm25", "retriever", "plain", "theirs"]
    # Of 20 queries the given run answers one, at rank 1.
    assert report.means["theirs"] == {"MRR@10": 1 / 20, "R@20": 1 / 20}
    difference = report.means["plain"]["MRR@10"] - report.means["bm25"]["MRR@10"]
    assert report.comparisons["plain", "MRR@10"].difference == pytest.approx(difference)
    assert re.search(r"\ntheirs +MRR@10 +0\.0500 ", str(report))
    assert list(folder.parent.glob("embeddings/retriever-*/embeddings/manifest.json"))
    command = report.content["command"]
    assert command.startswith("condenser evaluate ") and f" {collection} --baseline bm25" in command
    without = (folder / "results.json").read_text() + report.file.read_text()
    for setting in (json.dumps(command)[1:-1], command):
        without = without.replace(setting, "")
    assert str(tmp_path) not in without  # paths are in the command only

    loaded = load_collection(collection)
    ids = np.array(loaded.passages["_id"])
    titles = [f"{title} : " if title else "" for title in loaded.passages["title"]]
    pairs = zip(titles, loaded.passages["text"], strict=True)
    texts = [f"river {title}{text}" for title, text in pairs]
    asked = [f"why {query}" for query in loaded.queries.values()]
    passages = plain_vectors(retriever, texts, 24).double().numpy()
    queries = plain_vectors(retriever, asked, 8).double().numpy()
    actual = read_run(folder / "retriever" / "run-30.trec")
    reciprocals = []
    for query_id, scores in zip(loaded.queries, queries @ passages.T, strict=True):
        best = np.argsort(-scores)
        assert list(actual[query_id]) == ids[best[:30]].tolist()
        np.testing.assert_allclose(list(actual[query_id].values()), scores[best[:30]], rtol=1e-5)
        rank = 1 + ids[best].tolist().index(f"p{query_id[1:]}")  # of the one relevant passage
        reciprocals.append(1 / rank if rank <= 10 else 0.0)
    assert report.means["retriever"]["MRR@10"] == pytest.approx(np.mean(reciprocals), abs=1e-9)
    values = dict(zip(loaded.queries, reciprocals, strict=True))
    assert report.per_query["retriever"]["MRR@10"] == pytest.approx(values)


def test_a_run_is_used_again_only_for_the_same_search(collection, tmp_path, monkeypatch):
    copied = shutil.copytree(collection, tmp_path / "small")
    opened = []
    search = evaluate_module.open_stored
    monkeypatch.setattr(
        evaluate_module,
        "open_stored",
        lambda *a, **k: opened.append(a[0].name) or search(*a, **k),
    )

    def find_result(system="bm25", **settings):
        opened.clear()
        return evaluate_system(system, copied, tmp_path / "out", **settings)

    def find(*args, **settings):
        return find_result(*args, **settings).evaluation

    first = find(measures=["P@1"])
    loaded = load_collection(copied)
    run = Bm25(loaded.passages).search(loaded.queries)
    assert first == evaluate_run(loaded.qrels, run, measures=["P@1"]) and opened == ["bm25"]
    assert find(measures=["P@1"]) == first and not opened
    # Judgements may change: they are read anew.
    qrels = copied / "qrels" / "test.tsv"
    qrels.write_text(qrels.read_text().replace("\t1\n", "\t0\n", 1))
    assert find(measures=["P@5"]).unanswerable == ("q40",) and not opened
    # Another depth is another file; another system or other passages replace the run.
    assert "R@100" not in find(depth=50).means
    assert opened == ["bm25"]
    run_file = write_run({"q41": {"p41": 2.0}}, tmp_path / "theirs.trec", tag="x")
    assert find(f"{run_file},name=bm25").means["MRR@10"] == 1 / 19
    whole = find()
    assert opened == ["bm25"] and find() == whole and not opened
    with (copied / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "new", "title": "", "text": "the old telescope"}\n')
    run_file = find_result().run_file
    assert opened == ["bm25"]
    run_file.unlink()  # to search again
    assert find() and opened == ["bm25"]


def test_a_fusion_is_chosen_once(retriever, collection, tmp_path, monkeypatch):
    chosen = []
    choose = systems.choose_fusion
    monkeypatch.setattr(systems, "choose_fusion", lambda *a: chosen.append(1) or choose(*a))
    system, passages = parse_system(f"hybrid:{retriever}"), load_passages(collection)
    dev = load_collection(collection)
    for _ in range(2):
        open_searcher(system, passages, tmp_path, dev=dev)
    assert len(chosen) == 1
    query = next(iter(dev.queries))
    fewer = replace(dev, qrels={**dev.qrels, query: {}})
    open_searcher(system, passages, tmp_path, dev=fewer)
    assert len(chosen) == 2


def test_bm25_and_hybrid_systems_share_an_index(retriever, collection, tmp_path, monkeypatch):
    make, made = Bm25._make_index, []
    monkeypatch.setattr(Bm25, "_make_index", lambda *args: made.append(1) or make(*args))
    hybrid = f"hybrid:{retriever},fusion=0.3"
    systems = ["bm25", hybrid, "bm25,language=none", f"{hybrid},language=none", "bm25,preset=dpr"]
    named = {"systems": systems, "collection": collection, "output_dir": tmp_path}
    assert len(evaluate(**named).results) == 5
    assert len(made) == 3


def test_the_depth_is_that_of_the_measures_and_the_report_names_the_language(collection, tmp_path):
    result = evaluate_system("bm25", collection, tmp_path / "out", measures=["R@200", "MRR@10"])
    assert result.run_file.name == "run-200.trec"
    assert evaluate_system("bm25", collection, tmp_path / "out").run_file.name == "run-100.trec"
    whole = evaluate_system("bm25", collection, tmp_path / "whole", measures=["MAP", "MRR@10"])
    assert whole.run_file.name == "run-1000.trec"
    cut = evaluate_system("bm25", collection, tmp_path / "cut", measures=["MAP"], depth=20)
    assert cut.run_file.name == "run-20.trec"
    [report] = (tmp_path / "out").rglob("report.md")
    assert "language english" in report.read_text()


def test_systems_with_the_same_vectors_encode_once(retriever, collection, tmp_path, monkeypatch):
    systems = [str(retriever), f"{retriever},name=other", f"hybrid:{retriever},query_prompt=find: "]
    encoded = note_encoded(monkeypatch)
    evaluate(systems=systems, collection=collection, output_dir=tmp_path / "one")
    n_passages = len(load_passages(collection))
    assert len(encoded) == n_passages
    [stored] = (tmp_path / "one").glob(f"*/embeddings/{Path(retriever).name}-*/embeddings")
    settings = {"collection": collection, "output_dir": tmp_path / "two", "embeddings": stored}
    evaluate(systems=[*systems, "bm25"], **settings)
    assert len(encoded) == n_passages
    with pytest.raises(ValueError, match="are of one encoder, and 2 are named"):
        evaluate(systems=[retriever, f"{retriever},passage_max_length=9"], **settings)
    with pytest.raises(ValueError, match="holds the vectors of another retriever"):
        evaluate(systems=f"{retriever},passage_max_length=9", **settings)


def test_a_run_file_of_another_split_is_refused(collection, tmp_path):
    run_file = write_run({"other": {"p40": 2.0}}, tmp_path / "theirs.trec", tag="x")
    with pytest.raises(ValueError, match="has none of the 20 queries: is it of their split"):
        evaluate_system(run_file, collection, tmp_path / "out")


def test_a_run_file_of_other_passages_is_refused_or_named(collection, tmp_path, caplog):
    [query, *_] = load_collection(collection).queries
    run_file = write_run({query: {"doc7": 2.0}}, tmp_path / "theirs.trec", tag="x")
    with pytest.raises(ValueError, match="1 of 1 passages are not in the collection, .*'doc7'"):
        evaluate_system(run_file, collection, tmp_path / "out")
    write_run({query: {"doc7": 2.0, "p00": 1.0}}, run_file, tag="x")
    evaluate_system(run_file, collection, tmp_path / "out")
    assert "1 of 2 passages are not in the collection, such as 'doc7'" in caplog.text


def test_an_approximate_index_reports_its_recall(retriever, collection, tmp_path):
    search = {"index": "IVF4,Flat", "search_parameters": "nprobe=1", "depth": 10}
    named = {"systems": retriever, "collection": collection, "output_dir": tmp_path / "out"}
    report = evaluate(**named, **search)
    exact = evaluate_system(retriever, collection, tmp_path / "exact", depth=10)
    runs = [read_run(result.run_file) for result in (*report.results, exact)]
    recall = report.results[0].record["recall_against_exact"]
    assert 0 < recall == recall_against_exact(*runs, depth=10) < 1
    assert f"recall against exact {recall}" in report.file.read_text()


def test_the_first_numbers_of_vectors_are_searched(bert_run, collection, tmp_path):
    contract = EncodingContract(8, 24, similarity="cosine")
    folder = export_encoder(bert_run, tmp_path / "retriever", contract=contract)
    systems = [folder, f"{folder},truncate_dim=8"]
    settings = {"collection": collection, "output_dir": tmp_path / "out", "depth": 10}
    report = evaluate(systems=systems, **settings)
    assert [result.record["bytes_per_vector"] for result in report.results] == [4 * 32, 4 * 8]
    # The first numbers, at length 1, by transformers and NumPy alone.
    loaded = load_collection(collection)
    texts = [f"{p['title']} {p['text']}".strip() for p in loaded.passages]
    vectors = [
        plain_vectors(folder, some, length).numpy()[:, :8]
        for some, length in ((list(loaded.queries.values()), 8), (texts, 24))
    ]
    queries, passages = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors)
    run = read_run(report.results[1].run_file)
    ids = np.array(loaded.passages["_id"])
    for query, scores in zip(loaded.queries, queries @ passages.T, strict=True):
        assert list(run[query]) == ids[np.argsort(-scores)[:10]].tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"systems": []}, "name at least one system"),
        ({"systems": ["bm25"], "depth": 0}, "depth is 0, expected at least 1"),
        ({"systems": ["bm25"], "depth": 5}, "too few passages for MRR@10, nDCG@10, R@100"),
        ({"systems": ["bm25"], "baseline": ""}, "names no system"),
        ({"systems": ["m"], "task": "triplets", "index": "SQ8"}, "index .* are for retrieval"),
        ({"systems": ["m"], "task": "triplets", "split": "dev"}, "split is for retrieval"),
        ({"systems": ["bm25"], "measures": ["NCDG@10"]}, "'NCDG@10' is not a measure"),
        ({"systems": ["bm25"], "measures": []}, "measures is empty"),
        ({"systems": ["bm25"], "measures": ["R@9"], "depth": 8}, "needs 9 passages .* depth is 8"),
        ({"systems": ["bm25"], "cost": True}, "none is among the systems"),
        ({"systems": ["bm25"], "embeddings": "v"}, "embeddings are of one encoder, and 0"),
        ({"systems": ["bm25"], "card": True}, "only retrieval by a local export"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_written(
    collection, tmp_path, monkeypatch, settings, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        evaluate(collection=collection, **settings)
    assert not [*tmp_path.iterdir()]


def test_graded_pairs_and_triplets_are_measured_by_the_systems_vectors(
    bert_folder, texts, tmp_path
):
    settings = {"output_dir": tmp_path / "out"}
    scores = [(i * 7) % 12 / 2 for i in range(12)]
    sides = {"sentence1": texts[:12], "sentence2": texts[20:32]}
    pd.DataFrame({**sides, "score": scores}).to_csv(tmp_path / "pairs.csv", index=False)
    mean, best = (f"{bert_folder},pooling={p},similarity=cosine,name={p}" for p in ("mean", "max"))
    named = {"systems": mean, "collection": tmp_path / "pairs.csv", "baseline": best}
    report = evaluate(**named, task="graded_pairs", **settings)
    for system, means in report.means.items():
        vectors = (plain_vectors(bert_folder, s, pooling=system) for s in sides.values())
        expected = stats.spearmanr(cosine_similarity(*vectors), scores).statistic
        assert means["Spearman"] == pytest.approx(expected, abs=1e-9)
    assert ("mean", "Spearman") in report.comparisons
    assert report.file == tmp_path / "out" / "pairs" / "graded_pairs" / "report.md"

    sides = {"anchor": texts[:15], "positive": texts[15:30], "negative": texts[30:45]}
    pd.DataFrame(sides).to_csv(tmp_path / "t.csv", index=False)
    system = f"{bert_folder},pooling=cls,similarity=euclidean,name=plain"
    report = evaluate(systems=system, collection=tmp_path / "t.csv", task="triplets", **settings)
    anchor, positive, negative = (plain_vectors(bert_folder, s).numpy() for s in sides.values())
    right = np.linalg.norm(anchor - positive, axis=1) < np.linalg.norm(anchor - negative, axis=1)
    assert report.means == {"plain": {"triplet accuracy": pytest.approx(right.mean())}}
    assert "15 items" in report.content["title"]


@pytest.fixture
def folder(bert_run: Path, tmp_path: Path) -> Path:
    return export_encoder(bert_run, tmp_path / "retriever")


def test_a_card_has_corrected_p_values_and_says_what_they_were_made_from(
    folder, collection, tmp_path
):
    measures = ["MRR@10", "R@20"]
    settings = {"collection": collection, "measures": measures, "output_dir": tmp_path / "out"}
    report = evaluate(systems=folder, baseline="bm25", card=True, **settings)
    [result] = read_results(folder)
    ours, bm25 = report.means["retriever"], report.means["bm25"]
    assert result.values == ours and result.n_queries == 20
    assert result.intervals["MRR@10"] == list(
        report.content["results"]["MRR@10"]["retriever"]["interval"]
    )
    comparisons = [report.comparisons["retriever", measure] for measure in measures]
    adjusted = holm([comparison.p_value for comparison in comparisons])
    expected = [
        ["bm25", measure, pytest.approx(bm25[measure]), c.difference, p]
        for measure, c, p in zip(measures, comparisons, adjusted, strict=True)
    ]
    assert [list(compared.values()) for compared in result.comparisons] == expected
    card = (folder / "README.md").read_text()
    difference = ours["MRR@10"] - bm25["MRR@10"]
    assert f"| bm25 | {bm25['MRR@10']:.4f} | {difference:+.4f} |" in card
    assert result.source is None and str(tmp_path) not in card
    # An approximate search is another result.
    index = {"index": "HNSW32", "search_parameters": "efSearch=64"}
    evaluate(systems=folder, card=True, **settings, **index)
    exact, approximate = read_results(folder)
    assert (exact.search, approximate.search) == ({}, index)


def test_the_command_names_a_collection_as_the_hub_does(folder, collection, tmp_path, monkeypatch):
    loaded = load_collection(collection)
    monkeypatch.setattr(evaluate_module, "load_reported", lambda name, split: loaded)
    monkeypatch.chdir(tmp_path)
    settings = {"collection": "owner/small", "measures": ["P@5"], "depth": 20, "card": True}
    report = evaluate(systems=folder, **settings)
    options = "owner/small --measures P@5 --depth 20"
    [actual] = read_results(folder)
    assert (actual.source, actual.n_queries) == ("owner/small", 20)
    assert actual.command == f"condenser evaluate OWNER/NAME {options}"
    assert report.content["command"] == f"condenser evaluate {folder} {options}"
    evaluate(systems=f"{folder},dtype=bfloat16", **settings)
    [_, actual] = read_results(folder)
    assert actual.command.startswith("condenser evaluate OWNER/NAME,dtype=bfloat16 owner/small")
    assert actual.search == {"dtype": "bfloat16"} and "dtype=bfloat16" in actual.key
    assert "exact search, dtype bfloat16, " in (folder / "README.md").read_text()
    # A baseline that searches with the model itself is named as the model is.
    evaluate(systems=folder, baseline=f"hybrid:{folder},fusion=rrf", **settings)
    actual, _ = read_results(folder)
    baseline = "owner/small --baseline hybrid:OWNER/NAME,fusion=rrf"
    assert actual.command.startswith(f"condenser evaluate OWNER/NAME {baseline}")
    (tmp_path / "bm25").mkdir()  # is not what the baseline names
    evaluate(systems=folder, baseline="bm25", **settings)
    [actual] = [each for each in read_results(folder) if "dtype" not in each.key]
    assert "owner/small --baseline bm25" in actual.command
    # With another similarity than its contract's, it is another system.
    with pytest.raises(ValueError, match="card is true, but only retrieval by a local export"):
        evaluate(systems=f"{folder},similarity=cosine", **settings)


def test_a_model_is_changed_only_if_its_card_is_asked_for_and_a_push_publishes_the_figures(
    folder, collection, tmp_path, monkeypatch
):
    before = contents(folder)
    settings = {"systems": folder, "collection": collection, "output_dir": tmp_path / "out"}
    report = evaluate(**settings)
    assert contents(folder) == before
    monkeypatch.setattr(push_module, "find_opening_error", lambda _: None)
    options = {"license": "mit", "dry_run": True}
    assert "model-index" not in push_module.push(folder=folder, name="owner/name", **options).card
    evaluate(card=True, **settings)
    pushed = push_module.push(folder=folder, name="owner/name", **options)
    figures = {f.metric_type: f.metric_value for f in ModelCard(pushed.card).data.eval_results}
    assert figures == {m: round(value, 4) for m, value in report.means["retriever"].items()}


def test_a_card_names_the_weights_and_no_folder_of_this_machine(folder, collection, tmp_path):
    """bfloat16 beside float32, as int8 beside it."""
    other = {"model": str(folder), "dtype": "bfloat16"}
    settings = {"systems": [other], "collection": collection, "output_dir": tmp_path / "out"}
    evaluate(baseline=str(folder), card=True, **settings)
    card = (folder / "README.md").read_text()
    assert "| its float32 weights |" in card and "bfloat16 weights" in card
    shorter = {"model": str(folder), "truncate_dim": 8}
    evaluate(baseline=shorter, card=True, **{**settings, "systems": [str(folder)]})
    card = (folder / "README.md").read_text()
    assert "| retriever-8 |" in card  # not of the same model's weights
    assert str(tmp_path) not in card


def test_a_baseline_that_is_also_named_as_a_system_gets_its_figures_on_its_card(
    folder, collection, tmp_path
):
    settings = {"baseline": folder, "collection": collection, "output_dir": tmp_path / "out"}
    for others in (["bm25"], []):
        report = evaluate(systems=[*others, folder], card=True, **settings)
        [result] = read_results(folder)
        assert result.values == report.means["retriever"] and not result.comparisons
        systems = " ".join(others) or "OWNER/NAME"
        command = f"condenser evaluate {systems} {collection.name} --baseline OWNER/NAME"
        assert result.command.startswith(command)


def test_queries_that_are_passages_are_searched_one_passage_deeper(tmp_path):
    claims = ["uniforms save money", "uniforms do not save money", "uniforms waste money"]
    passages = [{"_id": f"a{i}", "text": text} for i, text in enumerate(claims)]
    judged = [("a0", "a1", 1), ("a1", "a0", 1), ("a2", "a2", 1)]
    folder = write_collection(tmp_path / "claims", passages, passages, test=judged)
    result = evaluate_system("bm25", folder, tmp_path / "out", depth=2, measures=["R@2"])
    actual = read_run(result.run_file)
    # a2 is judged relevant to the query of its id, so it is another text.
    assert [len(actual[query]) for query in ("a0", "a1", "a2")] == [2, 2, 2]
    assert (
        "a0" not in actual["a0"] and "a1" not in actual["a1"] and next(iter(actual["a2"])) == "a2"
    )
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
    report = evaluate(systems=systems, collection=folder, output_dir=tmp_path / "out", card=True)
    assert report.content["shared_queries"] == {"dev": 2, "train": 1}
    assert "2 of the 2 queries of test are also in dev" in caplog.text
    text = report.file.read_text()
    assert "Queries that are also in the split dev: 2." in text
    assert "2 queries are also in the split dev" in (retriever / "README.md").read_text()
    dev = load_dev(folder, judged="test", reported=load_reported(folder, split="test"))
    assert dev is not None and list(dev.queries) == ["q4"]
    assert "1 dev queries are too few to choose by" in caplog.text
