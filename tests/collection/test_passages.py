"""Storing passages: memory-mapped, checked once, belonging to the files they were read from."""

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from modeling_condenser.collection import passages as module
from modeling_condenser.collection.passages import Row, find_missing, store_passages


def rows(n: int) -> Iterator[Row]:
    return ((i + 1, f"p{i}", f"title {i}" if i % 2 else "", f"text {i}") for i in range(n))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("one")
    return path


def test_rows_come_back_in_order_and_memory_mapped(file: Path, passage_cache: Path) -> None:
    stored = store_passages(lambda: rows(25_000), files=[file], where="corpus")
    assert len(stored) == 25_000
    for i in (0, 9_999, 10_000, 24_999):
        title = f"title {i}" if i % 2 else ""
        assert stored[i] == {"_id": f"p{i}", "title": title, "text": f"text {i}"}
    assert {str(feature.dtype) for feature in stored.features.values()} == {"string"}
    assert Path(stored.cache_files[0]["filename"]).is_relative_to(passage_cache)


def test_memory_does_not_grow_with_the_passages(file: Path) -> None:
    text = "x" * 10_000

    def many() -> Iterator[Row]:
        return ((i + 1, f"p{i}", "", text) for i in range(20_000))  # 200 MB

    sizes = [sum(map(len, columns[2])) for columns in module._batches(many(), where="corpus")]
    assert sum(sizes) == 200_000_000
    assert max(sizes) < 17_000_000
    stored = store_passages(many, files=[file], where="corpus")
    assert stored.data.nbytes > 200_000_000
    assert pa.total_allocated_bytes() < 50_000_000


def test_the_same_files_are_read_once_and_changed_ones_again(file: Path) -> None:
    calls = []

    def counted() -> Iterator[Row]:
        calls.append(1)
        return rows(len(calls))

    assert len(store_passages(counted, files=[file], where="corpus")) == 1
    assert len(store_passages(counted, files=[file], where="corpus")) == 1
    file.write_text("more")
    assert len(store_passages(counted, files=[file], where="corpus")) == 2
    assert len(store_passages(counted, files=[file, file], where="corpus")) == 3
    state = file.stat()
    file.write_text("less")  # of the same size
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert len(store_passages(counted, files=[file], where="corpus")) == 4


def test_a_file_torn_by_a_kill_is_never_opened(file: Path, passage_cache: Path) -> None:
    def killed() -> Iterator[Row]:
        yield from rows(10_001)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_passages(killed, files=[file], where="corpus")
    (folder,) = passage_cache.iterdir()
    assert [path.suffix for path in folder.iterdir()] in ([], [".lock"])
    key = module._stored_path([file], "corpus")
    key.with_name(f"{key.name}.partial").write_bytes(b"left by SIGKILL")
    assert len(store_passages(lambda: rows(3), files=[file], where="corpus")) == 3


def test_no_space_left_is_said_with_the_folder_and_the_way_out(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa.ipc, "new_stream", full)
    with pytest.raises(OSError, match="no space left in .*set HF_DATASETS_CACHE to another disk"):
        store_passages(lambda: rows(3), files=[file], where="corpus")


def test_ids_of_one_hash_are_told_apart_from_ids_that_stand_twice(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "hash", lambda text: len(text), raising=False)
    assert len(store_passages(lambda: rows(50), files=[file], where="corpus")) == 50

    def repeated() -> Iterator[Row]:
        ids = ["p1", "p2", "p3", "p2", "p1", "p2"]
        return ((number, passage_id, "", "x") for number, passage_id in enumerate(ids, start=11))

    message = "corpus.jsonl:15: id 'p1' stands on line 11 too, and 2 ids stand on several lines"
    with pytest.raises(ValueError, match=message):
        store_passages(repeated, files=[file], where="corpus.jsonl")


def test_empty_passages_are_kept_and_named_every_time(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def some_empty() -> Iterator[Row]:
        yield from [(1, "a", "", "x"), (2, "b", "", ""), (3, "c", "t", ""), (4, "d", "", "")]

    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            stored = store_passages(some_empty, files=[file], where="corpus")
        assert "corpus: 2 passages have neither title nor text, the first is 'b'" in caplog.text
        assert len(stored) == 4


def test_missing_ids_are_found_in_any_piece(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEARCH_ROWS", 7_000)
    stored = store_passages(lambda: rows(30_000), files=[file], where="corpus")
    known = [f"p{i}" for i in random.Random(0).sample(range(30_000), 500)]
    assert find_missing(known, stored) == []
    assert find_missing(["px", *known, "p", "p30000", "px"], stored) == ["p", "p30000", "px"]
    assert find_missing([], stored) == []
