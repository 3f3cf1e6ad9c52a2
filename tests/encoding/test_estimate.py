"""Estimates against what things really take, and records of what they took."""

import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import pytest
from datasets import Dataset

from modeling_condenser.encoding import encode
from modeling_condenser.encoding.encode import encode_collection, estimate_collection
from modeling_condenser.encoding.estimate import EncodingEstimate, estimate_encoding, index_bytes
from modeling_condenser.encoding.memory import PeakMemory, resident_bytes
from modeling_condenser.encoding.record import record_encoding
from modeling_condenser.encoding.retriever import Retriever
from modeling_condenser.encoding.shards import Manifest
from modeling_condenser.runs.child_process import call_apart
from tests.encoding.stubs import StubEncoder, StubOpener, make_passages


class Timed(StubEncoder):
    """Remembers what it was given, and moves a clock by 30 microseconds a word."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, tokenizer: object = None) -> None:
        super().__init__()
        self.model.tokenizer = tokenizer
        self.now, self.seen = 0.0, []
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr("modeling_condenser.encoding.estimate.time", clock)

    def encode_passages(self, passages: Dataset, *, progress: bool = False) -> np.ndarray:
        self.seen.append(list(passages["_id"]))
        self.now += 0.00003 * sum(len(text.split()) for text in passages["text"])
        return super().encode_passages(passages)


def split_words(texts: list[str], **_: object) -> dict[str, list[list[str]]]:
    return {"input_ids": [text.split() for text in texts]}


def test_time_is_drawn_from_a_sample_that_its_seed_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    passages, seen = make_passages(20_000), []  # texts of two words
    for seed in (0, 0, 1):
        encoder = Timed(monkeypatch)
        estimate = estimate_encoding(encoder, passages, n_processes=4, seed=seed)
        assert estimate.seconds == pytest.approx(20_000 * 2 * 0.00003 / 4)
        assert (estimate.n_passages, estimate.n_sampled) == (20_000, 2048)
        assert estimate.n_tokens is None
        seen.append(encoder.seen)
    assert seen[0] == seen[1] != seen[2]
    assert [len(ids) for ids in seen[0]] == [8, 32, 128, 512, 2048]
    assert len(set(seen[0][-1])) == 2048


def test_time_follows_the_tokens_where_the_timed_texts_happen_to_be_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = np.random.default_rng(0).lognormal(5, 1.5, 3000).astype(int) + 1
    rows = make_passages(3000).to_dict()
    rows |= {"text": ["word " * length for length in lengths], "title": [""] * 3000}
    encoder = Timed(monkeypatch, tokenizer=split_words)
    estimate = estimate_encoding(encoder, Dataset.from_dict(rows))
    assert estimate.n_sampled == 128  # 1.4 s or so; 32 of them do not take a second
    assert estimate.n_tokens == pytest.approx(lengths.sum(), rel=0.15)
    assert estimate.seconds == pytest.approx(0.00003 * estimate.n_tokens, rel=1e-6)


def test_tokens_are_counted_as_they_are_cut(bert_folder: Path, texts: list[str]) -> None:
    rows = {"_id": [f"p{i}" for i in range(100)], "title": ["A title"] * 100, "text": texts[:100]}
    retriever = Retriever(bert_folder, pooling="cls", passage_max_length=20, device="cpu")
    passages = Dataset.from_dict(rows)
    # All of the collection is sampled, so that the count is exact.
    estimate = estimate_encoding(retriever, passages)
    tokenizer = retriever.model.tokenizer
    expected = sum(min(20, len(tokenizer(f"A title {text}")["input_ids"])) for text in texts[:100])
    assert estimate.n_tokens == expected
    assert estimate.n_sampled == 100


def test_disk_is_what_the_files_take(tmp_path: Path) -> None:
    passages = make_passages(5000)
    estimate = estimate_encoding(StubEncoder(), passages)
    embeddings = encode_collection(StubEncoder(), passages, tmp_path, progress=False)
    vectors = sum(file.stat().st_size for file in tmp_path.glob("shard-*.npy"))
    ids = sum((tmp_path / name).stat().st_size for name in ("passage_ids.arrow", "id_order.npy"))
    assert estimate.disk_vectors_bytes == pytest.approx(vectors, rel=0.01)
    assert estimate.disk_ids_bytes == pytest.approx(ids, rel=0.1)
    assert estimate.disk_bytes == estimate.disk_vectors_bytes + estimate.disk_ids_bytes
    assert estimate.memory_bytes == pytest.approx(embeddings.record["peak_memory_bytes"], rel=0.3)


@pytest.mark.parametrize(
    "factory", ["HNSW8", "HNSW32", "HNSW16_SQ8", "IVF16,Flat", "IVF16,SQ8", "SQ8", "PCA8,SQ8"]
)
def test_an_index_is_as_large_as_estimated(factory: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((4000, 32)).astype(np.float32)
    index = faiss.index_factory(32, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    size = faiss.serialize_index(index).nbytes
    # The matrix of a transform, 6 KB here, is not counted.
    assert index_bytes(factory, 4000, 32) == pytest.approx(size, rel=0.1, abs=6000)


def test_an_index_that_faiss_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="faiss knows no index 'nonsense' for 32 numbers"):
        index_bytes("nonsense", 10, 32)
    assert index_bytes("Flat", 10, 32) == 0


def test_an_estimate_is_read_in_words() -> None:
    estimate = EncodingEstimate(
        n_passages=8_841_823,
        n_tokens=700_000_000,
        seconds=7200.0,
        n_processes=2,
        memory_bytes=3_210_000_000,
        accelerator_bytes=4_500_000_000,
        disk_vectors_bytes=27_162_080_256,
        disk_ids_bytes=250_000_000,
        disk_index_bytes=0,
        n_sampled=1024,
    )
    assert estimate.in_words().splitlines() == [
        "to encode: 8,841,823 passages, about 700,000,000 tokens",
        "time:      about 2.0 hours (1,228 passages a second)",
        "memory:    about 3.21 GB in each of 2 processes, and 4.5 GB on its GPU",
        "disk:      27.41 GB (vectors 27.16 GB, ids 250 MB, index 0 bytes)",
    ]


def test_no_passages_cannot_be_estimated() -> None:
    with pytest.raises(ValueError, match="0 passages"):
        estimate_encoding(StubEncoder(), make_passages(3).select([]))


def test_a_long_run_begins_with_an_estimate_and_a_short_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "_LONG_RUN", 600)
    caplog.set_level(logging.INFO, logger="modeling_condenser")
    encode_collection(StubEncoder(), make_passages(599), tmp_path / "short", progress=False)
    assert "to encode" not in caplog.text
    encode_collection(StubEncoder(), make_passages(600), tmp_path / "long", progress=False)
    assert "to encode: 600 passages" in caplog.text and "memory:" in caplog.text


def test_an_estimate_of_a_collection_counts_the_processes_that_would_encode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("modeling_condenser.encoding.crew._n_cores", lambda: 6)
    for n_processes, expected in ((None, 6), (2, 2)):
        estimate = estimate_collection(StubOpener(), make_passages(50), n_processes=n_processes)
        assert estimate.n_processes == expected


def test_a_record_adds_up_sessions_and_counts_what_overlaps_once(tmp_path: Path) -> None:
    # Two processes side by side from 100 to 130 s, then nothing, then one from 1000 to 1010 s.
    spans = [(100.0, 20.0), (105.0, 20.0), (120.0, 10.0), (1000.0, 10.0)]
    for shard, (started, seconds) in enumerate(spans):
        record = {
            "started": started,
            "seconds": seconds,
            "device": f"cuda:{shard % 2}",
            "peak_memory_bytes": 100 + shard,
            "peak_accelerator_bytes": 7 if shard == 1 else None,
        }
        (tmp_path / f"shard-{shard:05d}.json").write_text(json.dumps(record))
    manifest = Manifest("m", {}, "p", n_passages=80, dimension=1, shard_size=20)
    record = record_encoding(tmp_path, manifest)
    assert json.loads((tmp_path / "encoding.json").read_text()) == record
    del record["machine"]
    assert record == {
        "n_passages": 80,
        "n_shards": 4,
        "seconds": 40.0,
        "process_seconds": 60.0,
        "passages_per_second": 2.0,
        "n_processes": 2,
        "devices": ["cuda:0", "cuda:1"],
        "peak_memory_bytes": 103,
        "peak_accelerator_bytes": 7,
        "computation": {},
    }


def test_a_folders_record_says_how_long_encoding_took(tmp_path: Path) -> None:
    embeddings = encode_collection(
        StubEncoder(seconds=0.1), make_passages(40), tmp_path, shard_size=8, progress=False
    )
    assert 0.5 <= embeddings.record["seconds"] < 2
    assert embeddings.record["passages_per_second"] == pytest.approx(
        40 / embeddings.record["seconds"]
    )


def grow_and_shrink(file: str) -> list[int]:
    """Bytes of growth, at its most, with 80 MB mapped, and then with 200 MB held for a while."""
    before = resident_bytes()
    with PeakMemory() as memory:
        mapped = np.load(file, mmap_mode="r")
        assert mapped.sum() == 0.0
        with_mapped = memory.so_far - before
        held = np.ones(25_000_000)
        time.sleep(0.3)
        del held
        return [with_mapped, memory.so_far - before]


def test_peak_memory_sees_what_is_freed_again_but_no_mapped_files(tmp_path: Path) -> None:
    """In a process of its own: what other tests leave behind can be freed at any time."""
    file = tmp_path / "zeros.npy"
    np.save(file, np.zeros(10_000_000))
    with_mapped, at_most = call_apart(grow_and_shrink, {"file": str(file)}, failed="it grew")
    assert with_mapped < 40_000_000
    assert 150_000_000 < at_most < 300_000_000
