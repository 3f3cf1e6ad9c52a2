"""A collection is encoded in shards: continued after a kill, shared among processes, checked."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from modeling_condenser.encoding import encode
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.encoding.encode import encode_collection, local_device
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.hub.contract import EncodingContract
from tests.encoding.hashing import HashRetriever, hash_vectors, make_passages

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
N, SHARD_SIZE = 100, 8


def encode_hashes(folder: Path, retriever: Any = None, **settings: Any) -> Embeddings:
    stated = {"shard_size": SHARD_SIZE, "progress": False, **settings}
    return encode_collection(retriever or HashRetriever(), make_passages(N), folder, **stated)


def all_bytes(embeddings: Embeddings) -> bytes:
    return b"".join(block.tobytes() for _, block in embeddings.blocks())


def expected_bytes() -> bytes:
    passages = make_passages(N)
    return hash_vectors(list(passages["title"]), list(passages["text"])).tobytes()


def test_vectors_are_those_of_the_retriever_and_the_record_describes_the_work(
    bert_folder: Path, texts: list[str], tmp_path: Path
) -> None:
    rows = {"_id": [f"p{i}" for i in range(60)], "title": ["", "A title"] * 30, "text": texts[:60]}
    passages = Dataset.from_dict(rows)
    retriever = Retriever(bert_folder, pooling="mean", device="cpu")
    made = encode_collection(retriever, passages, tmp_path, shard_size=9, progress=False)
    np.testing.assert_allclose(
        made.vectors(np.arange(60)), retriever.encode_passages(passages), rtol=0, atol=1e-6
    )
    assert made.passage_ids.to_pylist() == [f"p{i}" for i in range(60)]
    record = made.record
    assert (record["n_passages"], record["n_encoded"], record["n_shards"]) == (60, 60, 7)
    assert record["passages_per_second"] == pytest.approx(60 / record["seconds"])
    assert (record["n_processes"], record["devices"]) == (1, ["cpu"])
    assert 50e6 < record["peak_memory_bytes"] < 5e9
    assert record["computation"] == {"device": "cpu", "token_budget": 2048, "dtype": "float32"}


def test_an_interrupted_call_continues_with_the_missing_shards(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(OSError, match="No space left"):
        encode_hashes(tmp_path / "e", HashRetriever(fails_on="text 40"))
    partial = tmp_path / "e" / ".shard-00007.npy.host-1.partial"
    partial.write_bytes(b"half")
    again = encode_hashes(tmp_path / "e", HashRetriever(log=log), shard_size=None)
    assert all_bytes(again) == expected_bytes()
    assert log.read_text().splitlines() == [f"text {8 * shard}" for shard in range(5, 13)]
    assert not partial.exists()
    assert again.record["n_encoded"] == 60


def test_a_finished_folder_is_opened_without_encoding_or_writing(tmp_path: Path) -> None:
    folder, log = tmp_path / "e", tmp_path / "log"
    encode_hashes(folder)
    before = {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]}
    encode_hashes(folder, HashRetriever(log=log), shard_size=None)
    assert not log.exists()
    assert {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]} == before


_ENCODE = """
import sys
from pathlib import Path
from modeling_condenser.encoding.encode import encode_collection
from tests.encoding.hashing import HashRetriever, make_passages
if __name__ == "__main__":
    retriever = HashRetriever(0.05, log=Path(sys.argv[2]))
    encode_collection(retriever, make_passages(100), sys.argv[1], shard_size=8, progress=False)
"""


@pytest.mark.slow
def test_killed_processes_lose_one_shard_at_most(tmp_path: Path) -> None:
    folder, log = tmp_path / "e", tmp_path / "log"
    log.touch()
    for kill in range(3):
        process = subprocess.Popen([sys.executable, "-c", _ENCODE, folder, log], env=ENVIRONMENT)
        while len(log.read_text().splitlines()) < 4 * (kill + 1):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert all_bytes(encode_hashes(folder, HashRetriever(log=log))) == expected_bytes()
    assert len(log.read_text().splitlines()) <= 13 + 3
    assert not list(folder.glob(".*.partial"))


@pytest.mark.slow
def test_ranks_of_torchrun_share_the_shards(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    own_log = "sys.argv[1] + '.' + os.environ['RANK']"
    script.write_text(f"import os\n{_ENCODE.replace('sys.argv[2]', own_log)}")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    subprocess.run(
        [sys.executable, *command, str(script), str(tmp_path / "e")],
        env=ENVIRONMENT,
        timeout=200,
        check=True,
    )
    embeddings = Embeddings.open(tmp_path / "e")
    assert all_bytes(embeddings) == expected_bytes()
    assert embeddings.record["n_processes"] == 2
    for rank in range(2):
        first_texts = (tmp_path / f"e.{rank}").read_text().splitlines()
        assert first_texts == [f"text {8 * shard}" for shard in range(13) if shard % 2 == rank]


@pytest.mark.slow
def test_devices_share_the_shards_and_a_failed_worker_is_an_error(
    bert_folder: Path, texts: list[str], tmp_path: Path
) -> None:
    rows = {"_id": [f"p{i}" for i in range(60)], "title": [""] * 60, "text": texts[:60]}
    retriever = Retriever(bert_folder, pooling="mean", device="cpu")
    settings: dict[str, Any] = {"shard_size": 9, "progress": False}
    passages = Dataset.from_dict(rows)
    alone = encode_collection(retriever, passages, tmp_path / "1", **settings)
    settings["devices"] = ["cpu", "cpu"]
    shared = encode_collection(retriever, passages, tmp_path / "2", **settings)
    assert all_bytes(shared) == all_bytes(alone)
    assert shared.record["n_processes"] == 2
    retriever.settings["pooling"] = "last"  # which the worker cannot open
    with pytest.raises(Exception, match="ValueError: pooling is 'last'"):
        encode_collection(retriever, passages, tmp_path / "3", **settings)


def test_each_device_has_a_worker_and_each_rank_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for own, devices, expected in (
        ("cpu", None, ["cpu"]),
        ("cuda:1", None, ["cuda:1", "cuda:0", "cuda:2"]),
        ("cuda", None, ["cuda", "cuda:1", "cuda:2"]),
        ("cuda:2", ["cuda:2", "cuda:1"], ["cuda:2", "cuda:1"]),
    ):
        retriever: Any = HashRetriever(device=own)
        assert encode._worker_devices(retriever, devices) == expected
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert local_device(None) is None
    assert local_device(["cuda:4", "cuda:5"]) == "cuda:4"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device(None) == "cuda:1"
    assert local_device(["cuda:4", "cuda:5", "cuda:6"]) == "cuda:4"


def test_other_embeddings_are_refused_and_kept(tmp_path: Path) -> None:
    encode_hashes(tmp_path / "e")
    before = {file: file.read_bytes() for file in (tmp_path / "e").iterdir()}
    mean, half = HashRetriever(), HashRetriever()
    mean.contract = replace(EncodingContract(8, 8), pooling="mean")
    half.dtype = "bfloat16"
    for retriever, settings, message in (
        (HashRetriever(fingerprint="other"), {}, "retriever is 'stub' there and 'other' now"),
        (mean, {}, "pooling is 'cls' there and 'mean' now"),
        (half, {}, "dtype is 'float32' there and 'bfloat16' now"),
        (HashRetriever(), {"shard_size": 9}, "shard_size is 8 there and 9 now"),
    ):
        with pytest.raises(ValueError, match=f"holds other embeddings: .*{message}"):
            encode_hashes(tmp_path / "e", retriever, **settings)
    rows = make_passages(N).to_dict()
    rows["text"][17] += "."
    with pytest.raises(ValueError, match="holds other embeddings: passages is"):
        encode_collection(HashRetriever(), Dataset.from_dict(rows), tmp_path / "e")
    assert {file: file.read_bytes() for file in (tmp_path / "e").iterdir()} == before


def test_wrong_passages_and_folders_are_refused_before_the_first_shard(tmp_path: Path) -> None:
    log, passages = tmp_path / "log", make_passages(N)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no embeddings"):
        encode_hashes(tmp_path / "mine", HashRetriever(log=log))
    double = Dataset.from_dict({**passages.to_dict(), "_id": ["p"] * N})
    for wrong, message in (
        (double, "100 passages have 1 ids"),
        (passages.remove_columns("title"), "expected at least one, with _id, title and text"),
    ):
        with pytest.raises(ValueError, match=message):
            encode_collection(HashRetriever(log=log), wrong, tmp_path / "e")  # type: ignore[arg-type]
    assert not log.exists()
    encode_hashes(tmp_path / "e")  # the refused passages left nothing that is in the way
