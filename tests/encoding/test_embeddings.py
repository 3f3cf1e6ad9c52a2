"""A folder of embeddings: what is written comes back, here and as parquet."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import List, Value, load_dataset

from modeling_condenser.encoding import embeddings as module
from modeling_condenser.encoding.embeddings import Embeddings, write_embeddings, write_table
from tests.encoding.making import make_passages

IDS = ["", "a", "a\x00", "\uffff", "\U0001d11e", "東京", "é ", "Z", "0", "a b", "z", "Ä"]


def draw_vectors(n: int, dimension: int = 7) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, dimension)).astype(np.float32)


@pytest.mark.parametrize(("n", "shard_size"), [(1, 1), (10, 3), (12, 4), (7, 100)])
def test_vectors_and_ids_come_back(n, shard_size, tmp_path):
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


# Vectors of 24 bytes.
@pytest.mark.parametrize(("bytes_a_table", "n_files"), [(10**9, 1), (24 * 16 + 1, 4)])
def test_a_parquet_table_holds_ids_vectors_and_texts(bytes_a_table, n_files, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BYTES_A_TABLE", bytes_a_table)
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
    plain = write_table(embeddings, tmp_path / "plain")
    assert pq.read_schema(plain[0]).names == ["id", "embedding"]


def test_what_does_not_fit_is_refused_and_nothing_is_overwritten(tmp_path):
    passages, vectors = make_passages(50), draw_vectors(50)
    ids = passages["_id"][:]
    embeddings = write_embeddings(tmp_path / "e", vectors, ids, shard_size=20)
    with pytest.raises(ValueError, match="differ in ids"):
        write_table(embeddings, tmp_path / "table", passages=passages.select([1, 0, *range(2, 50)]))
    with pytest.raises(ValueError, match=r"49 ids for vectors of shape \(50, 7\)"):
        write_embeddings(tmp_path / "new", vectors, ids[1:])
    assert [entry.name for entry in tmp_path.iterdir()] == ["e"]
    with pytest.raises(FileExistsError, match="is not empty"):
        write_table(embeddings, embeddings.folder)
    with pytest.raises(FileExistsError, match="is not empty"):
        write_embeddings(tmp_path / "e", vectors, ids)
    (tmp_path / "e" / "shard-00001.npy").unlink()
    with pytest.raises(FileNotFoundError, match="not complete: 1 of 3 shards are missing"):
        Embeddings.open(tmp_path / "e")
    with pytest.raises(FileNotFoundError, match="holds no embeddings"):
        Embeddings.open(tmp_path)
