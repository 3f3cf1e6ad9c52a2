"""A collection is encoded in shards: continued after a kill, shared among processes, checked."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from modeling_condenser.encoding import encode
from modeling_condenser.encoding.embeddings import (
    Embeddings,
    default_shard_size,
    write_embeddings,
)
from modeling_condenser.encoding.encode import encode_collection, local_device
from modeling_condenser.encoding.memory import peak_memory, resident_bytes
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.repository.contract import EncodingContract
from tests.encoding.stubs import DIMENSION, StubEncoder, hash_vectors, make_passages

ROOT = Path(__file__).parents[2]
N, SHARD_SIZE = 100, 8


def encode_stub(folder: Path, encoder: Any = None, **settings: Any) -> Embeddings:
    stated = {"shard_size": SHARD_SIZE, "progress": False, **settings}
    return encode_collection(encoder or StubEncoder(), make_passages(N), folder, **stated)


def all_bytes(embeddings: Embeddings) -> bytes:
    return b"".join(block.tobytes() for _, block in embeddings.blocks())


def expected_bytes() -> bytes:
    passages = make_passages(N)
    return hash_vectors(list(passages["title"]), list(passages["text"])).tobytes()


@pytest.fixture(scope="module")
def passages(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """60 passages in files, as collections are."""
    rows = {"_id": [f"p{i}" for i in range(60)], "title": ["", "A title"] * 30, "text": texts[:60]}
    folder = tmp_path_factory.mktemp("passages")
    Dataset.from_dict(rows).save_to_disk(str(folder))
    return Dataset.load_from_disk(str(folder))


def test_vectors_are_those_of_the_retriever_and_the_record_says_what_they_took(
    bert_folder: Path, passages: Dataset, tmp_path: Path
) -> None:
    retriever = Retriever(bert_folder, pooling="mean", device="cpu")
    made = encode_collection(retriever, passages, tmp_path, shard_size=9, progress=False)
    np.testing.assert_allclose(
        made.vectors(np.arange(60)), retriever.encode_passages(passages), rtol=0, atol=1e-6
    )
    assert list(made.passage_ids) == [f"p{i}" for i in range(60)]
    record = made.record
    assert (record["n_passages"], record["n_encoded"], record["n_shards"]) == (60, 60, 7)
    assert record["passages_per_second"] == pytest.approx(60 / record["seconds"])
    assert (record["n_processes"], record["devices"]) == (1, ["cpu"])
    assert 50e6 < record["peak_memory_bytes"] < 5e9
    assert record["computation"] == {"device": "cpu", "token_budget": 2048, "dtype": "float32"}


# --- an interrupted run


def test_it_continues_with_the_missing_shards(tmp_path: Path) -> None:
    log = tmp_path / "log"
    encode_stub(tmp_path / "e")
    for shard in (3, 7):
        (tmp_path / "e" / f"shard-{shard:05d}.npy").unlink()
    partial = tmp_path / "e" / ".shard-00003.npy.host-1.partial"
    partial.write_bytes(b"half")
    again = encode_stub(tmp_path / "e", StubEncoder(log=log), shard_size=None)
    assert all_bytes(again) == expected_bytes()
    assert log.read_text().splitlines() == ["text 24", "text 56"]
    assert not partial.exists()
    assert again.record["n_encoded"] == 2 * SHARD_SIZE


def test_a_finished_folder_is_opened_without_encoding_or_writing(tmp_path: Path) -> None:
    folder, log = tmp_path / "e", tmp_path / "log"
    encode_stub(folder)
    before = {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]}
    encode_stub(folder, StubEncoder(log=log), shard_size=None)
    assert not log.exists()
    assert {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]} == before


def test_a_full_disk_keeps_finished_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, log = tmp_path / "e", tmp_path / "log"
    syncs = os.fsync

    def full(descriptor: int) -> None:
        if len(list(folder.glob("shard-*.npy"))) == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        syncs(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device"):
            encode_stub(folder)
    assert not list(folder.glob(".*.partial"))
    assert all_bytes(encode_stub(folder, StubEncoder(log=log))) == expected_bytes()
    assert len(log.read_text().splitlines()) == 7


_KILLED = """
import sys
from pathlib import Path
from modeling_condenser.encoding.encode import encode_collection
from tests.encoding.stubs import StubEncoder, make_passages
encoder = StubEncoder(0.05, log=Path(sys.argv[2]))
encode_collection(encoder, make_passages(100), sys.argv[1], shard_size=8, progress=False)
"""


@pytest.mark.slow
def test_killed_processes_lose_one_shard_at_most(tmp_path: Path) -> None:
    folder, log = tmp_path / "e", tmp_path / "log"
    log.touch()
    for kill in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(folder), str(log)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        while len(log.read_text().splitlines()) < 4 * (kill + 1):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert all_bytes(encode_stub(folder, StubEncoder(log=log))) == expected_bytes()
    assert len(log.read_text().splitlines()) <= 13 + 3
    assert not list(folder.glob(".*.partial"))


# --- several processes


_RANK = """
import sys
from pathlib import Path
from datasets import Dataset
from modeling_condenser.encoding.encode import encode_collection
from modeling_condenser.encoding.retriever import Retriever
from tests.encoding.stubs import StubEncoder, make_passages
encode_collection(StubEncoder(log=Path(f"{sys.argv[1]}.{__import__('os').environ['RANK']}")),
                  make_passages(100), sys.argv[1], shard_size=8, progress=False)
"""


@pytest.mark.slow
def test_ranks_of_torchrun_share_the_shards(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(_RANK)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    process = subprocess.run(
        [sys.executable, *command, str(script), str(tmp_path / "e")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=200,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    embeddings = Embeddings.open(tmp_path / "e")
    assert all_bytes(embeddings) == expected_bytes()
    assert (embeddings.record["n_processes"], embeddings.record["n_encoded"]) == (2, N)
    for rank in range(2):
        first_texts = (tmp_path / f"e.{rank}").read_text().splitlines()
        assert first_texts == [f"text {8 * shard}" for shard in range(13) if shard % 2 == rank]


@pytest.mark.slow
def test_processes_of_one_machine_share_the_shards(
    bert_folder: Path, passages: Dataset, tmp_path: Path
) -> None:
    retriever = Retriever(bert_folder, pooling="mean", device="cpu")
    settings: dict[str, Any] = {"shard_size": 9, "n_threads": 1, "progress": False}
    alone = encode_collection(retriever, passages, tmp_path / "1", **settings)
    shared = encode_collection(retriever, passages, tmp_path / "2", n_processes=2, **settings)
    assert all_bytes(shared) == all_bytes(alone)
    assert shared.record["n_processes"] == 2


@pytest.mark.slow
def test_a_failed_process_is_an_error(bert_folder: Path, passages: Dataset, tmp_path: Path) -> None:
    retriever = Retriever(bert_folder, pooling="mean", device="cpu")
    retriever.settings["pooling"] = "last"  # which the other process cannot open
    with pytest.raises(ChildProcessError, match="on cpu failed: ValueError: pooling is 'last'"):
        encode_collection(
            retriever, passages, tmp_path, shard_size=9, n_processes=2, progress=False
        )


@pytest.mark.parametrize(
    ("own", "n_processes", "devices", "expected"),
    [
        ("cpu", None, None, ["cpu"]),
        ("cpu", 3, None, ["cpu"] * 3),
        ("cuda:1", None, None, ["cuda:1", "cuda:0", "cuda:2"]),
        ("cuda", 4, None, ["cuda", "cuda:1", "cuda:2", "cuda"]),
        ("cuda:2", None, ["cuda:2", "cuda:1"], ["cuda:2", "cuda:1"]),
        ("cuda:2", 1, ["cuda:2", "cuda:1"], ["cuda:2"]),
    ],
)
def test_processes_are_assigned_to_devices(
    own: str,
    n_processes: int | None,
    devices: list[str] | None,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    encoder: Any = StubEncoder(device=own)
    assert encode._worker_devices(encoder, devices, n_processes) == expected


def test_a_rank_takes_the_device_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert local_device(None) is None
    assert local_device(["cuda:4", "cuda:5"]) == "cuda:4"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device(None) == "cuda:1"
    assert local_device(["cuda:4", "cuda:5", "cuda:6"]) == "cuda:4"


# --- what does not fit


class Mean(StubEncoder):
    contract = replace(EncodingContract(8, 8), pooling="mean")


class Wider(StubEncoder):
    dimension = DIMENSION + 1


@pytest.mark.parametrize(
    ("encoder", "settings", "message"),
    [
        (StubEncoder(fingerprint="other"), {}, "fingerprint of the model is 'stub' there"),
        (Mean(), {}, "contract pooling is 'cls' there and 'mean' now"),
        (Wider(), {}, "dimension is 16 there and 17 now"),
        (StubEncoder(), {"shard_size": 9}, "shard_size is 8 there and 9 now"),
    ],
)
def test_embeddings_of_another_model_or_layout_are_refused(
    encoder: StubEncoder, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    encode_stub(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=f"holds other embeddings: .*{message}"):
        encode_stub(tmp_path, encoder, **settings)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_embeddings_of_another_collection_are_refused(tmp_path: Path) -> None:
    encode_stub(tmp_path)
    for n, message in ((N + 1, "n_passages is 100 there and 101"), (N, "of the passages is")):
        rows = make_passages(n).to_dict()
        rows["text"][17] += "."
        with pytest.raises(ValueError, match=message):
            encode_collection(StubEncoder(), Dataset.from_dict(rows), tmp_path, progress=False)


def test_a_folder_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no embeddings"):
        encode_stub(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_embeddings_from_an_array_are_not_taken_for_a_models(tmp_path: Path) -> None:
    ids = list(make_passages(N)["_id"])
    write_embeddings(tmp_path, np.zeros((N, DIMENSION), np.float32), ids, shard_size=SHARD_SIZE)
    with pytest.raises(ValueError, match="holds other embeddings"):
        encode_stub(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows["_id"].__setitem__(5, rows["_id"][50]), "Several passages have the id"),
        (lambda rows: rows["_id"].__setitem__(5, None), "nulls"),
        (lambda rows: rows.pop("title"), "expected at least one, with _id, title and text"),
        (lambda rows: [column.clear() for column in rows.values()], "Got 0 passages"),
    ],
)
def test_passages_that_do_not_fit_are_refused_before_the_first_shard(
    change: Callable[[dict[str, list[Any]]], object], message: str, tmp_path: Path
) -> None:
    rows, log = make_passages(N).to_dict(), tmp_path / "log"
    change(rows)
    with pytest.raises(ValueError, match=message):
        encode_collection(StubEncoder(log=log), Dataset.from_dict(rows), tmp_path / "e")
    assert not log.exists()


def test_a_vector_that_is_not_finite_is_an_error_and_finished_shards_are_kept(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match="1 of 8 vectors of shard 5 .* the first in row 42"):
        encode_stub(tmp_path, StubEncoder(fails_on="text 42"))
    assert len(list(tmp_path.glob("shard-*.npy"))) == 5
    assert all_bytes(encode_stub(tmp_path)) == expected_bytes()


def test_numbers_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="n_processes is 0, expected at least 1"):
        encode_stub(tmp_path / "e", n_processes=0)
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("n", "expected"), [(1, 256), (4097, 257), (22_000, 1375), (8_841_823, 8192)]
)
def test_the_size_of_shards_depends_on_the_collection(n: int, expected: int) -> None:
    assert default_shard_size(n) == expected


def test_folders_of_earlier_versions_are_opened(tmp_path: Path) -> None:
    """Which hold a record of each shard and of the ids, with checksums."""
    folder = tmp_path / "e"
    encode_stub(folder)
    for shard in range(13):
        (folder / f"shard-{shard:05d}.json").write_text('{"first_row": 0, "rows": 8}')
    (folder / "passage_ids.json").write_text("{}")
    (folder / ".claims").touch()
    (folder / "shard-00005.npy").unlink()
    assert all_bytes(encode_stub(folder)) == expected_bytes()


def test_peak_memory_counts_what_was_freed() -> None:
    before = resident_bytes()
    with peak_memory() as peak:
        block = np.ones(10_000_000)
        time.sleep(0.2)
        del block
        assert 70e6 < peak() - before < 200e6
