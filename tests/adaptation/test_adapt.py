"""Adaptations of a small published model, from start to end."""

import json
import shutil
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from transformers import AutoModel

from modeling_condenser.adaptation import adapt as stage
from modeling_condenser.adaptation.adapt import adapt, collect_queries, load_dev_queries
from modeling_condenser.adaptation.queries import Query
from modeling_condenser.adaptation.recipe import AdaptationRecipe, MapSettings
from modeling_condenser.adaptation.vector_map import TrainingQueries
from modeling_condenser.collection.load import load_collection, load_passages
from modeling_condenser.encoding import embeddings as encoding
from modeling_condenser.encoding.embeddings import Embeddings, encode_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.evaluation.verdict import compare_with_start
from modeling_condenser.retrieval.index import Index
from tests.encoding.making import save_modules
from tests.publishing.making import write_collection


@pytest.fixture(scope="module")
def published(bert_folder, tmp_path_factory):
    """A normalised mean-pooled model with prompts."""
    modules = [Pooling(32, pooling_mode="mean"), Normalize()]
    prompts = {"query": "query: ", "document": "passage: "}
    folder = tmp_path_factory.mktemp("published") / "model"
    arguments = {"similarity_fn_name": "cosine", "prompts": prompts}
    return save_modules(folder, bert_folder, lambda _: modules, **arguments)


@pytest.fixture(scope="module")
def corpus(texts, tmp_path_factory):
    """A collection without queries."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = [{"_id": f"p{i}", "title": f"Part {i}", "text": text} for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def judged(corpus, texts, tmp_path_factory):
    """The same passages with queries, in the splits dev and train."""
    passages = [json.loads(line) for line in (corpus / "corpus.jsonl").read_text().splitlines()]
    queries = [{"_id": f"q{i}", "text": " ".join(texts[i].split()[2:6])} for i in range(40)]
    splits = {"dev": [(f"q{i}", f"p{i}", 1) for i in range(40)]}
    splits["train"] = [("q1", "p4", 1), ("q1", "p5", 0), ("q1", "p6", 1)]
    return write_collection(tmp_path_factory.mktemp("judged") / "c", passages, queries, **splits)


def settings(published, corpus, out, **changes):
    small = {"n_queries": 60, "steps": 20, "batch_size": 16}
    small["kinds"] = ["sentence", "span", "keywords"]
    paths = {"model": str(published), "corpus": str(corpus), "output_dir": str(out)}
    return {**small, **paths, **changes}


@pytest.fixture(scope="module")
def adapted(published, corpus, tmp_path_factory):
    """The settings of an adaptation, and what it did."""
    out = tmp_path_factory.mktemp("adapted") / "out"
    arguments = settings(published, corpus, out, keep_adapted=True)
    return arguments, adapt(**arguments)


def test_the_adapted_model_is_the_start_and_a_map(published, adapted):
    arguments, done = adapted
    assert done.is_adapted
    assert done.verdict.comparison.mean_baseline > 0
    model, start = SentenceTransformer(str(done.model)), SentenceTransformer(str(published))
    assert [type(module) for module in model] == [Transformer, Pooling, Dense, Normalize]
    assert model.prompts["query"] == "query: "
    assert model.max_seq_length == start.max_seq_length
    texts = ["The river museum.", "Oslo"]
    found, before = model.encode_query(texts), start.encode_query(texts)
    moved = before @ model[2].linear.weight.detach().numpy().T
    np.testing.assert_allclose(found, moved / np.linalg.norm(moved, axis=1)[:, None], atol=1e-5)
    assert not np.allclose(found, before, atol=1e-2)
    np.testing.assert_allclose(Retriever(done.model).encode_queries(texts), found, atol=1e-5)
    card = (done.model / "README.md").read_text()
    assert "adapted by a linear map of the vectors. Verdict against its start: " in card
    assert "AutoModel.from_pretrained" not in card
    # A finished folder is only read.
    assert adapt(**arguments) == done
    with pytest.raises(ValueError, match="seed: .* then, 1 now"):
        adapt(**{**arguments, "seed": 1})


def test_the_figures_of_the_verdict_are_those_of_the_written_model(published, judged, tmp_path):
    done = adapt(**settings(published, judged, tmp_path / "out", keep_adapted=True))
    loaded = load_collection(judged, split="dev")
    again = compare_with_start(Retriever(published), Retriever(done.model), loaded).comparison
    assert "judged dev queries" in str(done.verdict)
    own = done.verdict.comparison
    assert own.mean_system == pytest.approx(again.mean_system, abs=1e-6)
    assert own.mean_baseline == pytest.approx(again.mean_baseline, abs=1e-6)


def test_few_dev_queries_are_no_judges(published, judged, tmp_path, caplog):
    few = tmp_path / "few"
    shutil.copytree(judged, few)
    dev = (judged / "qrels/dev.tsv").read_text().splitlines()
    (few / "qrels/dev.tsv").write_text("\n".join(dev[:20]))  # a head and 19 queries
    arguments = settings(published, few, tmp_path / "out")
    with caplog.at_level("INFO"):
        done = adapt(**arguments)
    assert "19 judged dev queries are fewer than 20: made queries decide" in caplog.text
    assert "not trained on; this is no evidence" in done.verdict.queries
    shutil.copy(judged / "qrels/dev.tsv", few / "qrels/dev.tsv")
    with pytest.raises(ValueError, match="holds another run .data: "):
        adapt(**arguments)


def test_a_query_that_is_trained_on_is_no_judge(published, judged, tmp_path):
    recipe = AdaptationRecipe(str(published), str(judged), str(tmp_path))
    assert len(load_dev_queries(recipe).queries) == 40
    assert len(load_dev_queries(replace(recipe, labels=True)).queries) == 39


def test_a_kind_without_others_that_were_kept_is_no_judge(published, corpus, tmp_path):
    queries = [Query(f"part {row}", row % 50, "title") for row in range(400)]
    training = TrainingQueries(queries, *[np.ones((400, 2))] * 3)
    recipe = AdaptationRecipe(str(published), str(corpus), str(tmp_path))
    passages = load_passages(corpus)
    adapter = stage._Adapter(recipe, MapSettings(), None, passages, queries, None)
    with pytest.raises(ValueError, match="Nothing decides whether the result is better"):
        adapter.verdict_queries(training)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0}, "temperature is 0.0, expected at least"),
        ({"kinds": ["span"]}, "Nothing decides whether the result is better"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    published, corpus, tmp_path, monkeypatch, change, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        adapt(**settings(published, corpus, "out", **change))
    assert not (tmp_path / "out").exists()


def test_labels_are_judged_queries_of_the_split_train(published, judged, tmp_path):
    recipe = AdaptationRecipe(str(published), judged, str(tmp_path), labels=True, kinds=["title"])
    passages = load_passages(judged)

    def judged_queries(**changes):
        queries = collect_queries(replace(recipe, **changes), passages)
        return [query for query in queries if query.kind == "judged"]

    text = load_collection(judged, split="train").queries["q1"]
    both = [Query(text, row, "judged") for row in (4, 6)]
    assert judged_queries() == both
    drawn = [judged_queries(train_size=1, seed=seed) for seed in range(9)]
    assert all(len(some) == 1 for some in drawn) and {*chain(*drawn)} == {*both}
    with pytest.raises(ValueError, match="train_size is 3, but .* has 2"):
        judged_queries(train_size=3)


def test_without_a_gain_the_start_itself_is_written_and_its_vectors(published, corpus, tmp_path):
    done = adapt(
        **settings(published, corpus, tmp_path / "out", learning_rate=1e-12, whitening=0.0)
    )
    names = ("embeddings", "start-embeddings")
    stored, start = (Embeddings.open(tmp_path / "out" / name) for name in names)
    assert stored.retriever == start.retriever == Retriever(done.model).fingerprint
    np.testing.assert_array_equal(*(np.concatenate([*own.blocks()]) for own in (stored, start)))
    assert (done.is_adapted, done.verdict.outcome) == (False, "no difference")
    assert "not trained on" in str(done.verdict)
    for file in published.rglob("*.*"):
        assert (done.model / file.relative_to(published)).read_bytes() == file.read_bytes()


def test_vectors_that_are_stored_are_not_encoded_again(
    published, corpus, adapted, tmp_path, monkeypatch
):
    arguments, done = adapted
    passages = load_passages(corpus)
    encoded = Retriever(done.model).encode_passages(passages)
    stored = str(tmp_path / "stored")
    encode_collection(Retriever(published), passages, stored)
    with monkeypatch.context() as patched:
        patched.setattr(encoding, "encode_shards", None)
        again = adapt(**{**arguments, "output_dir": str(tmp_path / "out"), "embeddings": stored})
    own = (each.verdict.comparison.mean_baseline for each in (again, done))
    assert next(own) == pytest.approx(next(own))
    monkeypatch.setattr(Retriever, "encode_passages", None)
    run = done.model.parent  # names its model
    index = Index.build(str(corpus), f"hybrid:{run}", folder=tmp_path / "index")
    found = np.concatenate([*Embeddings.open(tmp_path / "index/embeddings").blocks()])
    np.testing.assert_allclose(found, encoded, atol=1e-5)
    assert len(index.search(["where is the river"], k=3)[0]) == 3
    # Not taken for other passages.
    fewer = passages.select(range(len(passages) - 1))
    with pytest.raises(TypeError, match="not callable"):
        Index.build(fewer, str(done.model))


def test_a_collection_that_is_one_text_repeated_is_refused(published, tmp_path):
    passages = [{"_id": f"p{i}", "text": "Bees fly. They rest."} for i in range(100)]
    same = write_collection(tmp_path / "same", passages, [{"_id": "q", "text": "bees"}])
    with pytest.raises(ValueError, match="has 1 different passages; at least 64"):
        adapt(**settings(published, same, tmp_path / "out"))


def test_the_precision_of_the_start_is_kept(published, corpus, tmp_path):
    half = tmp_path / "half"
    SentenceTransformer(str(published), model_kwargs={"dtype": "bfloat16"}).save(str(half))
    done = adapt(**settings(half, corpus, tmp_path / "out", keep_adapted=True))
    assert AutoModel.from_pretrained(done.model, dtype="auto").dtype == torch.bfloat16
    vectors = SentenceTransformer(str(done.model)).encode_query(["The river museum."])
    own = Retriever(done.model).encode_queries(["The river museum."])
    np.testing.assert_allclose(vectors.astype(np.float32), own, atol=2e-2)


def test_encoding_in_bfloat16_does_not_round_the_written_weights(published, corpus, tmp_path):
    arguments = settings(published, corpus, tmp_path / "out", keep_adapted=True, dtype="bfloat16")
    written = AutoModel.from_pretrained(adapt(**arguments).model).state_dict()
    start = AutoModel.from_pretrained(published).state_dict()
    for name in ("embeddings.word_embeddings.weight", "encoder.layer.0.output.dense.weight"):
        assert torch.equal(written[name], start[name])


def test_a_model_that_compares_by_the_inner_product_is_refused(bert_folder, corpus, tmp_path):
    model = save_modules(tmp_path / "m", bert_folder, lambda n: [Pooling(n, pooling_mode="mean")])
    with pytest.raises(ValueError, match="compares by dot"):
        adapt(**settings(model, corpus, tmp_path / "out"))
