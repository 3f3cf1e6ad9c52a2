"""Tasks of a DataTrove executor encode a collection together, also after they were killed."""

import pytest

from modeling_condenser.collection.load import load_passages
from modeling_condenser.encoding import pipeline_step
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.encoding.encode import encode_collection
from modeling_condenser.encoding.pipeline_step import EncodeShards
from modeling_condenser.encoding.retriever import Retriever
from tests.encoding.making import HashRetriever, all_bytes, hash_vectors
from tests.hub.making import make_collection


@pytest.fixture
def step(collection, tmp_path):
    return EncodeShards(model="stub", collection=str(collection), folder=str(tmp_path / "vectors"))


def test_tasks_encode_only_their_missing_shards(step, collection, monkeypatch):
    passages, opened = load_passages(collection), []

    def open_with(*, fails_on=None):
        opened.append(HashRetriever(fails_on=fails_on))
        monkeypatch.setattr(pipeline_step, "Retriever", lambda model: opened[-1])

    open_with(fails_on=passages["text"][4 * 7])  # of shard 4
    with pytest.raises(FileNotFoundError, match="holds no embeddings"):
        step(rank=0, world_size=2)
    step.prepare(shard_size=7)
    with pytest.raises(OSError, match="No space left"):
        step(rank=0, world_size=2)
    for rank in (1, 0):
        open_with()
        step(rank=rank, world_size=2)
    calls = [[passages["text"].index(text) // 7 for text in each.calls] for each in opened]
    assert calls == [[0, 2, 4], [1, 3, 5, 7], [4, 6, 8]]
    assert all_bytes(Embeddings.open(step.folder)) == hash_vectors(passages).tobytes()


def test_another_model_or_other_passages_are_refused(step, texts, tmp_path, monkeypatch):
    retriever = HashRetriever()
    monkeypatch.setattr(pipeline_step, "Retriever", lambda model: retriever)
    step.prepare(shard_size=7)
    other = make_collection(tmp_path / "other", texts[:50])
    changed = EncodeShards(model="stub", collection=str(other), folder=step.folder)
    with pytest.raises(ValueError, match="prepared for another model or other passages"):
        changed(rank=1, world_size=2)
    retriever.fingerprint = "other"
    with pytest.raises(ValueError, match="prepared for another model or other passages"):
        step(rank=1, world_size=2)
    assert len(Embeddings.open(step.folder, complete=False).missing_shards()) == 9


@pytest.mark.slow
def test_a_local_executor_continues_what_was_begun(bert_folder, collection, tmp_path):
    executor = pytest.importorskip("datatrove.executor")
    settings = {"pooling": "mean", "device": "cpu"}
    where = {"model": str(bert_folder), "collection": str(collection)}
    step = EncodeShards(**where, folder=str(tmp_path / "vectors"), settings=settings)
    step.prepare(shard_size=7)
    step(rank=3, world_size=5)
    shards = {file: file.stat().st_mtime_ns for file in (tmp_path / "vectors").glob("shard-*.npy")}
    assert sorted(file.name for file in shards) == ["shard-00003.npy", "shard-00008.npy"]
    logs = str(tmp_path / "logs")
    executor.LocalPipelineExecutor([step], tasks=5, workers=2, logging_dir=logs).run()
    assert {file: file.stat().st_mtime_ns for file in shards} == shards
    passages, retriever = load_passages(collection), Retriever(bert_folder, **settings)
    expected = encode_collection(retriever, passages, tmp_path / "expected", shard_size=7)
    assert all_bytes(Embeddings.open(tmp_path / "vectors")) == all_bytes(expected)
