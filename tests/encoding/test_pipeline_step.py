"""Tasks of a DataTrove executor encode a collection together, also after they were killed."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

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


def test_another_collection_is_refused(step, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline_step, "Retriever", lambda model: HashRetriever())
    step.prepare(shard_size=7)
    other = make_collection(tmp_path / "other", texts[1:])
    with pytest.raises(ValueError, match="holds other embeddings, with a different passages"):
        replace(step, collection=str(other))(rank=1, world_size=2)
    assert len(Embeddings.open(step.folder, complete=False).missing_shards()) == 9


_RUN = """
import sys
from datatrove.executor import LocalPipelineExecutor
from modeling_condenser.encoding.pipeline_step import EncodeShards

if __name__ == "__main__":
    model, collection, out = sys.argv[1:]
    settings = {"pooling": "mean", "device": "cpu"}
    step = EncodeShards(
        model=model, collection=collection, folder=out + "/vectors", settings=settings
    )
    step.prepare(shard_size=7)
    LocalPipelineExecutor([step], tasks=5, workers=2, logging_dir=out + "/logs").run()
"""


@pytest.mark.slow
def test_a_local_executor_encodes_again_what_is_missing(bert_folder, collection, tmp_path):
    pytest.importorskip("datatrove")
    script, vectors = tmp_path / "run.py", tmp_path / "vectors"
    script.write_text(_RUN)
    command = [sys.executable, str(script), str(bert_folder), str(collection), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(command, env=environment, timeout=200, check=True)
    expected = encode_collection(
        Retriever(bert_folder, pooling="mean", device="cpu"),
        load_passages(collection),
        tmp_path / "expected",
        shard_size=7,
        progress=False,
    )
    assert all_bytes(Embeddings.open(vectors)) == all_bytes(expected)
    # As after a kill: the task of shards 3 and 8 did not complete.
    (tmp_path / "logs" / "completions" / "00003").unlink()
    (vectors / "shard-00008.npy").unlink()
    before = {file: file.stat().st_mtime_ns for file in vectors.glob("shard-*.npy")}
    subprocess.run(command, env=environment, timeout=200, check=True)
    assert all_bytes(Embeddings.open(vectors)) == all_bytes(expected)
    assert {file: file.stat().st_mtime_ns for file in before} == before
