"""Encoding that cannot lose work: killed, damaged, shared out, and stopped by full disks."""

import errno
import hashlib
import json
import os
import shutil
import socket
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

from modeling_condenser.encoding import crew, encode
from modeling_condenser.encoding.claims import Claims
from modeling_condenser.encoding.embeddings import Embeddings, write_embeddings
from modeling_condenser.encoding.encode import encode_collection
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.encoding.shards import default_shard_size
from modeling_condenser.repository.contract import EncodingContract
from tests.encoding.stubs import DIMENSION, StubEncoder, StubOpener, hash_vectors, make_passages

ROOT = Path(__file__).parents[2]
N, SHARD_SIZE = 100, 8


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def encode_stub(folder: Path, encoder: Any = None, **settings: Any) -> Embeddings:
    stated = {"shard_size": SHARD_SIZE, "n_processes": 1, "progress": False, **settings}
    return encode_collection(encoder or StubEncoder(), make_passages(N), folder, **stated)


def all_bytes(embeddings: Embeddings) -> bytes:
    return b"".join(block.tobytes() for _, block in embeddings.blocks())


def expected_bytes() -> bytes:
    passages = make_passages(N)
    return hash_vectors(list(passages["title"]), list(passages["text"])).tobytes()


# --- what happens in other processes; see scenarios.py


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    process = subprocess.run(
        [sys.executable, ROOT / "tests/encoding/scenarios.py", tmp_path_factory.mktemp("seen")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FREE_PORT": str(free_port())},
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer


def test_killed_ten_times_it_ends_with_the_same_bits_and_loses_a_shard_a_kill_at_most(
    seen: dict[str, Any],
) -> None:
    killed = seen["killed_at_random"]
    assert (killed["kills"], killed["status"]) == (10, 0)
    assert killed["sha"] == seen["undisturbed"]
    assert killed["shards_begun"] == 40
    assert max(killed["lost_per_kill"]) <= 1
    assert killed["calls"] == 40 + sum(killed["lost_per_kill"])
    assert killed["leftovers"] == []


def test_killed_before_any_write_or_rename_it_ends_with_the_same_bits_and_leaves_nothing(
    seen: dict[str, Any],
) -> None:
    killed = seen["killed_at_every_step"]
    assert killed.pop("kills") > 20  # manifest, ids, 3 shards with records: 3 steps each
    assert killed == {"status": 0, "again": 0, "leftovers": []}


def test_two_runs_on_one_folder_help_each_other(seen: dict[str, Any]) -> None:
    two = seen["two_at_once"]
    assert two == {"statuses": [0, 0], "calls": 40, "processes": 2, "sha": seen["undisturbed"]}


def test_a_living_processs_shard_is_left_alone_and_a_dead_ones_is_taken_over(
    seen: dict[str, Any],
) -> None:
    assert seen["taken_over"] == {
        "waits": True,
        "untouched": [".shard-00005.npy.other-1.partial"],
        "status": 0,
        "sha": seen["undisturbed"],
        "leftovers": [],
    }


def test_a_limit_on_file_sizes_stops_it_clearly_and_it_goes_on_without(
    seen: dict[str, Any],
) -> None:
    limited = seen["file_size_limit"]
    assert (limited["status"], limited["again"], limited["leftovers"]) == (1, 0, [])
    assert "shard-00000.npy cannot be written" in limited["error"]


def test_a_rank_whose_peer_was_killed_says_so_and_keeps_its_own_shards(
    seen: dict[str, Any],
) -> None:
    ranks = seen["a_rank_dies"]
    assert ranks["status"] == 1
    assert ranks["seconds"] < 10
    assert "ConnectionError: Rank 0 of 2 waited for the others, but one has ended" in ranks["error"]
    assert ranks["done"] == list(range(0, 40, 2))


def test_memory_does_not_grow_with_the_passages(seen: dict[str, Any]) -> None:
    growth = seen["memory_growth"]
    # 16 bytes for each of 60,000 more ids; their texts are 60 MB, their vectors 4 MB.
    assert growth["80000"] - growth["20000"] < 6_000_000


# --- a real encoder, in one process and in several

N_REAL = 60


@pytest.fixture(scope="module")
def passages(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """In files, as collections are."""
    folder = tmp_path_factory.mktemp("passages")
    rows = {
        "_id": [f"p{i}" for i in range(N_REAL)],
        "title": ["" if i % 3 else f"Title {i}" for i in range(N_REAL)],
        "text": texts[:N_REAL],
    }
    Dataset.from_dict(rows).save_to_disk(folder)
    return Dataset.load_from_disk(folder)


@pytest.fixture(scope="module")
def alone(
    bert_folder: Path, passages: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> Embeddings:
    retriever = Retriever(bert_folder, pooling="mean", device="cpu")
    folder = tmp_path_factory.mktemp("alone")
    return encode_collection(
        retriever, passages, folder, shard_size=9, n_processes=1, progress=False
    )


def test_the_rows_are_the_vectors_of_the_passages(
    alone: Embeddings, bert_folder: Path, passages: Dataset
) -> None:
    retriever = Retriever(bert_folder, pooling="mean", device="cpu")
    expected = retriever.encode_passages(passages)
    np.testing.assert_allclose(alone.vectors(np.arange(N_REAL)), expected, rtol=0, atol=2e-6)
    assert list(alone.passage_ids) == passages["_id"][:]
    assert alone.manifest["contract"]["pooling"] == "mean"
    assert alone.manifest["computation"] == {
        "device": "cpu",
        "n_threads": 1,
        "token_budget": 2048,
        "dtype": "float32",
    }


def test_two_processes_give_the_bits_of_one(
    alone: Embeddings, bert_folder: Path, passages: Dataset, tmp_path: Path
) -> None:
    threads = torch.get_num_threads()
    retriever = Retriever(bert_folder, pooling="mean", device="cpu")
    # The first one is slowed down, so that the other one has its share on any machine.
    quick = retriever.encode_passages

    def slow(passages: Dataset, *, progress: bool = False) -> np.ndarray:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("shard-*.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        return quick(passages, progress=progress)

    retriever.encode_passages = slow  # type: ignore[method-assign]
    together = encode_collection(
        retriever, passages, tmp_path, shard_size=9, n_processes=2, progress=False
    )
    assert all_bytes(together) == all_bytes(alone)
    records = [json.loads(file.read_text()) for file in tmp_path.glob("shard-*.json")]
    assert len({record["process"] for record in records}) == 2
    assert torch.get_num_threads() == threads


RANK_SCRIPT = """
import sys
from datasets import Dataset
from modeling_condenser.encoding.encode import encode_collection
from modeling_condenser.retrieval.systems import parse_system
encode_collection(parse_system(sys.argv[1]), Dataset.load_from_disk(sys.argv[2]), sys.argv[3],
    shard_size=9, progress=False)
"""


def test_torchrun_gives_the_bits_of_one_process(
    alone: Embeddings, bert_folder: Path, passages: Dataset, tmp_path: Path
) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "embeddings"
    script.write_text(RANK_SCRIPT)
    passages_folder = Path(passages.cache_files[0]["filename"]).parent
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command += ["--master_addr=127.0.0.1", f"--master_port={free_port()}", str(script)]
    process = subprocess.run(
        [*command, f"{bert_folder},pooling=mean", passages_folder, folder],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=200,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert all_bytes(Embeddings.open(folder)) == all_bytes(alone)
    processes = [
        json.loads((folder / f"shard-{i:05d}.json").read_text())["process"] for i in range(7)
    ]
    assert len({processes[0], processes[1]}) == 2
    assert processes == [processes[i % 2] for i in range(7)]


def test_a_model_that_was_named_is_encoded_as_one_that_was_opened(
    alone: Embeddings, bert_folder: Path, passages: Dataset, tmp_path: Path
) -> None:
    from modeling_condenser.retrieval.systems import parse_system

    system = parse_system(f"{bert_folder},pooling=mean")
    named = encode_collection(system, passages, tmp_path, shard_size=9, progress=False)
    assert all_bytes(named) == all_bytes(alone)
    assert named.manifest == alone.manifest


# --- processes on this machine


def test_helpers_are_called_when_the_first_shard_shows_that_it_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[int]] = []
    monkeypatch.setattr(
        crew.Crew, "call_helpers", lambda self, work, shards: called.append(list(shards)) or []
    )
    monkeypatch.setattr(encode, "_WORTH_HELP", 3600)
    encode_stub(tmp_path / "quick", StubOpener(), n_processes=None)
    assert called == []
    monkeypatch.setattr(encode, "_WORTH_HELP", 0.001)
    encode_stub(tmp_path / "slow", StubOpener(seconds=0.01), n_processes=None)
    assert called[0] == list(range(1, 13))


def test_a_process_that_fails_stops_the_run_with_its_error(tmp_path: Path) -> None:
    opener = StubOpener(seconds=4.0, later_fingerprint="another")
    with pytest.raises(ChildProcessError, match="on cpu has failed: ValueError: the model's files"):
        encode_stub(tmp_path, opener, n_processes=2)


def test_an_encoder_that_cannot_be_opened_again_is_refused_several_processes(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match="cannot be opened in 2 processes: pass what opens it"):
        encode_stub(tmp_path, n_processes=2)
    with pytest.raises(ValueError, match="is on cpu and cannot be opened on cuda:1"):
        encode_stub(tmp_path, n_processes=None, devices=["cuda:1"])


@pytest.mark.parametrize(
    ("own", "n_processes", "devices", "expected"),
    [
        ("cpu", 1, None, ["cpu"]),
        ("cpu", 3, None, ["cpu"] * 3),
        ("cpu", None, None, ["cpu"] * 5),
        ("cuda:0", None, None, ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda:1", None, None, ["cuda:1", "cuda:0", "cuda:2"]),
        ("cuda:0", 4, None, ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]),
        ("cuda:0", None, ["cuda:2", "cuda:1"], ["cuda:2", "cuda:1"]),
        ("cuda:0", 1, ["cuda:2", "cuda:1"], ["cuda:2", "cuda:1"]),
        ("cuda:0", 4, ["cuda:2", "cuda:1"], ["cuda:2", "cuda:1", "cuda:2", "cuda:1"]),
        ("mps", None, None, ["mps"]),
    ],
)
def test_devices_are_shared_out(
    own: str,
    n_processes: int | None,
    devices: list[str] | None,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "_n_cores", lambda: 5)
    monkeypatch.setattr(crew, "_n_gpus", lambda: 3)

    class Opener:
        def open(self, *, device: str | None = None) -> StubEncoder:
            return StubEncoder(device=device or own)

    made = crew.assemble_crew(
        Opener(), n_processes=n_processes, devices=devices, ranks=crew.Ranks()
    )
    assert made.devices == expected
    assert str(made.encoder.model.device) == expected[0]


@pytest.mark.parametrize(
    ("devices", "n_gpus", "expected"),
    [(None, 2, "cuda:1"), (None, 0, "cpu"), (["cuda:4", "cuda:5"], 8, "cuda:5")],
)
def test_a_rank_takes_the_device_of_its_number(
    devices: list[str] | None, n_gpus: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "_n_gpus", lambda: n_gpus)
    ranks = crew.Ranks(rank=3, size=4, local_rank=1)
    made = crew.assemble_crew(StubOpener(), n_processes=1, devices=devices, ranks=ranks)
    assert made.devices == [expected]
    with pytest.raises(ValueError, match="torchrun has started the processes already"):
        crew.assemble_crew(StubOpener(), n_processes=2, devices=devices, ranks=ranks)


def test_ranks_that_cannot_meet_are_told_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="MASTER_ADDR, MASTER_PORT is not set: .* torchrun"):
        encode_stub(tmp_path)


# --- what is in the folder


def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    folder, log = tmp_path / "e", tmp_path / "log"
    encode_stub(folder)
    for shard in (3, 7):
        (folder / f"shard-{shard:05d}.json").unlink()
    assert all_bytes(encode_stub(folder, StubEncoder(log=log))) == expected_bytes()
    assert [line.split(" ", 1)[1] for line in log.read_text().splitlines()] == [
        "text 24",
        "text 56",
    ]


def test_a_finished_folder_is_opened_without_encoding_or_writing(tmp_path: Path) -> None:
    folder, log = tmp_path / "e", tmp_path / "log"
    encode_stub(folder)
    before = {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]}
    embeddings = encode_stub(folder, StubEncoder(log=log), shard_size=None)
    assert not log.exists()
    assert {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]} == before
    assert embeddings.record["n_shards"] == 13


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(bytes(content))


def put_nan(file: Path) -> None:
    """With a checksum that is right, as a bug could write it."""
    vectors = np.load(file)
    vectors[0, 0] = np.nan
    np.save(file, vectors)
    record = json.loads(file.with_suffix(".json").read_text())
    record["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    file.with_suffix(".json").write_text(json.dumps(record))


def tear_record(file: Path) -> None:
    file.with_suffix(".json").write_text('{"first_row": 1')


def swap_record(file: Path) -> None:
    shutil.copy(file.with_name("shard-00001.json"), file.with_suffix(".json"))


@pytest.mark.parametrize("damage", [truncate, flip, put_nan, tear_record, swap_record, Path.unlink])
@pytest.mark.parametrize("finished", [True, False])
def test_a_damaged_shard_is_found_and_done_anew(
    damage: Callable[[Path], None],
    finished: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, log = tmp_path / "e", tmp_path / "log"
    encode_stub(folder)
    if not finished:
        (folder / "shard-00011.json").unlink()
    damage(folder / "shard-00004.npy")
    assert all_bytes(encode_stub(folder, StubEncoder(log=log))) == expected_bytes()
    begun = [line.split(" ", 1)[1] for line in log.read_text().splitlines()]
    assert begun == (["text 32"] if finished else ["text 32", "text 88"])
    assert "shard-00004" in caplog.text and "encoded anew" in caplog.text


@pytest.mark.parametrize("name", ["passage_ids.arrow", "id_order.npy", "passage_ids.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink, truncate])
def test_damaged_ids_are_written_anew(
    name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    encode_stub(tmp_path)
    whole = {file.name: file.read_bytes() for file in tmp_path.glob("*id*")}
    assert len(whole) == 3
    damage(tmp_path / name)
    encode_stub(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*id*")} == whole


class Mean(StubEncoder):
    contract = replace(EncodingContract(8, 8), pooling="mean", title_separator=" | ")


class Wider(StubEncoder):
    dimension = DIMENSION + 1


@pytest.mark.parametrize(
    ("encoder", "settings", "message"),
    [
        (StubEncoder(fingerprint="other"), {}, "the model's weights, tokenizer or modules"),
        (
            Mean(fingerprint="o"),
            {},
            "pooling is 'cls' there and 'mean' now; the contract's title_s",
        ),
        (Wider(fingerprint="other"), {}, "16 numbers there and 17 now"),
        (StubEncoder(), {"shard_size": 9}, "shards of 8 passages there and of 9 now"),
    ],
)
def test_another_model_contract_or_layout_is_refused(
    encoder: StubEncoder, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    encode_stub(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=f"holds embeddings of something else: .*{message}"):
        encode_stub(tmp_path, encoder, **settings)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_another_collection_is_refused(tmp_path: Path) -> None:
    encode_stub(tmp_path)
    for n, message in ((N + 1, "100 passages there and 101 now"), (N, "order of the passages")):
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
    with pytest.raises(ValueError, match="holds embeddings of something else"):
        encode_stub(tmp_path)


def test_other_threads_than_before_are_warned_of_and_unstated_ones_are_the_folders(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encode_stub(tmp_path, n_threads=2)
    (tmp_path / "shard-00003.json").unlink()
    encode_stub(tmp_path)
    assert "last bits" not in caplog.text
    encode_stub(tmp_path, n_threads=3)
    assert (
        "begun with device cpu, dtype float32, n_threads 2" in caplog.text
        and "can differ" in caplog.text
    )


# --- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows["_id"].__setitem__(5, rows["_id"][50]), "stands more than once"),
        (lambda rows: rows["_id"].__setitem__(5, None), "nulls|no id"),
        (lambda rows: rows.pop("title"), "expected at least one, with _id, title and text"),
        (lambda rows: [column.clear() for column in rows.values()], "0 passages with the columns"),
    ],
)
def test_passages_that_cannot_be_encoded_are_refused_before_the_first_shard(
    change: Callable[[dict[str, list[Any]]], object], message: str, tmp_path: Path
) -> None:
    rows, log = make_passages(N).to_dict(), tmp_path / "log"
    change(rows)
    with pytest.raises(ValueError, match=message):
        encode_collection(StubEncoder(log=log), Dataset.from_dict(rows), tmp_path / "e")
    assert not log.exists()


def test_a_vector_that_is_not_finite_is_named_and_what_came_before_is_kept(tmp_path: Path) -> None:
    message = r"Shard 5, which begins with passage 'p\d+-40' .*in row 42"
    with pytest.raises(ValueError, match=message):
        encode_stub(tmp_path, StubEncoder(fails_on="text 42"))
    assert len(list(tmp_path.glob("shard-*.json"))) == 5
    assert all_bytes(encode_stub(tmp_path)) == expected_bytes()


@pytest.mark.parametrize("name", ["shard_size", "n_processes", "n_threads"])
def test_numbers_below_one_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0, expected at least 1"):
        encode_stub(tmp_path / "e", **{name: 0})
    assert not (tmp_path / "e").exists()


# --- space on the disk


def test_a_disk_that_is_too_small_is_refused_up_front_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=12_345))
    # 100 vectors of 16 numbers, 13 headers of 128 bytes, 100 ids, and 64 MiB to spare.
    needed = f"{100 * 16 * 4 + 13 * 128 + 100 * 32 + 64 * 2**20:,}"
    with pytest.raises(OSError, match=f"13 shards .* need {needed} bytes .* 12,345 are free") as no:
        encode_stub(tmp_path / "e", StubEncoder(log=log))
    assert no.value.errno == errno.ENOSPC
    assert not log.exists()


def test_a_disk_that_fills_up_stops_it_clearly_and_it_goes_on_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, log = tmp_path / "e", tmp_path / "log"
    syncs = os.fsync

    def full(descriptor: int) -> None:
        if len(list(folder.glob("shard-*.npy"))) == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        syncs(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: .* bytes are free") as stopped:
            encode_stub(folder)
    assert stopped.value.errno == errno.ENOSPC
    assert not list(folder.glob(".*.partial"))
    assert all_bytes(encode_stub(folder, StubEncoder(log=log))) == expected_bytes()
    assert len(log.read_text().splitlines()) == 8  # the sixth has no record yet


# --- small parts


def test_a_shard_is_claimed_by_one_process_at_a_time(tmp_path: Path) -> None:
    # A process that imports nothing of ours tries the first three bytes: the folder, shards 0, 1.
    script = """
import fcntl, sys
file = open(sys.argv[1], "r+")
for place in range(3):
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        print("free")
    except OSError:
        print("held")
"""

    def look() -> list[str]:
        command = [sys.executable, "-c", script, tmp_path / ".claims"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    with Claims(tmp_path) as claims:
        with claims.of_shard(1) as is_mine:
            assert is_mine
            assert look() == ["free", "free", "held"]
            with claims.of_folder():
                assert look() == ["held", "free", "held"]
        assert look() == ["free", "free", "free"]


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, 256), (4096, 256), (4097, 257), (22_000, 1375), (131_072, 8192), (8_841_823, 8192)],
)
def test_the_size_of_shards_follows_from_the_collection(n: int, expected: int) -> None:
    assert default_shard_size(n) == expected
