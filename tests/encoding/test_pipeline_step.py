"""Tasks of a DataTrove executor encode a collection together, also after they were killed."""

import os
import subprocess
import sys
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


_RUN = """
import os, signal, sys
from datatrove.executor import LocalPipelineExecutor
from modeling_condenser.encoding.pipeline_step import EncodeShards

class KilledAtTask3:
    def __call__(self, data, rank, world_size):
        if rank == 3:
            os.killpg(0, signal.SIGKILL)

if __name__ == "__main__":
    model, collection, out, *killed = sys.argv[1:]
    settings = {"pooling": "mean", "device": "cpu"}
    step = EncodeShards(
        model=model, collection=collection, folder=out + "/vectors", settings=settings
    )
    step.prepare(shard_size=7)
    pipeline = [*(KilledAtTask3() for _ in killed), step]
    LocalPipelineExecutor(pipeline, tasks=5, workers=2, logging_dir=out + "/logs").run()
"""


@pytest.mark.slow
def test_a_killed_local_executor_continues_without_its_completed_tasks(
    bert_folder, collection, tmp_path
):
    pytest.importorskip("datatrove")

    def run(*words: str) -> subprocess.CompletedProcess:
        script = tmp_path / "run.py"
        script.write_text(_RUN)
        command = [sys.executable, str(script), str(bert_folder), str(collection), str(tmp_path)]
        root = str(Path(__file__).parents[2])
        return subprocess.run(
            [*command, *words],
            env={**os.environ, "PYTHONPATH": root},
            start_new_session=True,
            capture_output=True,
            text=True,
            timeout=200,
        )

    assert run("killed").returncode == -9
    done = {file.name for file in (tmp_path / "logs" / "completions").iterdir()}
    shards = {file: file.stat().st_mtime_ns for file in (tmp_path / "vectors").glob("shard-*.npy")}
    assert {"00000", "00001", "00002"} & done and "00003" not in done and 2 <= len(shards) < 9
    again = run()
    assert again.returncode == 0, again.stderr[-3000:]
    assert f"Skipping {len(done)} already completed tasks" in again.stderr
    assert {file: file.stat().st_mtime_ns for file in shards} == shards
    expected = encode_collection(
        Retriever(bert_folder, pooling="mean", device="cpu"),
        load_passages(collection),
        tmp_path / "expected",
        shard_size=7,
    )
    assert all_bytes(Embeddings.open(tmp_path / "vectors")) == all_bytes(expected)
