"""Adaptations of a small published model, from start to end."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from modeling_condenser.adaptation import adapt as stage
from modeling_condenser.adaptation.adapt import (
    Adaptation,
    adapt,
    choose_ridge,
    is_better,
    load_labels,
)
from modeling_condenser.adaptation.query_map import move
from modeling_condenser.adaptation.recipe import AdaptationRecipe
from modeling_condenser.collection.load import load_collection, load_dev, load_passages
from modeling_condenser.encoding.embeddings import encode_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.evaluate import evaluate
from modeling_condenser.evaluation.measures import compare, measure_in_memory
from modeling_condenser.evaluation.verdict import Verdict
from modeling_condenser.retrieval.index import Index
from modeling_condenser.retrieval.systems import parse_system
from tests.encoding.making import save_modules
from tests.publishing.making import write_collection

MAP = np.random.default_rng(0).normal(scale=0.2, size=(32, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def published(bert_folder, tmp_path_factory):
    """A normalised mean-pooled model with prompts."""
    modules = [Pooling(32, pooling_mode="mean"), Normalize()]
    prompts = {"query": "query: ", "document": "passage: "}
    folder = tmp_path_factory.mktemp("published") / "model"
    arguments = {"similarity_fn_name": "cosine", "prompts": prompts}
    save_modules(folder, bert_folder, lambda _: modules, **arguments)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: fr\n---\n# Published\n")
    return folder


@pytest.fixture(scope="module")
def judged(texts, tmp_path_factory):
    """A collection whose queries are parts of passages, in the splits train and dev."""
    passages = [{"_id": f"p{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": " ".join(texts[i].split()[2:9])} for i in range(50)]
    splits = {"train": [(f"q{i}", f"p{i}", 1) for i in range(25)]}
    splits["dev"] = [(f"q{i}", f"p{i}", 1) for i in range(25, 50)]
    return write_collection(tmp_path_factory.mktemp("judged") / "c", passages, queries, **splits)


@pytest.fixture
def one_map(monkeypatch):
    """Every map that is learned is the same one."""
    monkeypatch.setattr(stage, "learn_map", lambda *_, **__: MAP)


@pytest.fixture
def kept_map(one_map, monkeypatch):
    """Every map is the same one, and is kept."""
    monkeypatch.setattr(stage, "is_better", lambda *_: True)


def settings(published, judged, out, **changes):
    return {"model": str(published), "collection": str(judged), "output_dir": str(out), **changes}


@pytest.fixture(scope="module")
def adapted(published, judged, tmp_path_factory):
    """The settings of an adaptation, and what it did."""
    out = tmp_path_factory.mktemp("adapted") / "out"
    arguments = settings(published, judged, out)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stage, "learn_map", lambda *_, **__: MAP)
        patched.setattr(stage, "is_better", lambda *_: True)
        return arguments, adapt(**arguments)


def test_the_written_model_maps_queries_and_leaves_passages_as_they_are(published, adapted):
    _, done = adapted
    model, start = SentenceTransformer(str(done.model)), SentenceTransformer(str(published))
    texts = ["The river museum.", "Oslo"]
    np.testing.assert_array_equal(model.encode_document(texts), start.encode_document(texts))
    expected = move(start.encode_query(texts), MAP)
    np.testing.assert_allclose(model.encode_query(texts), expected, atol=1e-5)
    assert not np.allclose(expected, start.encode_query(texts), atol=1e-2)
    assert model.prompts["query"] == "query: "
    for dtype in ("float32", "bfloat16"):
        own, before = (Retriever(each, dtype=dtype) for each in (done.model, published))
        vectors = own.encode_passages(texts)
        np.testing.assert_array_equal(vectors, before.encode_passages(texts))
        np.testing.assert_allclose(own.encode_queries(texts), expected, atol=0.02)
        assert own.passage_fingerprint == before.passage_fingerprint
        assert own.fingerprint != before.fingerprint
    card = (done.model / "README.md").read_text()
    assert "adapted by a linear map of query vectors. Verdict against its start: " in card
    assert "AutoModel.from_pretrained" not in card
    assert "license: apache-2.0" in card and "language: fr" in card and "# Published" not in card


def check_figures(verdict, start, result, dev):
    """They are those of searches by both models."""
    before, after = (measure_in_memory(each, dev, ["nDCG@10"]).means for each in (start, result))
    assert verdict.comparison.mean_baseline == pytest.approx(before["nDCG@10"], abs=1e-6)
    assert verdict.comparison.mean_system == pytest.approx(after["nDCG@10"], abs=1e-6)


def test_a_map_of_both_sides_moves_passages_and_says_so(published, judged, tmp_path, kept_map):
    published = shutil.copytree(published, tmp_path / "published")
    (published / "provenance.json").write_text('{"source": "of another tool"}')
    done = adapt(**settings(published, judged, tmp_path / "out", sides="both"))
    model, start = SentenceTransformer(str(done.model)), SentenceTransformer(str(published))
    texts = ["The river museum.", "Oslo"]
    for found, before in (
        (model.encode_query(texts), start.encode_query(texts)),
        (model.encode_document(texts), start.encode_document(texts)),
    ):
        np.testing.assert_allclose(found, move(before, MAP), atol=1e-5)
    written, first = Retriever(done.model), Retriever(published)
    assert written.passage_fingerprint != first.passage_fingerprint
    # Verdicts are those of the written model, with passages encoded again.
    dev = load_dev(judged, judged="train", reported=load_collection(judged, split="train"))
    check_figures(done.verdicts["dev alone"], first, written, dev)
    index = Index.build(str(judged), str(done.model), folder=tmp_path / "index")
    assert index.search(["where is the river"], k=1)[0]
    card = (done.model / "README.md").read_text()
    assert "encode passages with this model, too" in card and "encode_query`. Passages" not in card


def test_a_finished_folder_is_only_read(adapted):
    arguments, done = adapted
    assert adapt(**arguments) == done
    with pytest.raises(ValueError, match="seed: .* then, 1 now"):
        adapt(**{**arguments, "seed": 1})


def test_the_next_search_is_the_better_one_of_the_written_model():
    def compared(after, before):
        return Verdict(compare({"q": after}, {"q": before}), measure="nDCG@10", queries="")

    verdicts = {"hybrid": compared(0.5, 0.4), "alone": compared(0.6, 0.3)}
    assert Adaptation(Path("m"), True, "hybrid", "query", verdicts).system == "m"
    half = Adaptation(Path("m"), True, "hybrid", "query", verdicts, "bfloat16")
    assert half.system == "m,dtype=bfloat16"
    assert Adaptation(Path("m"), False, "alone", "query", verdicts).system == "m"
    assert Adaptation(Path("m"), False, "hybrid", "query", verdicts).system == "hybrid:m,fusion=0.5"
    with_comma = Adaptation(Path("m, 1"), False, "hybrid", "query", verdicts).system
    assert parse_system(json.loads(with_comma)).model == "hybrid:m, 1"


def test_the_verdict_by_dev_queries_is_that_of_the_written_model(published, judged, adapted):
    _, done = adapted
    dev = load_dev(judged, judged="train", reported=load_collection(judged, split="train"))
    check_figures(done.verdicts["dev alone"], Retriever(published), Retriever(done.model), dev)


def test_copies_of_labels_are_no_dev_queries(published, judged, tmp_path, one_map):
    folder = shutil.copytree(judged, tmp_path / "collection")
    rows = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
    for i in range(25, 45):  # the first of them say the same as labels
        rows[i]["text"] = f"{rows[i - 25]['text'].upper()}?"
    (folder / "queries.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = adapt(**settings(published, folder, tmp_path / "out"))
    assert not [name for name in done.verdicts if name.startswith("dev")]


def test_vectors_of_passages_are_not_encoded_again(
    published, judged, adapted, tmp_path, monkeypatch, kept_map
):
    arguments, done = adapted
    stored = tmp_path / "stored"
    encode_collection(Retriever(published), load_passages(judged), stored)
    monkeypatch.setattr(Retriever, "encode_passages", None)
    again = adapt(**{**arguments, "output_dir": str(tmp_path / "out"), "embeddings": str(stored)})
    assert again.verdicts == done.verdicts
    for name, model in (("first", done.model), ("second", again.model)):
        index = Index.build(str(judged), f"hybrid:{model}", folder=tmp_path / name)
        assert len(index.search(["where is the river"], k=3)[0]) == 3
    both, others = [str(published), str(done.model)], {"embeddings": str(stored), "split": "dev"}
    named = {"systems": both, "collection": str(judged), "output_dir": str(tmp_path / "both")}
    assert len(evaluate(**named, **others).results) == 2
    # The index of the start serves the adapted model.
    encode_collection(Retriever(done.model), load_passages(judged), stored)


def test_vectors_that_an_evaluation_keeps_are_not_encoded_again(
    published, judged, adapted, tmp_path, monkeypatch, kept_map
):
    arguments, done = adapted
    monkeypatch.chdir(tmp_path)
    evaluate(systems=f"hybrid:{published},fusion=0.5", collection=str(judged), split="train")
    monkeypatch.setattr(Retriever, "encode_passages", None)
    again = adapt(**{**arguments, "output_dir": "out"})
    assert again.verdicts == done.verdicts
    with pytest.raises(TypeError, match="not callable"):  # in another precision
        adapt(**{**arguments, "output_dir": "other", "dtype": "bfloat16"})


def test_a_map_that_is_not_better_leaves_the_start_as_it_is(published, judged, tmp_path, one_map):
    done = adapt(**settings(published, judged, tmp_path / "out"))
    assert not done.is_adapted
    assert done.verdicts["alone"].outcome != "better"
    for file in published.rglob("*.*"):
        assert (done.model / file.relative_to(published)).read_bytes() == file.read_bytes()


def test_named_questions_and_the_others_are_judged_apart(
    published, judged, tmp_path, texts, one_map
):
    passages = [json.loads(line) for line in (judged / "corpus.jsonl").read_text().splitlines()]
    queries = [{"_id": f"q{i}", "text": " ".join(texts[i].split()[:9])} for i in range(30)]
    pairs = [(f"q{i}", f"p{i // 2 if i < 20 else i}", 1) for i in range(30)]
    folder = write_collection(tmp_path / "c", passages, queries, train=pairs)
    done = adapt(**settings(published, folder, tmp_path / "out"))
    assert [*done.verdicts] == ["hybrid", "alone", "named", "others"]
    n_queries = {name: sum(v.comparison[-3:]) for name, v in done.verdicts.items()}
    assert n_queries["hybrid"] == n_queries["others"] == 30
    assert 0 < n_queries["named"] <= 20


def test_copies_of_a_question_are_one_judgement(published, judged, tmp_path, texts, one_map):
    passages = [json.loads(line) for line in (judged / "corpus.jsonl").read_text().splitlines()]
    names = [(i, copy) for i in range(25) for copy in range(1 + 3 * (i < 5))]
    queries = [{"_id": f"q{i}-{c}", "text": " ".join(texts[i].split()[:9])} for i, c in names]
    pairs = [(f"q{i}-{c}", f"p{i}", 1) for i, c in names]
    folder = write_collection(tmp_path / "c", passages, queries, train=pairs, few=pairs[:30])
    done = adapt(**settings(published, folder, tmp_path / "out"))
    assert [sum(v.comparison[-3:]) for v in done.verdicts.values()] == [25, 25]
    with pytest.raises(ValueError, match="has 15 judged queries in few"):
        adapt(**settings(published, folder, tmp_path / "few", splits=["few"]))


def test_others_are_not_judged_where_most_questions_share_passages(
    published, judged, tmp_path, texts, one_map, caplog
):
    passages = [json.loads(line) for line in (judged / "corpus.jsonl").read_text().splitlines()]
    queries = [{"_id": f"q{i}", "text": " ".join(texts[i].split()[:9])} for i in range(30)]
    pairs = [(f"q{i}", f"p{i}", 1) for i in range(30)] + [(f"q{i}", "p40", 1) for i in range(20)]
    folder = write_collection(tmp_path / "c", passages, queries, train=pairs)
    done = adapt(**settings(published, folder, tmp_path / "out"))
    assert [*done.verdicts] == ["hybrid", "alone", "named"] and not done.is_adapted
    assert "there is no line `others`" in caplog.text


def test_without_judged_queries_nothing_is_adapted(published, judged, tmp_path):
    (judged / "qrels/few.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tp1\t1\n")
    for split, message in (("few", "1 judged queries in few;"), ("none", "no split 'none'")):
        with pytest.raises(ValueError, match=f"{message}.* at least 20 are needed.*--labels"):
            adapt(**settings(published, judged, tmp_path / "out", splits=[split]))
    (judged / "qrels/few.tsv").unlink()
    assert not (tmp_path / "out").exists()


def test_several_splits_and_a_part_of_the_judged_queries(published, judged, tmp_path, one_map):
    for size, n in ((None, 50), (30, 30)):
        changes = {"splits": ["train", "dev"], "train_size": size}
        done = adapt(**settings(published, judged, tmp_path / str(size), **changes))
        assert f"on {n} judged queries" in str(done.verdicts["hybrid"])
        assert "dev hybrid" not in done.verdicts
    with pytest.raises(ValueError, match="train_size is 51, but .* has 50 judged queries"):
        adapt(**settings(published, judged, tmp_path / "51", **{**changes, "train_size": 51}))


def test_judgements_of_a_query_in_two_splits_are_put_together(judged):
    (judged / "qrels/more.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tp49\t1\n")
    recipe = AdaptationRecipe("m", str(judged), "out", splits=["train", "more"])
    assert load_labels(recipe).qrels["q1"] == {"p1": 1, "p49": 1}
    (judged / "qrels/more.tsv").unlink()


def test_models_that_cannot_be_adapted_are_refused(bert_folder, judged, adapted, tmp_path):
    dot = save_modules(tmp_path / "m", bert_folder, lambda n: [Pooling(n, pooling_mode="mean")])
    for model, message in (
        (dot, "compares by dot"),
        (adapted[1].model, "is adapted already"),
        (bert_folder, "does not state how its vectors are made"),
    ):
        with pytest.raises(ValueError, match=message):
            adapt(**settings(model, judged, tmp_path / "out"))


def test_the_ridge_is_the_best_of_those_that_cost_the_others_nothing():
    assert choose_ridge([0.3, 0.2, 0.1], [-0.01, 0.0, 0.02]) == 1
    assert choose_ridge([0.3, 0.2], [-0.03, -0.01]) == 1


def test_a_model_is_kept_if_one_judge_says_better_and_none_shows_a_loss():
    def verdict(gain):
        before = {str(i): 0.1 for i in range(40)}
        after = {name: value + gain * (int(name) % 3 > 0) for name, value in before.items()}
        return Verdict(compare(after, before), measure="nDCG@10", queries="")

    better, same, worse = verdict(0.1), verdict(0.0), verdict(-0.1)
    assert is_better({"hybrid": better, "alone": worse}, "hybrid")
    unused = {"alone": same}
    assert is_better({"hybrid": same, "dev hybrid": better, **unused}, "hybrid")
    assert not is_better({"hybrid": better, "dev hybrid": worse, **unused}, "hybrid")
    assert not is_better({"hybrid": same, "dev hybrid": same, **unused}, "hybrid")
    assert not is_better({"hybrid": better, "others": worse, **unused}, "hybrid")
    unused["named"] = better
    assert is_better({"hybrid": better, "others": same, **unused}, "hybrid")
    assert not is_better({"hybrid": better, **unused}, "hybrid")  # others cannot be judged
    assert not is_better({"hybrid": better, "dev hybrid": same, **unused}, "hybrid")
    assert is_better({"hybrid": better, "dev hybrid": better, **unused}, "hybrid")


def test_a_map_for_a_hybrid_is_not_kept_if_the_start_alone_is_better_still():
    def verdict(before, after):
        figures = ({str(i): value + 0.001 * i for i in range(40)} for value in (after, before))
        return Verdict(compare(*figures), measure="nDCG@10", queries="")

    hybrid = verdict(0.3, 0.4)
    assert is_better({"hybrid": hybrid, "alone": verdict(0.35, 0.2)}, "hybrid")
    assert not is_better({"hybrid": hybrid, "alone": verdict(0.5, 0.45)}, "hybrid")
    without_bm25 = {"hybrid": verdict(0.5, 0.45), "alone": hybrid}
    assert is_better(without_bm25, "alone")
