"""A folder of embeddings: what is written comes back, here and as parquet."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import List, Value, load_dataset

from modeling_condenser.encoding import embeddings as module
from modeling_condenser.encoding.embeddings import Embeddings, write_embeddings, write_table
from tests.encoding.hashing import make_passages

IDS = ["", "a", "a\x00", "\uffff", "\U0001d11e", "東京", "é ", "Z", "0", "a b", "z", "Ä"]


def draw_vectors(n: int, dimension: int = 7) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, dimension)).astype(np.float32)


@pytest.mark.parametrize(("n", "shard_size"), [(1, 1), (10, 3), (12, 4), (7, 100)])
def test_vectors_and_ids_come_back(n: int, shard_size: int, tmp_path: Path) -> None:
    vectors, ids = draw_vectors(n), IDS[:n]
    write_embeddings(tmp_path, vectors, ids, shard_size=shard_size, retriever_fingerprint="model")
    embeddings = Embeddings.open(tmp_path)
    assert (embeddings.n_passages, embeddings.dimension, embeddings.retriever) == (n, 7, "model")
    firsts, blocks = zip(*embeddings.blocks(), strict=True)
    assert firsts == tuple(range(0, n, shard_size))
    assert np.concatenate(blocks).tobytes() == vectors.tobytes()
    assert all(isinstance(block, np.memmap) for block in blocks)
    rows = np.random.default_rng(1).integers(0, n, 2 * n)
    assert embeddings.ids(rows) == [ids[row] for row in rows]
    np.testing.assert_array_equal(embeddings.vectors(rows), vectors[rows])
    assert embeddings.vectors(rows[:0]).shape == (0, 7)


def test_incomplete_folders_are_not_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no embeddings \(manifest.json is missing"):
        Embeddings.open(tmp_path / "nowhere")
    write_embeddings(tmp_path, draw_vectors(10), IDS[:10], shard_size=4)
    (tmp_path / "shard-00001.npy").unlink()
    with pytest.raises(FileNotFoundError, match="not complete: 1 of 3 shards are missing"):
        Embeddings.open(tmp_path)


@pytest.mark.parametrize(
    ("vectors", "ids", "message"),
    [
        (draw_vectors(3), ["a", "b"], r"2 ids for vectors of shape \(3, 7\)"),
        (draw_vectors(3), ["a", "b", "a"], "3 passages have 2 ids"),
        (draw_vectors(3).astype(np.float64), ["a", "b", "c"], "float64; expected .* float32"),
        (np.full((2, 2), np.inf, np.float32), ["a", "b"], "2 of 2 vectors .* first in row 0"),
    ],
)
def test_wrong_arrays_are_refused(
    vectors: np.ndarray, ids: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        write_embeddings(tmp_path, vectors, ids)


@pytest.mark.parametrize(("bytes_a_table", "n_files"), [(10**9, 1), (2 * 4 * 6 * 8, 4)])
def test_a_parquet_table_holds_ids_vectors_and_texts(
    bytes_a_table: int, n_files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BYTES_A_TABLE", bytes_a_table)
    passages, vectors = make_passages(50), draw_vectors(50, 6)
    embeddings = write_embeddings(tmp_path / "e", vectors, passages["_id"][:], shard_size=8)
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
    plain = write_table(embeddings, tmp_path / "plain")
    assert pq.read_schema(plain[0]).names == ["id", "embedding"]


def test_a_table_of_other_passages_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    passages = make_passages(50)
    ids = passages["_id"][:]
    embeddings = write_embeddings(tmp_path / "e", draw_vectors(50), ids, shard_size=8)
    with pytest.raises(ValueError, match="Passages 0 to 7 have other ids"):
        write_table(embeddings, tmp_path / "table", passages=passages.select([1, 0, *range(2, 50)]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["e"]
    with pytest.raises(FileExistsError, match="is not empty"):
        write_table(embeddings, embeddings.folder)
    with pytest.raises(FileExistsError, match="is not empty"):
        write_embeddings(tmp_path / "e", draw_vectors(50), ids)
