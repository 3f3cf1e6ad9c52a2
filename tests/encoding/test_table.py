"""Embeddings as parquet files, read back by `datasets` and by pyarrow."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, List, Value, load_dataset

from modeling_condenser.encoding import table
from modeling_condenser.encoding.embeddings import Embeddings, write_embeddings
from modeling_condenser.encoding.table import write_table
from tests.encoding.stubs import make_passages

N, D = 50, 6


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)


@pytest.fixture
def embeddings(vectors: np.ndarray, tmp_path: Path) -> Embeddings:
    ids = list(make_passages(N)["_id"])
    return write_embeddings(tmp_path / "embeddings", vectors, ids, shard_size=8)


def load(files: list[Path], tmp_path: Path) -> Dataset:
    names = [str(file) for file in files]
    return load_dataset("parquet", data_files=names, split="train", cache_dir=str(tmp_path / "c"))


@pytest.mark.parametrize("rows_per_file", [None, 1, 7, 8, 49, 50])
def test_ids_and_vectors_come_back_bit_by_bit(
    rows_per_file: int | None, embeddings: Embeddings, vectors: np.ndarray, tmp_path: Path
) -> None:
    files = write_table(embeddings, tmp_path / "table", rows_per_file=rows_per_file)
    assert len(files) == -(-N // (rows_per_file or N))
    assert sorted((tmp_path / "table").iterdir()) == files
    loaded = load(files, tmp_path)
    assert loaded.features == {"id": Value("string"), "embedding": List(Value("float32"), length=D)}
    assert loaded["id"][:] == list(make_passages(N)["_id"])
    back = np.array(loaded.with_format("numpy")["embedding"][:])
    assert back.dtype == np.float32
    assert back.tobytes() == vectors.tobytes()


def test_texts_stand_beside_them_where_passages_are_given(
    embeddings: Embeddings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_ROWS_A_GROUP", 9)
    passages = make_passages(N)
    files = write_table(embeddings, tmp_path / "table", passages=passages, rows_per_file=20)
    loaded = load(files, tmp_path)
    assert loaded.column_names == ["id", "embedding", "title", "text"]
    assert loaded["title"][:] == passages["title"][:]
    assert loaded["text"][:] == passages["text"][:]
    assert pq.ParquetFile(files[0]).num_row_groups == 3  # of 9, 9 and 2 rows


def test_it_is_streamed_too(embeddings: Embeddings, vectors: np.ndarray, tmp_path: Path) -> None:
    files = write_table(embeddings, tmp_path / "table", rows_per_file=20)
    stream = load_dataset(
        "parquet", data_files=[str(file) for file in files], split="train", streaming=True
    )
    rows = list(stream)
    np.testing.assert_array_equal(np.float32([row["embedding"] for row in rows]), vectors)


def test_other_passages_are_refused_and_leave_nothing(
    embeddings: Embeddings, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="49 passages for 50 embeddings"):
        write_table(embeddings, tmp_path / "table", passages=make_passages(N - 1))
    turned = make_passages(N).select([1, 0, *range(2, N)])
    with pytest.raises(ValueError, match="rows 0 to 49 have other ids"):
        write_table(embeddings, tmp_path / "table", passages=turned)
    assert [entry.name for entry in tmp_path.iterdir()] == ["embeddings"]


def test_nothing_is_overwritten(embeddings: Embeddings, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="is not empty"):
        write_table(embeddings, embeddings.folder)
    with pytest.raises(ValueError, match="rows_per_file is 0"):
        write_table(embeddings, tmp_path / "table", rows_per_file=0)
