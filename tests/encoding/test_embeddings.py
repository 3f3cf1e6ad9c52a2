"""A folder of embeddings: written, read, as parquet, and encoded in shards by many processes."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, List, Value, load_dataset

from benchmarks.harness import write_embeddings
from modeling_condenser.collection.load import load_passages
from modeling_condenser.encoding import embeddings as module
from modeling_condenser.encoding import pipeline_step
from modeling_condenser.encoding.embeddings import (
    Embeddings,
    encode_collection,
)
from modeling_condenser.encoding.encode import encode, write_table
from modeling_condenser.encoding.pipeline_step import EncodeShards
from modeling_condenser.encoding.retriever import Retriever
from tests.encoding.making import HashRetriever, all_bytes, hash_vectors, make_passages

ROOT = str(Path(__file__).parents[2])

IDS = ["", "a", "a\x00", "\uffff", "\U0001d11e", "東京", "é ", "Z", "0", "a b", "z", "Ä"]


def draw_vectors(n: int, dimension: int = 7) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, dimension)).astype(np.float32)


@pytest.mark.parametrize(("n", "shard_size"), [(1, 1), (10, 3), (12, 4), (7, 100)])
def test_vectors_and_ids_come_back(n, shard_size, tmp_path):
    vectors, ids = draw_vectors(n), IDS[:n]
    write_embeddings(tmp_path, vectors, ids, shard_size=shard_size, retriever_fingerprint="model")
    embeddings = Embeddings.open(tmp_path)
    assert (embeddings.n_passages, embeddings.dimension, embeddings.retriever) == (n, 7, "model")
    blocks = list(embeddings.blocks())
    assert len(blocks) == -(-n // shard_size)
    assert np.concatenate(blocks).tobytes() == vectors.tobytes()
    assert all(isinstance(block, np.memmap) for block in blocks)
    rows = np.random.default_rng(1).integers(0, n, 2 * n)
    assert embeddings.ids(rows) == [ids[row] for row in rows]
    np.testing.assert_array_equal(embeddings.vectors(rows), vectors[rows])


# Vectors of 24 bytes.
@pytest.mark.parametrize(("bytes_a_table", "n_files"), [(10**9, 1), (24 * 16 + 1, 4)])
def test_a_parquet_table_holds_ids_vectors_and_texts(bytes_a_table, n_files, tmp_path, monkeypatch):
    monkeypatch.setattr("modeling_condenser.encoding.encode._BYTES_A_TABLE", bytes_a_table)
    passages, vectors = make_passages(50), draw_vectors(50, 6)
    embeddings = write_embeddings(tmp_path / "e", vectors, passages["_id"][:], shard_size=9)
    files = write_table(embeddings, tmp_path / "table", passages=passages)
    assert [file.name for file in files] == [
        f"data-{i:05d}-of-{n_files:05d}.parquet" for i in range(n_files)
    ]
    names = [str(file) for file in files]
    loaded = load_dataset("parquet", data_files=names, split="train", cache_dir=str(tmp_path / "c"))
    text = Value("string")
    vector = List(Value("float32"), length=6)
    assert loaded.features == {"id": text, "embedding": vector, "title": text, "text": text}
    assert loaded["id"][:] == passages["_id"][:]
    assert (loaded["title"][:], loaded["text"][:]) == (passages["title"][:], passages["text"][:])
    back = np.array(loaded.with_format("numpy")["embedding"][:])
    assert back.dtype == np.float32 and back.tobytes() == vectors.tobytes()


def test_a_table_replaces_an_earlier_one(tmp_path):
    passages = make_passages(50)
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(50), passages["_id"][:])
    first = write_table(embeddings, tmp_path / "table", passages=passages)
    before = [file.read_bytes() for file in first]
    assert write_table(embeddings, tmp_path / "table", passages=passages) == first
    assert [file.read_bytes() for file in first] == before


def test_what_does_not_fit_is_refused_and_nothing_is_overwritten(tmp_path):
    passages, vectors = make_passages(50), draw_vectors(50)
    embeddings = write_embeddings(tmp_path / "e", vectors, passages["_id"][:], shard_size=20)
    for write in (
        lambda: write_table(embeddings, embeddings.folder, passages=passages),
        lambda: write_embeddings(embeddings.folder, vectors, passages["_id"][:]),
    ):
        with pytest.raises(FileExistsError, match="is not empty|holds other files"):
            write()
    (tmp_path / "e" / "shard-00001.npy").unlink()
    with pytest.raises(FileNotFoundError, match="not complete: 1 of 3 shards are missing"):
        Embeddings.open(tmp_path / "e")
    with pytest.raises(FileNotFoundError, match="holds no embeddings"):
        Embeddings.open(tmp_path)


PASSAGES = make_passages(100)


def test_a_collection_is_encoded_with_a_record_and_a_table(bert_folder, collection, tmp_path):
    made = encode(
        model=f"{bert_folder},pooling=mean,passage_max_length=20",
        collection=str(collection),
        out=str(tmp_path / "e"),
        devices="cpu",
        table=str(tmp_path / "table"),
    )
    passages = load_passages(collection)
    retriever = Retriever(bert_folder, pooling="mean", passage_max_length=20)
    expected = retriever.encode_passages(passages)
    np.testing.assert_allclose(made.vectors(np.arange(60)), expected, rtol=0, atol=1e-6)
    assert made.passage_ids.to_pylist() == passages["_id"][:]
    assert made.contract["pooling"] == "mean"
    record = made.record
    assert record["passages_per_second"] == pytest.approx(60 / record["seconds"])
    assert (record["n_encoded"], record["devices"]) == (60, ["cpu"])
    assert [file.name for file in (tmp_path / "table").iterdir()] == ["data-00000-of-00001.parquet"]
    for word, message in (
        ("poling=mean", "no setting 'poling'; it has pooling"),
        ("device=cpu", "no setting 'device'"),
        ("token_budget=many", "token_budget is 'many', expected int"),
    ):
        with pytest.raises(ValueError, match=message):
            encode(model=f"{bert_folder},{word}", collection=str(collection), out=str(tmp_path))


def test_an_interrupted_call_continues_and_a_finished_folder_is_only_opened(tmp_path):
    folder, retriever = tmp_path / "e", HashRetriever()
    with pytest.raises(OSError, match="No space left"):
        encode_collection(HashRetriever(fails_on="text 40"), PASSAGES, folder, shard_size=8)
    again = encode_collection(retriever, PASSAGES, folder)
    assert all_bytes(again) == hash_vectors(PASSAGES).tobytes()
    assert retriever.calls == [f"text {8 * shard}" for shard in range(5, 13)]
    assert again.record["n_encoded"] == 60

    before = {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]}
    encode_collection(HashRetriever(fails_on="text 0"), PASSAGES, folder)
    assert {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]} == before


@pytest.mark.slow
def test_devices_share_the_shards_and_a_failed_worker_is_an_error(bert_folder, tmp_path):
    retriever = Retriever(bert_folder, pooling="mean", device="cpu")
    alone = encode_collection(retriever, PASSAGES, tmp_path / "1", shard_size=9)
    shared = encode_collection(
        retriever, PASSAGES, tmp_path / "2", shard_size=9, devices=["cpu", "cpu"]
    )
    assert all_bytes(shared) == all_bytes(alone)
    assert shared.record["devices"] == ["cpu", "cpu"]
    retriever.folder = tmp_path / "absent"  # which the worker cannot open
    with pytest.raises(RuntimeError, match=r"on cpu \(1\) failed"):
        encode_collection(retriever, PASSAGES, tmp_path / "3", shard_size=9, devices=["cpu", "cpu"])


def test_a_worker_ends_with_the_process_that_started_it():
    script = """
import time
from modeling_condenser.encoding.embeddings import _start

print(_start(time.sleep, 600).pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        worker = int(parent.stdout.readline())  # type: ignore[union-attr]
        os.kill(worker, 0)  # it runs
        parent.kill()
    for _ in range(600):
        if not Path(f"/proc/{worker}").exists() or "\nState:\tZ" in status_of(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker still runs")


def status_of(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/status").read_text()
    return ""


def test_each_device_has_a_worker_unless_there_are_fewer_shards(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for here, devices, n_shards, expected in (
        ("cpu", None, 9, ["cpu"]),
        ("cuda:1", None, 9, ["cuda:1", "cuda:0", "cuda:2"]),
        ("cuda:1", None, 2, ["cuda:1", "cuda:0"]),
        ("cuda:2", ["cuda:2", "cuda:1"], 9, ["cuda:2", "cuda:1"]),
        ("cuda:2", ["cuda:2", "cuda:1"], 0, ["cuda:2"]),  # for the record alone
    ):
        retriever: Any = SimpleNamespace(model=SimpleNamespace(device=torch.device(here)))
        assert module._worker_devices(retriever, devices, n_shards=n_shards) == expected


def test_other_embeddings_and_folders_are_refused_and_kept(tmp_path):
    folder, retriever = tmp_path / "e", HashRetriever()
    encode_collection(retriever, PASSAGES, folder, shard_size=8)
    before = {file: file.read_bytes() for file in folder.iterdir()}
    another = HashRetriever()
    another.passage_fingerprint = "another"
    with pytest.raises(ValueError, match="holds the vectors of another retriever"):
        encode_collection(another, PASSAGES, folder)
    changed = PASSAGES.map(lambda row: {"text": f"{row['text']} elsewhere"})
    with pytest.raises(ValueError, match="holds the vectors of other passages, none of which"):
        encode_collection(retriever, changed, folder)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    with pytest.raises(FileExistsError, match="is not empty|holds other files"):
        encode_collection(retriever, PASSAGES, tmp_path)
    replaced = encode_collection(retriever, changed, folder, is_cache=True)
    assert all_bytes(replaced) == hash_vectors(changed).tobytes()


def test_shards_of_millions_of_passages_can_all_be_open(tmp_path, monkeypatch):
    for n, size in ((100, 256), (100_000, 6_250), (1_000_000, 8_192), (8_841_823, 44_210)):
        assert module._choose_shard_size(n) == size
    monkeypatch.setattr(module, "_MOST_SHARDS", 10)
    encode_collection(HashRetriever(), PASSAGES, tmp_path / "e", shard_size=8)
    many = encode_collection(HashRetriever(), PASSAGES, tmp_path / "many", shard_size=1)
    assert len(many.shards) <= 10
    grown = encode_collection(HashRetriever(), make_passages(200), tmp_path / "e")
    assert len(grown.shards) == 10
    assert all_bytes(grown) == hash_vectors(make_passages(200)).tobytes()


def next_week() -> tuple[Dataset, list[str]]:
    """PASSAGES without three, with one changed, one new and two swapped; and the new texts."""
    rows = PASSAGES.to_list()
    rows[40]["text"] += "!"
    rows[60], rows[61] = rows[61], rows[60]
    del rows[5:8]
    rows.append({"_id": "new", "title": "", "text": "text new"})
    return Dataset.from_list(rows), ["text 40!", "text new"]


def test_only_new_and_changed_passages_are_encoded(tmp_path, caplog):
    folder, (passages, new) = tmp_path / "e", next_week()
    encode_collection(HashRetriever(), PASSAGES, folder, shard_size=8)
    with pytest.raises(OSError, match="No space left"):
        encode_collection(HashRetriever(fails_on=new[0]), passages, folder)
    # Until the update is complete, the folder is that of the earlier passages.
    assert all_bytes(Embeddings.open(folder)) == hash_vectors(PASSAGES).tobytes()
    retriever = HashRetriever()
    caplog.set_level("INFO")
    made = encode_collection(retriever, passages, folder)
    assert "2 new or changed passages are encoded, 96 kept" in caplog.text
    assert retriever.texts == new
    assert all_bytes(made) == hash_vectors(passages).tobytes()
    assert made.passage_ids.to_pylist() == passages["_id"][:]
    assert made.record["n_encoded"] == 2
    fresh = encode_collection(HashRetriever(), passages, tmp_path / "fresh", shard_size=8)
    assert {f.name for f in folder.iterdir()} == {f.name for f in fresh.folder.iterdir()}
    assert {file.name for file in tmp_path.iterdir()} == {"e", "fresh", ".e.lock", ".fresh.lock"}


def encode_twice(passages: Dataset, folder: Path) -> list[int]:
    """How many texts each of two calls at the same time encodes."""
    retrievers = [HashRetriever(), HashRetriever()]
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(encode_collection, each, passages, folder) for each in retrievers]
        for call in calls:
            assert all_bytes(call.result()) == hash_vectors(passages).tobytes()
    return sorted(len(each.texts) for each in retrievers)


def test_of_two_first_calls_one_encodes_and_the_other_waits(tmp_path, monkeypatch):
    passages, create = make_passages(700), Embeddings.create

    def create_slowly(*args: Any) -> None:
        time.sleep(0.1)
        create(*args)

    monkeypatch.setattr(Embeddings, "create", create_slowly)
    assert encode_twice(passages, tmp_path / "e") == [0, 700]


def test_a_killed_update_is_continued_and_another_call_waits_for_it(tmp_path):
    folder, passages = tmp_path / "e", make_passages(700)
    encode_collection(HashRetriever(), passages.select(range(40)), folder)
    with pytest.raises(OSError, match="No space left"):  # in the second of three shards
        encode_collection(HashRetriever(fails_on=passages["text"][40 + 256]), passages, folder)
    assert encode_twice(passages, folder) == [0, 700 - 40 - 256]


def test_passages_without_vectors_in_an_interrupted_folder_are_new(tmp_path):
    folder, (passages, _) = tmp_path / "e", next_week()
    with pytest.raises(OSError, match="No space left"):
        encode_collection(HashRetriever(fails_on="text 8"), PASSAGES, folder, shard_size=8)
    retriever = HashRetriever()
    made = encode_collection(retriever, passages, folder)
    assert all_bytes(made) == hash_vectors(passages).tobytes()
    assert len(retriever.texts) == len(passages) - 5  # of the first shard, three are gone


def test_a_passage_that_has_another_id_is_not_encoded_again(tmp_path):
    encode_collection(HashRetriever(), PASSAGES, tmp_path / "e", shard_size=8)
    rows = PASSAGES.select(range(1, 100))
    renamed = rows.remove_columns("_id").add_column("_id", PASSAGES["_id"][:99])
    unused = HashRetriever()
    made = encode_collection(unused, renamed, tmp_path / "e")
    assert all_bytes(made) == hash_vectors(rows).tobytes() and unused.calls == []
    assert made.passage_ids.to_pylist() == renamed["_id"][:]
    assert made.record["n_encoded"] == 0


def test_a_reader_of_the_earlier_vectors_is_not_disturbed(tmp_path):
    folder, (passages, _) = tmp_path / "e", next_week()
    reader = encode_collection(HashRetriever(), PASSAGES, folder, shard_size=8)
    assert all_bytes(reader) == hash_vectors(PASSAGES).tobytes() and len(reader.passage_ids) == 100
    encode_collection(HashRetriever(), passages, folder)
    assert all_bytes(reader) == hash_vectors(PASSAGES).tobytes() and len(reader.passage_ids) == 100


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


@pytest.mark.parametrize(
    ("n_gpus", "settings", "expected"),
    [
        (1, {}, [None] * 4),
        (3, {}, ["cuda:0", "cuda:0", "cuda:1", "cuda:0"]),
        (3, {"device": "cpu"}, ["cpu"] * 4),
        (3, {"dtype": "int8"}, [None] * 4),
    ],
)
def test_tasks_share_the_gpus_of_a_machine(step, n_gpus, settings, expected, monkeypatch):
    devices: list[str | None] = []

    def open_on(model: str, *, device: str | None = None, dtype: str = "") -> HashRetriever:
        devices.append(device)
        return HashRetriever()

    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setattr(pipeline_step, "Retriever", open_on)
    step = replace(step, settings=settings)
    step.prepare(shard_size=7)
    for rank in (0, 1, 3):
        step(rank=rank, world_size=4)
    assert devices == expected


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
        return subprocess.run(
            [*command, *words],
            env={**os.environ, "PYTHONPATH": ROOT},
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
