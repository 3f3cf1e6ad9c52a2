"""Search in Milvus (Lite, in a file) beside brute force, and its errors."""

import json

import numpy as np
import pytest

from benchmarks.harness import write_embeddings
from hub_scripts.main import main
from modeling_condenser.collection.load import load_passages
from modeling_condenser.encoding.encode import encode_collection
from modeling_condenser.publishing.export import export_encoder
from modeling_condenser.retrieval.dense import SearchSettings, search_embeddings
from modeling_condenser.retrieval.milvus import connect, store_in_milvus
from tests.encoding.making import HashRetriever, hash_vectors
from tests.encoding.test_embeddings import PASSAGES, next_week
from tests.evaluation.making import evaluate_system

pytestmark = pytest.mark.slow
QUERIES = np.random.default_rng(3).standard_normal((150, 16)).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def milvus():
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")


@pytest.fixture(scope="module")
def passages(collection):
    return load_passages(collection)


@pytest.fixture(scope="module")
def embeddings(passages, tmp_path_factory):
    vectors = np.random.default_rng(2).standard_normal((len(passages), 16)).astype(np.float32)
    folder = tmp_path_factory.mktemp("embeddings")
    return write_embeddings(folder, vectors, passages["_id"][:], retriever_fingerprint="a")


@pytest.fixture(scope="module")
def index(embeddings, passages, tmp_path_factory):
    client = connect(f"milvus:{tmp_path_factory.mktemp('milvus')}/vectors.db")
    return store_in_milvus(embeddings, passages, client, parameters="ef=128")


def test_search_equals_exact_search(index, embeddings):
    ids = [f"q{i}" for i in range(len(QUERIES))]
    found = search_embeddings(embeddings, QUERIES, ids, index=index, depth=10)
    exact = search_embeddings(embeddings, QUERIES, ids, depth=10)
    assert list(found) == list(exact)
    for query in ids:
        assert list(found[query]) == list(exact[query])
        assert found[query] == pytest.approx(exact[query], abs=1e-4)


def test_parameters_of_the_search_are_read_or_refused(index, embeddings, passages):
    assert index.parameters == {"ef": 128} and isinstance(index.parameters["ef"], int)
    with pytest.raises(ValueError, match="are 'ef', expected such as ef=128"):
        store_in_milvus(embeddings, passages, index.client, parameters="ef")


def test_a_filter_and_few_passages(index, embeddings, passages):
    vectors = embeddings.vectors(np.arange(60))
    allowed = [row for row in range(60) if passages["title"][row].startswith("Title 1")]
    best = [max(allowed, key=lambda row: vectors[row] @ query) for query in QUERIES]
    scores, rows = index.search(QUERIES, 30, filter='title like "Title 1%"')
    assert rows[:, 0].tolist() == best
    n = len(allowed)
    assert n < 30 and (np.sort(rows[:, :n]) == allowed).all()
    assert (rows[:, n:] == -1).all() and np.isneginf(scores[:, n:]).all()
    [record] = index.client.get(index.name, [passages[7]["_id"]], output_fields=["title", "text"])
    assert (record["title"], record["text"]) == (passages[7]["title"], passages[7]["text"])


def test_an_interrupted_store_continues_and_other_vectors_get_a_collection_of_their_own(
    embeddings, passages, tmp_path, monkeypatch
):
    monkeypatch.setattr("modeling_condenser.retrieval.milvus._ROWS_A_REQUEST", 25)
    client, sizes = connect(f"milvus:{tmp_path}/vectors.db"), []
    upsert = type(client).upsert

    def upsert_twice(self, name, records):
        sizes.append(len(records))
        if len(sizes) == 2:
            raise KeyboardInterrupt
        return upsert(self, name, records)

    monkeypatch.setattr(type(client), "upsert", upsert_twice)
    with pytest.raises(KeyboardInterrupt):
        store_in_milvus(embeddings, passages, client)
    index = store_in_milvus(embeddings, passages, client)
    store_in_milvus(embeddings, passages, client)
    assert sizes == [25, 25, 25, 10]
    vectors = -embeddings.vectors(np.arange(60))
    other = write_embeddings(tmp_path / "b", vectors, passages["_id"][:], retriever_fingerprint="b")
    second = store_in_milvus(other, passages, client)
    assert second.name != index.name
    for each, sign in ((index, 1), (second, -1)):
        scores, _ = each.search(QUERIES[:5], 1)
        best = (sign * QUERIES[:5] @ embeddings.vectors(np.arange(60)).T).max(1)
        assert scores[:, 0] == pytest.approx(best, abs=1e-4)


def test_new_and_changed_passages_are_stored_and_dropped_ones_deleted_by_id(
    tmp_path, monkeypatch, caplog
):
    (passages, _), client = next_week(), connect(f"milvus:{tmp_path}/vectors.db")
    embeddings = encode_collection(HashRetriever(), PASSAGES, tmp_path / "e")
    first = store_in_milvus(embeddings, PASSAGES, client)
    embeddings = encode_collection(HashRetriever(), passages, tmp_path / "e")
    monkeypatch.setattr(type(client), "delete", lambda *args, **how: 1 / 0)  # a kill
    with pytest.raises(ZeroDivisionError):
        store_in_milvus(embeddings, passages, client)
    monkeypatch.undo()
    caplog.set_level("INFO")
    index = store_in_milvus(embeddings, passages, client)
    assert index.name == first.name and "0 passages stored, 3 deleted" in caplog.text
    fields = ["id", "text", "embedding"]
    stored = client.query(index.name, filter='id != ""', output_fields=fields, limit=200)
    vectors = dict(zip(passages["_id"], hash_vectors(passages), strict=True))
    texts = dict(zip(passages["_id"], passages["text"], strict=True))
    assert {each["id"]: each["text"] for each in stored} == texts
    assert all((np.asarray(each["embedding"]) == vectors[each["id"]]).all() for each in stored)


def test_evaluate_states_the_recall_and_search_finds(bert_run, collection, tmp_path, capsys):
    encoder = export_encoder(bert_run, tmp_path / "encoder")
    settings = SearchSettings(index=f"milvus:{tmp_path}/vectors.db")
    result = evaluate_system(str(encoder), collection, tmp_path / "e", depth=10, search=settings)
    exact = evaluate_system(str(encoder), collection, tmp_path / "exact", depth=10)
    assert result.record["recall_against_exact"] == 1
    assert result.evaluation.means == exact.evaluation.means
    assert str(tmp_path) not in json.dumps(result.record["identity"])  # which is published
    words = ["search", str(encoder), str(collection), "the glacier", "--index", settings.index]
    assert main(words) == 0 and "1. p" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("milvus:http://127.0.0.1:1", "Milvus at http://127.0.0.1:1 failed: .*Check the address"),
        ("milvus:no-such-folder/vectors.db", "expected milvus:FILE.db in a folder that exists"),
    ],
)
def test_an_unreachable_milvus_is_an_error_before_anything_is_written(
    index, message, bert_run, collection, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    settings = SearchSettings(index=index)
    with pytest.raises((ValueError, OSError), match=message):
        evaluate_system(f"{bert_run},pooling=cls", collection, tmp_path / "e", search=settings)
    assert not list(tmp_path.iterdir())
